//! What goes in comes out.

use std::os::unix::fs::PermissionsExt;

use telexec_client::Endpoint;
use telexec_tests::{Agent, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::{Forward, Server, Site, exchange};

/// More than all windows and buffers together.
fn long() -> Vec<u8> {
    (0..12 * 1024 * 1024_u32).map(|at| (at ^ at >> 9) as u8).collect()
}

async fn through(forward: &Forward, flag: usize, data: &[u8]) -> Vec<u8> {
    exchange(forward.dial(flag).await, data).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_exact_in_both_directions_of_both_kinds() {
    let (site, echo) = (Site::start(""), Server::echo().await);
    let to = echo.on_any_port();
    let forward = site.forward(&["-L", &to, "-R", &to]).await;
    for (flag, letter) in [(0, "-L"), (1, "-R")] {
        assert!(forward.lines[flag].starts_with(&format!("{letter} 127.0.0.1:")), "{:?}", forward.lines);
        assert!(forward.lines[flag].ends_with(&format!(" -> {}", echo.address)), "{:?}", forward.lines);
        for data in [&b""[..], b"x", &long()] {
            assert!(through(&forward, flag, data).await == data, "{} bytes by {letter}", data.len());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_arrives_while_the_connection_is_open() {
    let (site, echo) = (Site::start(""), Server::echo().await);
    let forward = site.forward(&["-L", &echo.on_any_port()]).await;
    let mut stream = forward.dial(0).await;
    for text in [b"one", b"two"] {
        stream.write_all(text).await.unwrap();
        let mut answer = [0; 3];
        within(stream.read_exact(&mut answer)).await.unwrap();
        assert_eq!(&answer, text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_direction_may_be_closed_before_the_other() {
    let (site, count) = (Site::start(""), Server::count().await);
    let to = count.on_any_port();
    let forward = site.forward(&["-L", &to, "-R", &to]).await;
    for flag in [0, 1] {
        assert_eq!(through(&forward, flag, &long()).await, long().len().to_string().as_bytes());
    }
    // the other one first
    let greeting = Server::start(|mut stream| async move {
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "later");
        let _ = tokio::fs::write(
            std::env::temp_dir().join(format!("telexec-{}", stream.local_addr().unwrap().port())),
            all,
        )
        .await;
    })
    .await;
    let forward = site.forward(&["-L", &greeting.on_any_port()]).await;
    let mut stream = forward.dial(0).await;
    let mut said = String::new();
    within(stream.read_to_string(&mut said)).await.unwrap();
    assert_eq!(said, "hello");
    stream.write_all(b"later").await.unwrap();
    drop(stream);
    let told = std::env::temp_dir().join(format!("telexec-{}", greeting.address.port()));
    until("the rest has arrived", async || std::fs::read(&told).is_ok_and(|text| text == b"later")).await;
    std::fs::remove_file(told).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unix_sockets_are_forwarded_to_and_from() {
    let (site, echo) = (Site::start(""), Server::echo().await);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let listener = UnixListener::bind(path("service")).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut reader, mut writer) = stream.split();
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        }
    });
    let (here, there) = (format!("{}:{}", path("here"), echo.address), format!("{}:{}", path("there"), echo.address));
    let service = format!("0:{}", path("service"));
    let mut forward = site.forward(&["-L", &here, "-R", &there, "-L", &service]).await;
    // on both machines in the order of -L, -R
    assert_eq!(through(&forward, 1, b"to a Unix socket").await, b"to a Unix socket");
    for name in ["here", "there"] {
        let mode = std::fs::metadata(path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
        let stream = UnixStream::connect(path(name)).await.unwrap();
        assert_eq!(exchange(stream, b"from a Unix socket").await, b"from a Unix socket");
    }
    forward.signal(rustix::process::Signal::INT);
    assert_eq!(within(forward.child.wait()).await.unwrap().code(), Some(130));
    until("nothing is left", async || !["here", "there"].iter().any(|name| directory.path().join(name).exists())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_connections_at_once_are_two_hundred() {
    let (site, echo) = (Site::start(""), Server::echo().await);
    let forward = site.forward(&["-L", &echo.on_any_port()]).await;
    let mut open = Vec::new();
    for at in 0..200_u32 {
        let mut stream = forward.dial(0).await;
        stream.write_all(&at.to_be_bytes()).await.unwrap();
        open.push(stream);
    }
    for (at, stream) in open.iter_mut().enumerate() {
        assert_eq!(within(stream.read_u32()).await.unwrap() as usize, at);
    }
    for stream in open {
        assert_eq!(exchange(stream, b"bye").await, b"bye");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_target_local_forwards_too() {
    let echo = Server::echo().await;
    let site = Site { agent: Agent::start(), certs: telexec_tests::Certs::new() };
    let forwards = site.agent.connect().await.forwards();
    let connection = forwards.connect(echo.dial()).await.unwrap();
    assert_eq!(connection.peer(), Some(&Endpoint::Tcp { host: "127.0.0.1".into(), port: echo.address.port() }));
    assert_eq!(exchange(connection, b"over a Unix socket").await, b"over a Unix socket");
    let mut command = tokio::process::Command::new(telexec_tests::program("telexec"));
    command.args(["connect", "local", &echo.address.to_string()]).stdin(std::process::Stdio::null());
    let output = within(command.output()).await.unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
}
