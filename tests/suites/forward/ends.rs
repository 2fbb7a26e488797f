//! How connections end: resets, and what is left of clients and agents that go.

use std::io::ErrorKind;

use rustix::process::Signal;
use telexec_client::{Dial, ForwardError, ForwardStep};
use telexec_executor::ExecutorError;
use telexec_tests::{Agent, Scrape, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::{Server, Site, broken, exchange, reset};

/// Whether the other side of each of its connections was reset (true) or closed.
async fn witness() -> (Server, mpsc::UnboundedReceiver<bool>) {
    let (told, ends) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream| {
        let told = told.clone();
        async move {
            let mut buffer = [0; 4096];
            stream.write_all(b"hello").await.unwrap();
            let was_reset = loop {
                match stream.read(&mut buffer).await {
                    Ok(0) => break false,
                    Ok(_) => {}
                    Err(_) => break true,
                }
            };
            told.send(was_reset).unwrap();
        }
    })
    .await;
    (server, ends)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_resets_is_one_that_resets_and_breaks_nothing() {
    let (site, echo) = (Site::start(""), Server::echo().await);
    let rude = Server::start(|mut stream| async move {
        let _ = stream.read_u8().await;
        reset(stream);
    })
    .await;
    let (to, other) = (rude.on_any_port(), echo.on_any_port());
    let forward = site.forward(&["-L", &to, "-R", &to, "-L", &other]).await;
    // the sockets of -L come before those of -R
    let mut beside = forward.dial(1).await;
    for flag in [0, 2] {
        for _ in 0..50 {
            let mut stream = forward.dial(flag).await;
            stream.write_all(b"x").await.unwrap();
            assert_eq!(broken(&mut stream).await, ErrorKind::ConnectionReset, "{flag}");
        }
    }
    for _ in 0..100 {
        assert_eq!(exchange(forward.dial(1).await, b"fine").await, b"fine");
    }
    beside.write_all(b"still").await.unwrap();
    assert_eq!(exchange(beside, b" here").await, b"still here");

    let mut connection = site.agent.connect().await.forwards().connect(rude.dial()).await.unwrap();
    connection.write_all(b"x").await.unwrap();
    let error = within(connection.read_u8()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    match error.downcast::<ForwardError>() {
        Ok(ForwardError::Failed(failure)) => {
            assert_eq!((failure.step, failure.errno.as_str()), (ForwardStep::Carry, "ECONNRESET"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_before_a_reset_arrives_as_far_as_with_tcp() {
    let site = Site::start("");
    // answers, and closes without having read everything
    let hasty = Server::start(|mut stream| async move {
        stream.write_all(b"too long").await.unwrap();
        let _ = stream.read_u8().await;
    })
    .await;
    let forward = site.forward(&["-L", &hasty.on_any_port()]).await;
    let mut stream = forward.dial(0).await;
    let mut answer = [0; 8];
    within(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"too long");
    stream.write_all(&[0; 4096]).await.unwrap();
    assert_eq!(broken(&mut stream).await, ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resets_or_closes_is_seen_to() {
    let site = Site::start("");
    let (server, mut ends) = witness().await;
    let to = server.on_any_port();
    let forward = site.forward(&["-L", &to, "-R", &to]).await;
    for flag in [0, 1] {
        let mut stream = forward.dial(flag).await;
        within(stream.read_exact(&mut [0; 5])).await.unwrap();
        reset(stream);
        assert_eq!(within(ends.recv()).await, Some(true), "reset by {flag}");
        let mut stream = forward.dial(flag).await;
        within(stream.read_exact(&mut [0; 5])).await.unwrap();
        drop(stream);
        assert_eq!(within(ends.recv()).await, Some(false), "closed by {flag}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_client_that_is_killed_nothing_is_left() {
    let certs = telexec_tests::Certs::new();
    let agent = Agent::builder().mtls(&certs).args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    let site = Site { agent, certs };
    let (server, mut ends) = witness().await;
    let to = server.on_any_port();
    let mut forward = site.forward(&["-L", &to, "-R", &to]).await;
    let mut open = Vec::new();
    for at in 0..20 {
        let mut stream = forward.dial(at % 2).await;
        within(stream.read_exact(&mut [0; 5])).await.unwrap();
        open.push(stream);
    }
    let count = async || Scrape::of(&site.agent).await.value("telexec_forwards");
    assert_eq!(count().await, 21.0);
    forward.child.start_kill().unwrap();
    for _ in 0..20 {
        assert!(within(ends.recv()).await.is_some());
    }
    until("no forward is open", async || count().await == 0.0).await;
    let refused = tokio::net::TcpStream::connect(forward.at(1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_shuts_down_ends_them_at_once() {
    let mut site = Site::start("shutdown_grace = \"30s\"");
    let (server, mut ends) = witness().await;
    let forwards = site.agent.connect().await.forwards();
    let mut connection = forwards.connect(server.dial()).await.unwrap();
    within(connection.read_exact(&mut [0; 5])).await.unwrap();
    let mut listening = forwards.listen(&super::tcp("localhost:0")).await.unwrap();
    site.agent.signal(Signal::TERM);
    assert_eq!(within(ends.recv()).await, Some(true));
    let error = within(connection.read_u8()).await.unwrap_err().downcast::<ForwardError>().unwrap();
    assert!(matches!(error, ForwardError::Call(ExecutorError::ShuttingDown)), "{error:?}");
    let error = within(listening.accept()).await.unwrap_err();
    assert!(matches!(error, ForwardError::Call(ExecutorError::ShuttingDown)), "{error:?}");
    assert!(within(site.agent.ended()).await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_closed_and_dropped_delivers_all() {
    let (site, count) = (Site::start(""), Server::count().await);
    let forwards = site.agent.connect().await.forwards();
    let mut connection = forwards.connect(Dial::from(count.endpoint())).await.unwrap();
    connection.write_all(&vec![7; 3_000_000]).await.unwrap();
    connection.shutdown().await.unwrap();
    let mut answer = String::new();
    within(connection.read_to_string(&mut answer)).await.unwrap();
    assert_eq!(answer, "3000000");
    within(connection.finish()).await.unwrap();
}
