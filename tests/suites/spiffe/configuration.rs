//! The table `[spiffe]`.

use telexec_client::AccessToken;
use telexec_tests::{Agent, Certs, TokenIssuer, within};

use super::{CALLER, Mesh, identity};

#[tokio::test(flavor = "multi_thread")]
async fn bad_settings_are_named() {
    let socket = "socket = \"unix:///run/api.sock\"\n";
    let callers = "callers = [\"spiffe://example.org/ops/*\"]\n";
    for (lines, reason) in [
        (socket.to_owned(), "missing field `callers`"),
        (callers.to_owned(), "missing field `socket`"),
        (format!("{socket}callers = []"), "spiffe.callers is empty: name the SPIFFE IDs that may call"),
        (format!("{socket}callers = [\"*\"]"), "spiffe.callers: \"*\": expected a pattern that begins with spiffe://"),
        (format!("{socket}callers = [\"spiffe://[\"]"), "spiffe.callers: \"spiffe://[\": "),
        (format!("{socket}{callers}caller = 1"), "unknown field `caller`: did you mean `callers`?"),
        (format!("{socket}{callers}id = \"web\""), "spiffe.id: \"web\": expected a SPIFFE ID with a path"),
        (format!("{callers}socket = \"/run/api.sock\""), "spiffe.socket: \"/run/api.sock\": expected unix:///PATH"),
        (format!("{callers}socket = \"tcp://192.0.2.1:1\""), "with a loopback address"),
        (format!("{socket}{callers}call_grace = \"x\""), "call_grace: invalid value, expected a duration"),
    ] {
        let config = format!("[spiffe]\n{lines}\n");
        let refused = Agent::builder().listen("tcp://127.0.0.1:0").config(&config).try_start().err();
        let refused = refused.unwrap_or_else(|| panic!("{config}"));
        assert!(refused.log.contains(reason), "{config}: {}", refused.log);
    }
    let certs = Certs::new();
    let refused =
        Agent::builder().mtls(&certs).config(format!("[spiffe]\n{socket}{callers}")).try_start().err().unwrap();
    assert!(refused.log.contains("[spiffe] excludes tls_cert, tls_key, client_ca"), "{}", refused.log);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_may_have_tokens_instead() {
    let (certs, issuer) = (Certs::new(), TokenIssuer::new("https://issuer.example.org"));
    let tokens = issuer.table("corp", &certs.ca.directory().join("keys.json"), "");
    let mesh = Mesh::start_with(&tokens, |builder| builder);
    assert_eq!(identity(&mesh.connect().await).await.unwrap(), mesh.domain.id(CALLER));
    let files = telexec_client::TlsOptions::without_certificate(mesh.domain.ca().cert());
    let tls = telexec_client::TlsOptions { server_name: Some(mesh.agent_id()), ..files };
    let access_token = Some(AccessToken::Text(issuer.token("anna")));
    let options = telexec_client::ConnectOptions { tls: Some(tls), access_token, ..Default::default() };
    let target = mesh.agent.uri().parse().unwrap();
    let agent = within(telexec_client::Agent::connect(&target, options)).await.unwrap();
    assert_eq!(identity(&agent).await.unwrap(), "corp:anna");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_and_the_audit_log_know_callers_by_their_ids() {
    let policy = r#"
        @id("ops") permit(principal == Identity::"spiffe://example.org/ops/anna", action, resource);
    "#;
    let mesh = Mesh::start_with("", |builder| builder.policy(policy));
    identity(&mesh.connect().await).await.unwrap();
    let bob = mesh.connect_as(&mesh.domain.ca().issue(mesh.domain.leaf("ops/bob"))).await.unwrap();
    let denied = identity(&bob).await.unwrap_err().to_string();
    assert!(denied.contains("spiffe://example.org/ops/bob"), "{denied}");
}
