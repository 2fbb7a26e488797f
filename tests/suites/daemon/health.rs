//! `telexecd health`: what probes ask.

use rustix::process::Signal;
use telexec_executor::{Command, Executor};
use telexec_tests::{Agent, Certs, until};
use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;

use super::telexecd;

#[tokio::test(flavor = "multi_thread")]
async fn it_asks_where_the_agent_is_configured_to_listen() {
    let (unix, tcp) = (Agent::start(), Agent::builder().tcp().start());
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("telexecd.toml");
    std::fs::write(&config, format!("listen = [\"tcp://127.0.0.1:1\", {:?}]", unix.uri())).unwrap();
    let config = config.to_str().unwrap();
    for (args, environment) in [
        (&["health", unix.uri()][..], &[][..]),
        (&["health", tcp.uri()], &[]),
        (&["--listen", tcp.uri(), "--insecure", "health"], &[]),
        (&["--config", config, "health"], &[]),
        (&["health"], &[("TELEXECD_LISTEN", unix.uri())]),
    ] {
        assert_eq!(telexecd(args, environment).await, (0, String::new()), "{args:?}");
    }
}

/// Over mTLS only those with a certificate for clients can ask, which the agent has not.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_mtls_is_asked_on_its_unix_socket() {
    let certs = Certs::new();
    let directory = tempfile::tempdir().unwrap();
    let socket = format!("unix://{}/agent.sock", directory.path().display());
    let agent = Agent::builder().mtls(&certs).listen(&socket).start();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (cert, key, ca) = (text(&certs.agent.cert), text(&certs.agent.key), text(&certs.ca.cert()));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca, "--listen", agent.uri()];
    let both = [&tls[..], &["--listen", &socket, "health"]].concat();
    assert_eq!(telexecd(&both, &[]).await, (0, String::new()));
    let (code, said) = telexecd(&[&tls[..], &["health"]].concat(), &[]).await;
    assert!(code == 78 && said.contains("let it listen on a Unix socket too"), "{code}: {said}");
    let (code, said) = telexecd(&["health", agent.uri()], &[]).await;
    assert!(code == 1 && said.contains("requires a client certificate, and a health check has none"), "{code}: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_checked_is_said() {
    let (code, said) = telexecd(&["health"], &[]).await;
    assert!(code == 78 && said.contains("no address to check: give one"), "{code}: {said}");
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", other.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = other.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"220 mail.example.org ESMTP\r\n").await;
        }
    });
    let (code, said) = telexecd(&["health", &address], &[]).await;
    assert!(code == 1 && said.contains("no valid answer from tcp://"), "{code}: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_gone_or_hangs_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let (code, said) = telexecd(&["health", "unix:///no/agent.sock"], &[]).await;
    assert!(code == 1 && said.contains("cannot connect to unix:///no/agent.sock: is the agent running?"), "{said}");
    let path = directory.path().join("silent.sock");
    let silent = UnixListener::bind(&path).unwrap();
    let silence = tokio::spawn(async move {
        let (mut stream, _) = silent.accept().await.unwrap();
        stream.read_to_end(&mut Vec::new()).await
    });
    let uri = format!("unix://{}", path.display());
    let (code, said) = telexecd(&["health", "--timeout", "50ms", &uri], &[]).await;
    assert!(code == 1 && said.contains("no answer from") && said.contains("within 50ms"), "{said}");
    silence.await.unwrap().unwrap();
    for args in [&["health", "ftp://x"][..], &["health", "--timeout", "soon"]] {
        assert_eq!(telexecd(args, &[]).await.0, 2, "{args:?}");
    }
    assert_eq!(telexecd(&["health"], &[]).await.0, 78);
}

/// The way out of a balancer begins when the agent is asked to stop, not when it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_shuts_down_does_not_serve() {
    let mut agent = Agent::builder().config("shutdown_grace = \"1h\"").start();
    let executor = agent.executor().await;
    let running = executor.execute(Command::argv(["sleep", "300"]).build().unwrap()).await.unwrap();
    agent.signal(Signal::TERM);
    until("it does not serve", async || telexecd(&["health", agent.uri()], &[]).await.0 == 1).await;
    drop(running);
    assert!(agent.ended().await.success());
}
