//! Peers without a certificate, whose calls have no token that is accepted.

use futures_util::future::join_all;
use rustls::pki_types::ServerName;
use telexec_client::AccessToken;
use telexec_executor::{Command, ExecutorError};
use telexec_proto::v1::ExecuteRequest;
use telexec_tests::{Agent, Certs, TokenIssuer, Wire, metrics_address, run, until, within};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsConnector;
use tonic::{Code, Status};

use super::{ISSUER, Tokened, ask, identity};

#[tokio::test(flavor = "multi_thread")]
async fn they_reach_no_service() {
    let tokened = Tokened::start("");
    let refused = |result: Result<(), Status>| {
        let status = result.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    };
    let wire = tokened.stranger().await;
    refused(ask(&wire, None).await.map(drop));
    let request = ExecuteRequest { argv: vec!["true".into()], ..Default::default() };
    refused(within(wire.executions().execute(request)).await.map(drop));
    let request = telexec_proto::v1::ListDirectoryRequest { path: "/".into(), ..Default::default() };
    refused(within(wire.files().list_directory(request)).await.map(drop));
    refused(within(wire.health().check(tonic_health::pb::HealthCheckRequest::default())).await.map(drop));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_few_calls_their_connection_is_closed() {
    let tokened = Tokened::start("");
    let token = tokened.issuer.token("anna");
    let wire = tokened.stranger().await;
    let mut refused = 0;
    let lost = loop {
        let status = ask(&wire, Some("x.y.z")).await.unwrap_err();
        if status.code() != Code::Unauthenticated {
            break status;
        }
        refused += 1;
        assert!(refused < 100, "it stays open");
    };
    assert!(refused <= 8, "{refused}: {lost:?}");
    until("it is closed", async || !wire.is_open()).await;
    // one that was accepted once may be wrong later
    let wire = tokened.stranger().await;
    assert_eq!(ask(&wire, Some(&token)).await.unwrap(), "corp:anna");
    for _ in 0..50 {
        assert_eq!(ask(&wire, None).await.unwrap_err().code(), Code::Unauthenticated);
    }
    assert_eq!(ask(&wire, Some(&token)).await.unwrap(), "corp:anna");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_at_once_are_verified_one_after_the_other() {
    let tokened = Tokened::start("");
    let (good, stranger_to_it) = (tokened.issuer.token("anna"), TokenIssuer::new(ISSUER));
    let bad = stranger_to_it.sign_with(&tokened.issuer.header(), serde_json::json!({"sub": "anna"}));
    let wire = tokened.stranger().await;
    let answers = join_all((0..200).map(|_| ask(&wire, Some(&bad)))).await;
    let verified = |answer: &Result<_, Status>| {
        answer.as_ref().is_err_and(|status| status.message().contains("its signature is not by a key"))
    };
    assert!(answers.iter().all(Result::is_err) && answers.iter().filter(|answer| verified(answer)).count() <= 8);
    until("it is closed", async || !wire.is_open()).await;
    // the first that is accepted is that of all
    let wire = tokened.stranger().await;
    for answer in join_all((0..200).map(|_| ask(&wire, Some(&good)))).await {
        assert_eq!(answer.unwrap(), "corp:anna");
    }
}

/// Neither messages of a call before it is known who makes it, nor anything after many of them.
#[tokio::test(flavor = "multi_thread")]
async fn little_is_read_of_them_and_they_cannot_stay() {
    let tokened = Tokened::start("");
    let connector = TlsConnector::from(tokened.certs.config(None));
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = within(connector.connect(name, Wire::dial(&tokened.agent).await)).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    // they answer nothing, and read no answers either
    let pings = [b"\0\0\x08\x06\0\0\0\0\0".as_slice(), b"12345678"].concat().repeat(1000);
    let mut sent = 0;
    let closed = async {
        while stream.write_all(&pings).await.is_ok() {
            sent += pings.len();
        }
    };
    within(closed).await;
    assert!(sent < 8 * 1024 * 1024, "{sent} bytes");
}

/// The rest of a refused call, which nobody reads, holds up no other call for long.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_large_call_that_is_refused_another_connection_is_made() {
    let log = "log_level = \"telexec_server::http2=debug\"";
    let tokened = Tokened::start_with("", log, |builder, certs| builder.tls(certs));
    let file = tokened.certs.ca.directory().join("token");
    let command = Command::argv(["wc", "-c"]).stdin(vec![b'x'; 300_000]);
    // how much of it is sent before the refusal arrives is up to the machine
    until("its connection is closed", async || {
        std::fs::write(&file, "x.y.z").unwrap();
        let agent = tokened.connect(Some(AccessToken::File(file.clone()))).await;
        let refused = run(&agent.executor(), command.clone()).await.unwrap_err();
        assert!(matches!(refused, ExecutorError::Unauthenticated { .. }), "{refused:?}");
        std::fs::write(&file, tokened.issuer.token("anna")).unwrap();
        until("it is known who calls", async || identity(&agent).await.is_ok()).await;
        let log = tokened.agent.log();
        log.contains("closing a connection that is nobody's") && log.contains("Exhausted")
    })
    .await;
    // with the first call it is as large as any
    let agent = tokened.connect(Some(AccessToken::File(file))).await;
    let command = Command::argv(["wc", "-c"]).stdin(vec![b'x'; 3_000_000]);
    assert_eq!(run(&agent.executor(), command).await.unwrap().stdout, b"3000000\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_ones_take_no_connection_from_others() {
    let config = "max_connections = 4\nmax_connections_per_identity = 3\nmax_connections_per_source = 4";
    let tokened = Tokened::start_with("", config, |builder, certs| builder.tls(certs));
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(tokened.stranger().await);
    }
    let token = tokened.issuer.token("anna");
    let mut hers = Vec::new();
    for _ in 0..3 {
        let wire = tokened.stranger().await;
        assert_eq!(ask(&wire, Some(&token)).await.unwrap(), "corp:anna");
        hers.push(wire);
    }
    let fourth = tokened.stranger().await;
    assert!(ask(&fourth, Some(&token)).await.is_err());
    until("it is closed", async || !fourth.is_open()).await;
    let bob = tokened.stranger().await;
    assert_eq!(ask(&bob, Some(&tokened.issuer.token("bob"))).await.unwrap(), "corp:bob");
    // a connection that is gone has left its place
    drop(hers);
    let anna = tokened.with(&token).await;
    until("there is room", async || identity(&anna).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_certificates() {
    let (certs, issuer) = (Certs::new(), TokenIssuer::new(ISSUER));
    let keys = certs.ca.directory().join("keys.json");
    let config = format!("metrics_listen = \"tcp://0.0.0.0:0\"\n{}", issuer.table("corp", &keys, ""));
    let agent = Agent::builder().config(config.clone()).mtls(&certs).start();
    let address = format!("localhost:{}", metrics_address(&agent).rsplit_once(':').unwrap().1);
    let curl = async |more: &[&str]| {
        let ca = certs.ca.cert();
        let mut command = tokio::process::Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "20", "--cacert"]).arg(&ca).args(more);
        within(command.arg(format!("https://{address}/metrics")).output()).await.unwrap()
    };
    let refused = curl(&[]).await;
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let pair = [text(&certs.client.cert), text(&certs.client.key)];
    let scraped = curl(&["--cert", &pair[0], "--key", &pair[1]]).await;
    assert!(String::from_utf8_lossy(&scraped.stdout).contains("# EOF"), "{scraped:?}");
    // where there are none, metrics are not served to other machines
    let refused = Agent::builder().config(config).tls(&certs).try_start().err().unwrap();
    assert!(refused.log.contains("metrics_listen: 0.0.0.0:0 is not a loopback address"), "{}", refused.log);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_has_them_and_whom_tokens_name() {
    let log = tempfile::tempdir().unwrap();
    let file = log.path().join("audit.log");
    let config = format!("[audit]\nfile = {file:?}\n");
    let tokened = Tokened::start_with("", &config, |builder, certs| builder.tls(certs));
    let wire = tokened.stranger().await;
    let token = tokened.issuer.sign(serde_json::json!({"sub": "anna", "jti": "token-7"}));
    ask(&wire, None).await.unwrap_err();
    assert_eq!(ask(&wire, Some(&token)).await.unwrap(), "corp:anna");
    let anna = tokened.with(&token).await;
    run(&anna.executor(), Command::argv(["true"])).await.unwrap();
    let records = async || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<serde_json::Value>>()
    };
    let find = |records: &[serde_json::Value], kind: &str| {
        records
            .iter()
            .find(|record| record["kind"] == kind || record["type"] == kind || record["event"] == kind)
            .cloned()
    };
    until("the end is in it", async || find(&records().await, "end").is_some()).await;
    let records = records().await;
    let start = find(&records, "start").unwrap();
    assert_eq!((start["identity"].as_str(), start["transport"].as_str()), (Some("corp:anna"), Some("tls")));
    assert_eq!(start["token_id"], "token-7");
    assert!(start.get("presented_by").is_none(), "{start}");
    let refused = records.iter().find(|record| record["identity"] == "tls:anonymous").unwrap();
    assert_eq!(refused["rpc"], "GetAgent");
    assert!(refused["message"].as_str().unwrap().contains("the call has no token"), "{refused}");
    assert!(!std::fs::read_to_string(&file).unwrap().contains(&token));
}
