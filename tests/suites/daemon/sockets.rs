//! The file of a Unix socket.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
