//! Tokens that a gateway presents for its callers.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use telexec_client::{AccessToken, ConnectError, ConnectOptions, TlsOptions};
use telexec_executor::Command;
use telexec_tests::{Agent, Certs, Leaf, Pair, TokenIssuer, run};

use super::{Tokened, identity, unauthenticated};

async fn as_gateway(tokened: &Tokened, pair: &Pair, token: Option<String>) -> telexec_client::Agent {
    tokened.connect_by(tokened.certs.options(pair), token.map(AccessToken::Text)).await
}

#[tokio::test]
async fn only_gateways_present_its_tokens() {
    let more = "presented_by = [\"gateway-*\"]";
    let tokened = Tokened::start_with(more, "", |builder, certs| builder.mtls(certs));
    let token = || Some(tokened.issuer.token("anna"));
    let gateway = tokened.certs.ca.issue(Leaf::client("gateway-1"));
    assert_eq!(identity(&as_gateway(&tokened, &gateway, token()).await).await.unwrap(), "corp:anna");
    // by itself it is itself
    assert_eq!(identity(&as_gateway(&tokened, &gateway, None).await).await.unwrap(), "gateway-1");
    let other = as_gateway(&tokened, &tokened.certs.client, token()).await;
    let reason = unauthenticated(&other).await;
    assert!(reason.contains("this connection is of none of token_issuers.corp.presented_by"), "{reason}");
}

#[tokio::test]
async fn a_gateway_that_is_needed_leaves_no_door_for_others() {
    let more = "presented_by = [\"gateway-*\"]";
    let tokened = Tokened::start_with(more, "", |builder, certs| builder.mtls(certs));
    let tls = Some(TlsOptions::without_certificate(tokened.certs.ca.cert()));
    let options = ConnectOptions { tls, ..Default::default() };
    let refused = telexec_client::Agent::connect(&tokened.agent.uri().parse().unwrap(), options).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Untrusted { .. }), "{refused:?}");
}

#[tokio::test]
async fn callers_on_one_connection_are_who_their_tokens_name() {
    let more = "presented_by = [\"client\"]";
    let tokened = Tokened::start_with(more, "", |builder, certs| builder.mtls(certs));
    let file = tokened.certs.ca.directory().join("token");
    let tls = tokened.certs.options(&tokened.certs.client);
    std::fs::write(&file, tokened.issuer.token("anna")).unwrap();
    let gateway = tokened.connect_by(tls, Some(AccessToken::File(file.clone()))).await;
    for name in ["anna", "bob", "anna", "carol"] {
        std::fs::write(&file, tokened.issuer.token(name)).unwrap();
        assert_eq!(identity(&gateway).await.unwrap(), format!("corp:{name}"));
    }
    std::fs::write(&file, "x.y.z").unwrap();
    unauthenticated(&gateway).await;
}

/// RFC 8705, section 3.
#[tokio::test]
async fn a_token_that_is_bound_to_a_certificate_is_of_its_holder() {
    let more = "presented_by = [\"**\"]";
    let tokened = Tokened::start_with(more, "", |builder, certs| builder.mtls(certs));
    let own = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &tokened.certs.client.der());
    let bound = json!({"x5t#S256": BASE64_URL_SAFE_NO_PAD.encode(own)});
    let token = |cnf: &Value| Some(tokened.issuer.sign(json!({"sub": "anna", "cnf": cnf})));
    let holder = as_gateway(&tokened, &tokened.certs.client, token(&bound)).await;
    assert_eq!(identity(&holder).await.unwrap(), "corp:anna");
    let thief = tokened.certs.ca.issue(Leaf::client("thief"));
    let reason = unauthenticated(&as_gateway(&tokened, &thief, token(&bound)).await).await;
    assert!(reason.contains("bound (cnf) to another client certificate"), "{reason}");
    let mut twice = bound.clone();
    twice["jkt"] = json!("x");
    for cnf in [json!({}), json!("x"), json!([]), json!({"jwk": {}}), twice] {
        let reason = unauthenticated(&as_gateway(&tokened, &tokened.certs.client, token(&cnf)).await).await;
        assert!(reason.contains("bound (cnf) to something else"), "{cnf}: {reason}");
    }
}

/// Whom root's gateway presents is not root.
#[tokio::test]
async fn a_gateway_on_the_same_machine_lends_its_callers_nothing() {
    let user = rustix::process::geteuid().as_raw();
    let more = format!("presented_by = [\"unix:uid={user}\"]");
    let tokened = Tokened::start_with(&more, "", |builder, _| builder);
    let with = async |token: Option<String>| {
        let options = ConnectOptions { access_token: token.map(AccessToken::Text), ..Default::default() };
        telexec_client::Agent::connect(&tokened.agent.uri().parse().unwrap(), options).await.unwrap()
    };
    let [root, anna] = [with(None).await, with(Some(tokened.issuer.token("anna"))).await];
    assert_eq!(identity(&root).await.unwrap(), format!("unix:uid={user}"));
    assert_eq!(identity(&anna).await.unwrap(), "corp:anna");
    // without a policy root may ask what others may do
    let command = Command::argv(["true"]).build().unwrap();
    assert!(anna.check_as(&command, "corp:bob").await.is_err());
    if user == 0 {
        root.check_as(&command, "corp:bob").await.unwrap();
    }
    run(&anna.executor(), Command::argv(["true"])).await.unwrap();
}

#[tokio::test]
async fn several_issuers_are_told_apart() {
    let (certs, one, other) = (Certs::new(), TokenIssuer::new("https://one"), TokenIssuer::new("https://other"));
    let file = |name: &str| certs.ca.directory().join(name);
    let config = one.table("one", &file("one.json"), "presented_by = [\"client\"]")
        + &other.table("other", &file("other.json"), "");
    let agent = Agent::builder().config(config).mtls(&certs).start();
    let keys = file("one.json");
    let tokened = Tokened { agent, certs, issuer: one, keys };
    let gateway = as_gateway(&tokened, &tokened.certs.client, Some(tokened.issuer.token("anna"))).await;
    assert_eq!(identity(&gateway).await.unwrap(), "one:anna");
    assert_eq!(identity(&tokened.with(&other.token("anna")).await).await.unwrap(), "other:anna");
    // a token of one for the door of the other
    let reason = unauthenticated(&tokened.with(&tokened.issuer.token("anna")).await).await;
    assert!(reason.contains("token_issuers.one.presented_by"), "{reason}");
    let reason = unauthenticated(&as_gateway(&tokened, &tokened.certs.client, Some(other.token("anna"))).await).await;
    assert!(reason.contains("tokens of other are for connections by TLS without a client certificate"), "{reason}");
    // a key of one for the name of the other
    let forged = other.sign(json!({"iss": "https://one", "sub": "anna"}));
    let reason = unauthenticated(&as_gateway(&tokened, &tokened.certs.client, Some(forged)).await).await;
    assert!(reason.contains("no key of its issuer"), "{reason}");
}
