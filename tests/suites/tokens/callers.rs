//! Whom tokens name, and what they may do.

use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use telexec_client::AccessToken;
use telexec_executor::{Command, Executor, ExecutorError, Signal};
use telexec_tests::{run, within};

use super::{Tokened, identity, unauthenticated};

#[tokio::test]
async fn a_token_names_the_caller_who_runs_commands() {
    let tokened = Tokened::start("");
    let agent = tokened.with(&tokened.issuer.token("anna")).await;
    assert_eq!(identity(&agent).await.unwrap(), "corp:anna");
    let ran = run(&agent.executor(), Command::shell("echo here")).await.unwrap();
    assert_eq!(ran.stdout, b"here\n");
}

#[tokio::test]
async fn callers_of_one_issuer_own_what_they_have_started_and_nothing_else() {
    let tokened = Tokened::start("");
    let [anna, bob] = ["anna", "bob"].map(|name| tokened.issuer.token(name));
    let (anna, bob) = (tokened.with(&anna).await.executor(), tokened.with(&bob).await.executor());
    let started = within(anna.execute(Command::argv(["sleep", "300"]).build().unwrap())).await.unwrap();
    let killed = within(bob.signal(started.id(), Signal::KILL)).await;
    assert!(matches!(killed, Err(ExecutorError::NotFound(_))), "{killed:?}");
    within(anna.signal(started.id(), Signal::KILL)).await.unwrap();
}

#[tokio::test]
async fn each_call_has_the_token_that_is_in_the_file_then() {
    let tokened = Tokened::start("");
    let file = tokened.certs.ca.directory().join("token");
    std::fs::write(&file, tokened.issuer.token("anna")).unwrap();
    let agent = tokened.connect(Some(AccessToken::File(file.clone()))).await;
    assert_eq!(identity(&agent).await.unwrap(), "corp:anna");
    std::fs::write(&file, format!("\n{}\n", tokened.issuer.token("bob"))).unwrap();
    assert_eq!(identity(&agent).await.unwrap(), "corp:bob");
    std::fs::remove_file(&file).unwrap();
    let reason = unauthenticated(&agent).await;
    assert!(reason.starts_with("cannot use the access token /") && reason.ends_with("(os error 2)"), "{reason}");
}

#[tokio::test]
async fn without_a_token_nobody_calls() {
    let tokened = Tokened::start("");
    let reason = unauthenticated(&tokened.connect(None).await).await;
    assert!(reason.contains("the call has no token"), "{reason}");
}

#[tokio::test]
async fn certificates_are_as_good_beside_tokens() {
    let tokened = Tokened::start_with("", "", |builder, certs| builder.mtls(certs));
    let by_certificate = tokened.agent.connect().await;
    assert_eq!(identity(&by_certificate).await.unwrap(), "client");
    assert_eq!(identity(&tokened.with(&tokened.issuer.token("anna")).await).await.unwrap(), "corp:anna");
    // it would be unclear who calls
    let tls = tokened.certs.options(&tokened.certs.client);
    let both = tokened.connect_by(tls, Some(AccessToken::Text(tokened.issuer.token("anna")))).await;
    let reason = unauthenticated(&both).await;
    assert!(reason.contains("this connection is of client"), "{reason}");
}

#[tokio::test]
async fn claims_give_roles() {
    let policy = r#"
        @id("operators") permit(principal in Role::"operator", action in Action::"start", resource);
        @id("all may ask") permit(principal, action == Action::"GetAgent", resource);
        @id("staged") permit(principal in Role::"deployer", action in Action::"start", resource)
            when { context.transport == "tls" && context.command == "deploy" };
    "#;
    let roles = "roles.operator = { groups = [\"ops\", \"sre-*\"] }\n\
                 roles.deployer = { environment = [\"production\"], runs = [\"7\"] }\n";
    let tokened = Tokened::start_with(roles, "", |builder, certs| builder.tls(certs).policy(policy));
    let ends = async |claims: Value, program: &str| {
        let agent = tokened.with(&tokened.issuer.sign(claims)).await;
        let ran = run(&agent.executor(), Command::argv([program])).await;
        ran.map(|outcome| outcome.exited.exit_code()).map_err(|error| error.to_string())
    };
    for groups in [json!("ops"), json!(["x", "sre-db"]), json!(["ops"])] {
        assert_eq!(ends(json!({"sub": "anna", "groups": groups}), "true").await, Ok(0), "{groups}");
    }
    for groups in [json!("x"), json!([]), json!(["sre"]), json!([["ops"]]), json!({"ops": true}), json!(null)] {
        let denied = ends(json!({"sub": "anna", "groups": groups}), "true").await.unwrap_err();
        assert!(denied.contains("corp:anna (no role)"), "{groups}: {denied}");
    }
    let expiry = UNIX_EPOCH.elapsed().unwrap().as_secs() + 200;
    let token = tokened.issuer.sign(json!({"sub": "anna", "groups": "ops", "environment": "x", "exp": expiry}));
    let info = within(tokened.with(&token).await.info()).await.unwrap();
    let reported = info.caller_expire_time.map(|time| time.seconds.unsigned_abs());
    assert_eq!((info.roles, reported), (vec!["operator".to_owned()], Some(expiry)));
    // all of its claims are needed
    let deploys = json!({"sub": "ci", "environment": "production", "runs": 7});
    let denied = ends(deploys.clone(), "true").await.unwrap_err();
    assert!(denied.contains("corp:ci (role deployer)"), "{denied}");
    let denied = ends(json!({"sub": "ci", "environment": "production"}), "deploy").await.unwrap_err();
    assert!(denied.contains("corp:ci (no role)"), "{denied}");
    let missing = ends(deploys, "deploy").await.unwrap_err();
    assert!(missing.contains("no such file"), "it may start: {missing}");
}
