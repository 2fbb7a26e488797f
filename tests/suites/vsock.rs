//! Agents in virtual machines: by way of a hypervisor's Unix socket, and over the kernel's own loopback.

use std::path::Path;

use telexec_client::{ConnectError, ConnectOptions};
use telexec_tests::{Agent, within};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

const PORT: u32 = 5000;

/// Does what a hypervisor does on its socket: connects callers to the agent, which its machine has on one port.
async fn hypervisor(listener: UnixListener, agent: String) {
    while let Ok((stream, _)) = listener.accept().await {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        if line == format!("CONNECT {PORT}\n") {
            let mut agent = UnixStream::connect(&agent).await.unwrap();
            // with what the agent says first, so that nothing of it may be taken for the answer
            stream.write_all(b"OK 1073741824\n").await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut agent).await });
        }
    }
}

async fn connect(uri: &str) -> Result<telexec_client::Agent, ConnectError> {
    within(telexec_client::Agent::connect(&uri.parse().unwrap(), ConnectOptions::default())).await
}

fn uri(path: &Path, port: u32) -> String {
    format!("vsock-uds://{}:{port}", path.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_reached_by_its_hypervisor() {
    let agent = Agent::start();
    let path = agent.directory().join("machine.vsock");
    let hypervisor = tokio::spawn(hypervisor(UnixListener::bind(&path).unwrap(), agent.address().to_owned()));
    let output = within(
        tokio::process::Command::new(telexec_tests::program("telexec"))
            .args(["exec", &uri(&path, PORT), "--", "echo", "through"])
            .output(),
    )
    .await
    .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "through\n", "{}", String::from_utf8_lossy(&output.stderr));
    let error = connect(&uri(&path, PORT + 1)).await.expect_err("nothing listens there");
    assert!(matches!(&error, ConnectError::Unreachable { source, .. } if source.to_string().contains("on this port")));
    hypervisor.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_hypervisor_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("machine.vsock");
    let listener = UnixListener::bind(&path).unwrap();
    for (answer, why) in [
        ("".to_owned(), "refused"),
        ("NO\n".to_owned(), "answered"),
        ("x".repeat(1000), "not a hypervisor"),
        ("OK 1\n".to_owned(), "closed the connection"),
        ("OK 1\nSSH-2.0-x\r\n".to_owned(), "not a telexec agent"),
    ] {
        let uri = uri(&path, PORT);
        let (connected, ()) = tokio::join!(connect(&uri), async {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            stream.read_line(&mut String::new()).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let Err(ConnectError::Unreachable { source, .. }) = connected else { panic!("{answer}") };
        assert!(source.to_string().contains(why), "{source}");
    }
}

/// Any user of this machine may come by the loopback, so it takes what plaintext on loopback TCP takes.
#[tokio::test(flavor = "multi_thread")]
async fn this_machine_is_let_in_where_that_was_asked_for() {
    if !Path::new("/sys/module/vsock_loopback").exists() {
        return eprintln!("skipped: the kernel has no vsock loopback");
    }
    let open = Agent::builder().listen("vsock://any:0").args(["--insecure"]).start();
    let own = |agent: &Agent| agent.uri().replace("any", "1");
    assert_eq!(connect(&own(&open)).await.unwrap().info().await.unwrap().identity, "vsock:cid=1");
    let closed = Agent::builder().listen("vsock://any:0").start();
    assert!(connect(&own(&closed)).await.is_err());
    assert!(closed.log().contains("not this machine's host"), "{}", closed.log());
}
