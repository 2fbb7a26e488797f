//! Forwards under a policy, and in the audit log.

use rustix::process::Signal;
use serde_json::{Value, json};
use telexec_client::{Endpoint, ForwardError, Forwards};
use telexec_executor::ExecutorError;
use telexec_tests::{Agent, Certs, Leaf, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Server, exchange, tcp};

/// The rule that denies it; `None`: it is permitted.
async fn denied(forwards: &Forwards, to: &str) -> Option<String> {
    let to = if to.starts_with('/') { Endpoint::Unix(to.to_owned()) } else { tcp(to) };
    rule(within(forwards.connect(to)).await)
}

fn rule<T>(done: Result<T, ForwardError>) -> Option<String> {
    match done {
        Ok(_) | Err(ForwardError::Failed(_)) => None,
        Err(ForwardError::Call(ExecutorError::Denied { rule, .. })) => Some(rule.unwrap_or_default()),
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_about_the_name_or_the_address_that_is_asked_for() {
    let certs = Certs::new();
    let policy = r#"
        @id("db") permit(principal, action == Action::"Forward", resource)
        when { context.host == "localhost" && context.port >= 1024 };
        @id("app") permit(principal, action == Action::"Forward", resource)
        when { context.unix_path like "/tmp/app/*" };
        @id("listen") permit(principal, action == Action::"Listen", resource)
        when { context.port == 0 && ["localhost", "0.0.0.0"].contains(context.host) };
        @id("never") forbid(principal, action in Action::"ports", resource)
        when { context has port && context.port == 6667 };
        @id("not") forbid(principal, action == Action::"Forward", resource)
        when { context.port == 6666 && resource.hostname != "" };
    "#;
    let agent = Agent::builder().mtls(&certs).policy(policy).start();
    let forwards = agent.connect().await.forwards();
    for (to, rule) in [
        ("localhost:1024", None),
        ("LOCALHOST:65000", None),
        ("localhost.:2000", None),
        ("localhost:80", Some("default")),
        ("localhost:6666", Some("not")),
        ("localhost:6667", Some("never")),
        ("127.0.0.1:2000", Some("default")),
        ("example.org:2000", Some("default")),
        // what looks at the port of a Unix socket, which has none, forbids
        ("/tmp/app/a", Some("not")),
        ("/tmp/other", Some("not")),
    ] {
        assert_eq!(denied(&forwards, to).await.as_deref(), rule, "{to}");
    }
    for (at, expected) in
        [("localhost:0", None), (":0", None), ("0.0.0.0:0", None), ("localhost:2000", Some("default"))]
    {
        assert_eq!(rule(forwards.listen(&tcp(at)).await).as_deref(), expected, "{at}");
    }
    let Err(ForwardError::Call(ExecutorError::Denied { reason, nearest, .. })) =
        forwards.connect(tcp("localhost:80")).await
    else {
        panic!("it is denied")
    };
    assert!(reason.contains("Forward") && reason.contains("context.port >= 1024"), "{reason}");
    assert_eq!(nearest.as_deref(), Some("db"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_permitted_any_more_is_ended() {
    let certs = Certs::new();
    let echo = Server::echo().await;
    let before = "@id(\"all\") permit(principal, action, resource);";
    let agent = Agent::builder().mtls(&certs).policy(before).start();
    let [anna, bob] = ["anna", "bob"].map(|name| certs.ca.issue(Leaf::client(name)));
    let (annas, bobs) = (agent.connect_as(&anna).await.forwards(), agent.connect_as(&bob).await.forwards());
    let mut connection = annas.connect(echo.dial()).await.unwrap();
    let mut listening = annas.listen(&tcp("localhost:0")).await.unwrap();
    let mut others = bobs.connect(echo.dial()).await.unwrap();
    let after = "@id(\"out\") forbid(principal == Identity::\"anna\", action in Action::\"ports\", resource);";
    std::fs::write(agent.policy(), format!("{before}{after}")).unwrap();
    agent.signal(Signal::HUP);
    let error = within(connection.read_u8()).await.unwrap_err().downcast::<ForwardError>().unwrap();
    assert_eq!(rule::<()>(Err(error)).as_deref(), Some("out"));
    assert_eq!(rule(within(listening.accept()).await).as_deref(), Some("out"));
    others.write_all(b"on").await.unwrap();
    assert_eq!(exchange(others, b"").await, b"on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_ends_what_it_forwards() {
    let certs = Certs::new();
    let echo = Server::echo().await;
    let crl = certs.ca.directory().join("crl.pem");
    std::fs::write(&crl, certs.ca.revocation_list(&[])).unwrap();
    let agent = Agent::builder().mtls(&certs).args(["--client-crl", crl.to_str().unwrap()]).start();
    let mut connection = agent.connect().await.forwards().connect(echo.dial()).await.unwrap();
    std::fs::write(&crl, certs.ca.revocation_list(&[&certs.client])).unwrap();
    agent.signal(Signal::HUP);
    let error = within(connection.read_u8()).await.unwrap_err().downcast::<ForwardError>().unwrap();
    assert!(matches!(error, ForwardError::Call(ExecutorError::Unauthenticated { .. })), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_has_the_beginning_and_the_end() {
    let certs = Certs::new();
    let echo = Server::echo().await;
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit.log");
    let port = echo.address.port();
    let policy = format!(
        "@id(\"echo\") permit(principal, action == Action::\"Forward\", resource) when {{ context.port == {port} }};"
    );
    let config = format!("[audit]\nfile = {:?}", log.to_str().unwrap());
    let agent = Agent::builder().mtls(&certs).policy(policy).config(config).start();
    let forwards = agent.connect().await.forwards();
    assert!(denied(&forwards, "localhost:1").await.is_some());
    let connection = forwards.connect(echo.dial()).await.unwrap();
    assert_eq!(exchange(connection, b"12345").await, b"12345");
    let mut records = Vec::new();
    until("all is recorded", async || {
        let text = std::fs::read_to_string(&log).unwrap();
        let parsed = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        records = parsed.filter(|record| record["rpc"] == "Connect").collect();
        records.len() == 3
    })
    .await;
    let told: Vec<_> = records
        .iter()
        .map(|record| json!([record["event"], record["action"], record["host"], record["port"], record["decision"]]))
        .collect();
    assert_eq!(
        told,
        [
            json!(["call", "Forward", "localhost", 1, "deny"]),
            json!(["call", "Forward", "127.0.0.1", port, "allow"]),
            json!(["forward", "Forward", "127.0.0.1", port, null]),
        ]
    );
    let end = &records[2];
    assert_eq!(json!([end["cause"], end["received_bytes"], end["sent_bytes"]]), json!(["closed", 5, 5]));
    assert_eq!((&end["identity"], &records[0]["error"]), (&json!("client"), &json!("denied")));
}
