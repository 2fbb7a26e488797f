//! The file of a Unix socket, and sockets that another has made.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use telexec_client::ConnectOptions;
use telexec_proto::v1::GetAgentRequest;
use telexec_tests::{Agent, AgentBuilder, Wire};

fn on(path: &Path) -> AgentBuilder {
    Agent::builder().listen(&format!("unix://{}", path.display()))
}

async fn answers(agent: &Agent) -> bool {
    Wire::connect(agent).await.unwrap().agent().get_agent(GetAgentRequest {}).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_private_and_removed_at_the_end() {
    let mut agent = Agent::builder().after("umask 0").start();
    let path = Path::new(agent.address()).to_owned();
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    assert!(agent.terminate().await.success());
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_a_dead_agent_left_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    on(&path).start().kill();
    assert!(path.exists());
    assert!(answers(&on(&path).start()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_in_use_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let first = on(&path).start();
    let refused = on(&path).try_start().expect_err("the socket is in use");
    assert!(!refused.status.success() && refused.log.contains("in use"), "{refused}");
    assert!(answers(&first).await);
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    std::fs::write(&path, "precious").unwrap();
    let refused = on(&path).try_start().expect_err("there is a file");
    assert!(!refused.status.success() && refused.log.contains("not a socket"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_listens_in_several_places() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let agent = on(&path).listen("tcp://127.0.0.1:0").listen("tcp://127.0.0.1:0").args(["--insecure"]).start();
    assert_eq!((agent.uris().len(), agent.address()), (3, path.to_str().unwrap()));
    for address in agent.uris()[1..].iter().map(|uri| uri.strip_prefix("tcp://").unwrap()) {
        assert!(!address.ends_with(":0"));
        Wire::over(Box::new(tokio::net::TcpStream::connect(address).await.unwrap())).await.unwrap();
    }
    assert!(answers(&agent).await);
}

/// vsock is there in most virtual machines.
fn vsock() -> Option<&'static str> {
    let there = Path::new("/dev/vsock").exists();
    if !there {
        eprintln!("skipped vsock: this machine has none");
    }
    there.then_some("vsock")
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_of_systemd_are_listened_on_and_their_files_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let unix = format!("unix:{}", path.display());
    let sockets: Vec<&str> = [&*unix, "tcp:127.0.0.1"].into_iter().chain(vsock()).collect();
    let mut agent = Agent::builder().args(["--insecure"]).passed(&sockets).start();
    let uris = agent.uris().to_vec();
    assert_eq!(uris[0], format!("unix://{}", path.display()));
    let tcp = uris[1].strip_prefix("tcp://127.0.0.1:").unwrap().parse().unwrap();
    assert!(uris.get(2).is_none_or(|uri| uri.starts_with("vsock://any:")), "{uris:?}");
    assert!(answers(&agent).await);
    Wire::over(Box::new(tokio::net::TcpStream::connect(("127.0.0.1", tcp)).await.unwrap())).await.unwrap();
    assert!(agent.terminate().await.success());
    assert!(path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_sockets_of_systemd_need_certificates_too() {
    let refused = Agent::builder().passed(&["tcp:127.0.0.1"]).try_start().expect_err("there are no certificates");
    assert!(refused.log.contains("--tls-cert"), "{refused}");
    let refused = Agent::builder().args(["--insecure"]).passed(&["tcp:0.0.0.0"]).try_start();
    let refused = refused.expect_err("others could connect");
    assert!(refused.log.contains("not a loopback address") && refused.status.code() == Some(78), "{refused}");
    let certs = telexec_tests::Certs::new();
    let agent = Agent::builder().mtls(&certs).passed(&["tcp:127.0.0.1"]).start();
    let options = ConnectOptions { tls: Some(certs.options(&certs.client)), ..Default::default() };
    let connected = telexec_client::Agent::connect(&agent.uris()[1].parse().unwrap(), options).await.unwrap();
    assert!(connected.info().await.is_ok());
}

#[test]
fn without_sockets_of_systemd_it_says_so() {
    for (agent, why) in [
        (Agent::builder().listen("systemd:"), "no sockets were passed"),
        (Agent::builder().listen("systemd:").env("LISTEN_FDS", "1"), "no sockets were passed"),
        (Agent::builder().listen("systemd:").env("LISTEN_FDS", "1").env("LISTEN_PID", "1"), "no sockets were passed"),
        (Agent::builder().passed(&["pair"]), "descriptor 3 is a connection"),
    ] {
        let refused = agent.try_start().expect_err("there is nothing to listen on");
        assert!(refused.log.contains(why), "{refused}");
    }
}

#[test]
fn vsock_has_a_real_port() {
    let Some(_) = vsock() else { return };
    let agent = Agent::builder().listen("vsock://any:0").start();
    let port: u32 = agent.uri().strip_prefix("vsock://any:").unwrap().parse().unwrap();
    assert!(port > 0 && port < u32::MAX);
}
