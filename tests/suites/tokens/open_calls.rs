//! Calls that are open when their token expires, or its key is withdrawn.

use serde_json::json;
use telexec_executor::{Command, Execution, Executor, ExecutorError};
use telexec_tests::{MARK, TokenIssuer, collect, exit_of, marker, now, processes_with, until, until_output, within};

use super::{Tokened, ask, identity, unauthenticated};

/// A command that has begun, with this marker.
async fn begun(agent: &telexec_client::Agent, mark: &str, text: &str) -> Execution {
    let command = Command::shell(text).env(MARK, mark).build().unwrap();
    let mut execution = within(agent.executor().execute(command)).await.unwrap();
    until_output(&mut execution, "begun").await;
    execution
}

/// A token that expires soon: that it has expired is forgiven for 30 s.
fn short(issuer: &TokenIssuer) -> String {
    issuer.sign(json!({ "sub": "anna", "iat": now() - 60, "exp": now() - 20 }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_outlasts_its_token_and_no_other_one_is_made_with_it() {
    let tokened = Tokened::start("");
    let agent = tokened.with(&short(&tokened.issuer)).await;
    let (mark, gate) = (marker(), tokened.certs.ca.directory().join("gate"));
    let text = format!("echo begun; until [ -e {} ]; do sleep 0.01; done; exit 3", gate.display());
    let execution = begun(&agent, &mark, &text).await;
    until("the token has expired", async || identity(&agent).await.is_err()).await;
    let reason = unauthenticated(&agent).await;
    assert!(reason.contains("it expired "), "{reason}");
    std::fs::write(&gate, "").unwrap();
    assert_eq!(exit_of(execution).await.exit_code(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_grace_a_call_ends_with_its_token() {
    let tokened = Tokened::start("call_grace = \"0s\"");
    let agent = tokened.with(&short(&tokened.issuer)).await;
    let mark = marker();
    let execution = begun(&agent, &mark, "echo begun; sleep 300").await;
    let ended = collect(execution).await.unwrap_err();
    let ExecutorError::Unauthenticated { reason } = ended else { panic!("{ended:?}") };
    assert_eq!(reason, "the token of this call has expired: call again with a new one");
    until("nothing of it is left", async || processes_with(&mark).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_withdrawn_ends_the_calls_of_its_tokens() {
    let tokened = Tokened::start("");
    let next = TokenIssuer::new(super::ISSUER);
    let agent = tokened.with(&tokened.issuer.token("anna")).await;
    let mark = marker();
    let execution = begun(&agent, &mark, "echo begun; sleep 300").await;
    // for a while both are there
    std::fs::write(&tokened.keys, TokenIssuer::key_set(&[&next, &tokened.issuer])).unwrap();
    let wire = tokened.stranger().await;
    ask(&wire, Some(&tokened.issuer.token("anna"))).await.unwrap();
    until("the agent has both keys", async || ask(&wire, Some(&next.token("anna"))).await.is_ok()).await;
    assert_eq!(identity(&agent).await.unwrap(), "corp:anna");
    std::fs::write(&tokened.keys, TokenIssuer::key_set(&[&next])).unwrap();
    let ended = collect(execution).await.unwrap_err();
    let ExecutorError::Unauthenticated { reason } = ended else { panic!("{ended:?}") };
    assert!(reason.contains("its issuer has withdrawn the key that signed it"), "{reason}");
    until("nothing of it is left", async || processes_with(&mark).is_empty()).await;
    let reason = unauthenticated(&agent).await;
    assert!(reason.contains("no key of its issuer fits"), "{reason}");
    assert_eq!(identity(&tokened.with(&next.token("anna")).await).await.unwrap(), "corp:anna");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_be_withdrawn_after_its_tokens_have_expired() {
    let tokened = Tokened::start("");
    let next = TokenIssuer::new(super::ISSUER);
    let agent = tokened.with(&short(&tokened.issuer)).await;
    let (mark, gate) = (marker(), tokened.certs.ca.directory().join("gate"));
    let text = format!("echo begun; until [ -e {} ]; do sleep 0.01; done; exit 3", gate.display());
    let execution = begun(&agent, &mark, &text).await;
    until("the token has expired", async || identity(&agent).await.is_err()).await;
    let wire = tokened.stranger().await;
    ask(&wire, Some(&tokened.issuer.token("anna"))).await.unwrap();
    std::fs::write(&tokened.keys, TokenIssuer::key_set(&[&next])).unwrap();
    until("the agent has the next key", async || ask(&wire, Some(&next.token("anna"))).await.is_ok()).await;
    std::fs::write(&gate, "").unwrap();
    assert_eq!(exit_of(execution).await.exit_code(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_keys_change_nothing() {
    let tokened = Tokened::start("");
    let agent = tokened.with(&tokened.issuer.token("anna")).await;
    for broken in ["", "{", "{\"keys\": [{\"kty\": \"oct\", \"k\": \"AAAA\"}]}"] {
        std::fs::write(&tokened.keys, broken).unwrap();
        let before = tokened.agent.reported("token keys reload failed").0;
        tokened.agent.signal(rustix::process::Signal::HUP);
        until("it says so", async || tokened.agent.reported("token keys reload failed").0 > before).await;
        assert_eq!(identity(&agent).await.unwrap(), "corp:anna");
    }
    // none is how the last one is withdrawn
    std::fs::write(&tokened.keys, "{\"keys\": []}").unwrap();
    tokened.agent.signal(rustix::process::Signal::HUP);
    until("no token is accepted", async || identity(&agent).await.is_err()).await;
}
