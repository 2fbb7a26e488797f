//! Where metrics are served, and who gets them.

use futures_util::future::join_all;
use rustls::pki_types::ServerName;
use telexec_executor::Command;
use telexec_tests::{Agent, Certs, Scrape, ask, dial, metrics_address, run, telexecd};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsConnector;

use super::metered;

#[tokio::test(flavor = "multi_thread")]
async fn only_metrics_are_served() {
    let agent = metered().start();
    let address = metrics_address(&agent);
    for (request, status) in [
        ("GET /metrics?name[]=up", "200 OK"),
        ("GET /", "404 Not Found"),
        ("GET /metrics/..", "404 Not Found"),
        ("POST /metrics", "405 Method Not Allowed"),
        ("DELETE /metrics", "405 Method Not Allowed"),
        ("PRI *", "404 Not Found"),
    ] {
        let answer = ask(dial(&address).await, request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {answer}");
    }
    let long = format!("GET /metrics?{}", "x".repeat(100_000));
    let answer = ask(dial(&address).await, &long).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    Scrape::of(&agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_being_asked_for_there_are_none() {
    let agent = Agent::start();
    assert!(!agent.log().contains("metrics on"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_is_for_the_agents_user() {
    use std::os::unix::fs::PermissionsExt;

    let directory = telexec_tests::directory();
    let path = directory.path().join("metrics.sock");
    let agent = Agent::builder().args(["--metrics-listen", &format!("unix://{}", path.display())]).start();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(Scrape::of(&agent).await.value("telexec_connections"), 0.0);
    drop(agent);
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn other_machines_need_a_certificate() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).args(["--metrics-listen", "tcp://0.0.0.0:0"]).start();
    let address = metrics_address(&agent).replace("0.0.0.0", "127.0.0.1");
    let over_tls = async |pair| {
        let mut config = (*certs.config(pair)).clone();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        match TlsConnector::from(std::sync::Arc::new(config)).connect(name, dial(&address).await).await {
            Ok(stream) => ask(stream, "GET /metrics").await,
            Err(_) => String::new(),
        }
    };
    let answer = over_tls(Some(&certs.client)).await;
    assert!(answer.contains("\ntelexec_executions_running 0"), "{answer}");
    for refused in [over_tls(None).await, ask(dial(&address).await, "GET /metrics").await] {
        assert!(!refused.contains("telexec"), "{refused}");
    }
}

#[test]
fn without_certificates_other_machines_get_no_metrics() {
    let directory = telexec_tests::directory();
    let listen = format!("unix://{}", directory.path().join("agent.sock").display());
    for (uri, why) in [
        ("tcp://0.0.0.0:0", "metrics_listen: 0.0.0.0:0 is not a loopback address: set tls_cert, tls_key and client_ca"),
        ("vsock://any:0", "metrics_listen: expected tcp://host:port or unix:///path.sock"),
        ("http://127.0.0.1:0", "http://127.0.0.1:0: expected unix:///path.sock"),
    ] {
        for check in [None, Some("--check-config")] {
            let args = ["--listen", &listen, "--metrics-listen", uri];
            let output = telexecd().args(args.into_iter().chain(check)).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(78) && said.contains(why), "{uri}: {said}");
        }
    }
}

/// They take all places, and give them back when their time is over.
#[tokio::test(flavor = "multi_thread")]
async fn scrapers_that_do_nothing_are_in_nobodys_way_for_long() {
    let agent = metered().start();
    let address = metrics_address(&agent);
    let silent = join_all((0..20).map(|_| dial(&address))).await;
    let mut deaf = Vec::new();
    for _ in 0..20 {
        let mut stream = dial(&address).await;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        deaf.push(stream);
    }
    let mut slow = dial(&address).await;
    slow.write_all(b"GET /metrics HTTP/1.1\r\nhost:").await.unwrap();
    run(&agent.executor().await, Command::shell("true")).await.unwrap();
    assert_eq!(Scrape::of(&agent).await.value("telexec_executions_total{cause=\"exited\"}"), 1.0);
    drop((silent, deaf, slow));
}
