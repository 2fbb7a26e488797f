//! Sockets that listen on the agent's machine.

use std::io::ErrorKind;

use telexec_client::{Dial, Endpoint, ForwardError, ForwardStep};
use telexec_executor::ExecutorError;
use telexec_tests::{Leaf, Proxy, within};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use super::{Server, Site, exchange, tcp};

#[tokio::test(flavor = "multi_thread")]
async fn other_addresses_than_of_the_loopback_have_to_be_allowed() {
    let site = Site::start("");
    let forwards = site.agent.connect().await.forwards();
    for host in ["localhost:0", "127.0.0.1:0", "127.0.0.2:0", "::1:0", ":0"] {
        match forwards.listen(&tcp(host)).await {
            // not every machine has IPv6
            Err(ForwardError::Failed(failure)) if host == "::1:0" => assert_eq!(failure.errno, "EADDRNOTAVAIL"),
            listening => {
                let Endpoint::Tcp { host, port } = listening.unwrap().endpoint().clone() else { panic!() };
                assert!(port > 0 && (host.starts_with("127.") || host == "::1"), "{host}");
            }
        }
    }
    for host in ["0.0.0.0:0", "*:0", ":::0", "example.org:0"] {
        let error = forwards.listen(&tcp(host)).await.unwrap_err();
        let ForwardError::Call(ExecutorError::Denied { reason, .. }) = &error else { panic!("{error:?}") };
        assert!(reason.contains("allow_remote_bind"), "{reason}");
    }
    let open = Site::start("allow_remote_bind = true");
    let listening = open.agent.connect().await.forwards().listen(&tcp("0.0.0.0:0")).await.unwrap();
    assert!(listening.endpoint().to_string().starts_with("0.0.0.0:"));
    let any = open.agent.connect().await.forwards().listen(&tcp("*:0")).await.unwrap();
    let Endpoint::Tcp { port, .. } = any.endpoint() else { panic!() };
    within(TcpStream::connect(("127.0.0.1", *port))).await.unwrap();
    let error = open.agent.connect().await.forwards().listen(&tcp("203.0.113.1:0")).await.unwrap_err();
    let ForwardError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!((failure.step, failure.errno.as_str()), (ForwardStep::Listen, "EADDRNOTAVAIL"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_family_takes_the_place_of_a_port_that_is_taken() {
    let site = Site::start("");
    let forwards = site.agent.connect().await.forwards();
    for loopback in ["127.0.0.1:0", "[::1]:0"] {
        // not every machine has IPv6
        let Ok(taken) = TcpListener::bind(loopback).await else { continue };
        let port = taken.local_addr().unwrap().port();
        let error = forwards.listen(&tcp(&format!("localhost:{port}"))).await.unwrap_err();
        let ForwardError::Failed(failure) = &error else { panic!("{error:?}") };
        assert_eq!((failure.step, failure.errno.as_str()), (ForwardStep::Listen, "EADDRINUSE"), "{loopback}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_accepted_is_taken_once_by_its_caller_or_closed() {
    let site = Site::start("");
    let forwards = site.agent.connect().await.forwards();
    let mut listening = forwards.listen(&tcp("localhost:0")).await.unwrap();
    let at = listening.endpoint().to_string();
    let mut taken = TcpStream::connect(&at).await.unwrap();
    let accepted = within(listening.accept()).await.unwrap();
    assert_eq!(accepted.peer, Some(tcp(&taken.local_addr().unwrap().to_string())));
    let take = Dial::Accepted(accepted.id);
    let stranger = site.agent.connect_as(&site.certs.ca.issue(Leaf::client("other"))).await.forwards();
    let error = stranger.connect(take.clone()).await.unwrap_err();
    assert!(matches!(&error, ForwardError::Failed(failure) if failure.step == ForwardStep::Take), "{error:?}");
    let connection = forwards.connect(take.clone()).await.unwrap();
    let error = forwards.connect(take).await.unwrap_err();
    assert!(matches!(&error, ForwardError::Failed(failure) if failure.step == ForwardStep::Take), "{error:?}");

    let mut untaken = TcpStream::connect(&at).await.unwrap();
    within(listening.accept()).await.unwrap();
    assert_eq!(within(untaken.read(&mut [0; 8])).await.unwrap(), 0, "closed after 10 s");

    let mut waiting = TcpStream::connect(&at).await.unwrap();
    within(listening.accept()).await.unwrap();
    drop(listening);
    assert_eq!(within(waiting.read(&mut [0; 8])).await.unwrap(), 0, "closed with its listener");
    let refused =
        async || TcpStream::connect(&at).await.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    telexec_tests::until("nothing listens", refused).await;
    // the one that was taken goes on
    let (echoed, answer) = tokio::join!(exchange(&mut taken, b"x"), exchange(connection, b"y"));
    assert_eq!((echoed, answer), (b"y".to_vec(), b"x".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_made_up_for() {
    let (site, echo) = (Site::start(""), Server::echo().await);
    let proxy = Proxy::before(&site.agent).await;
    let to = echo.on_any_port();
    let mut command = site.telexec("forward", &[]);
    let args: Vec<_> = command.as_std().get_args().map(|arg| arg.to_str().unwrap().to_owned()).collect();
    let address = proxy.uri().strip_prefix("tcp://").unwrap();
    let args = args.iter().map(|arg| if arg == site.agent.address() { address } else { arg });
    command = {
        let mut again = tokio::process::Command::new(telexec_tests::program("telexec"));
        again.env("TELEXEC_CONFIG", "/dev/null").args(args).args(["-L", &to, "-R", &to]);
        again.stdout(std::process::Stdio::piped()).kill_on_drop(true);
        again
    };
    let mut child = command.spawn().unwrap();
    let mut stdout = tokio::io::BufReader::new(child.stdout.take().unwrap());
    let mut at = Vec::new();
    for _ in 0..2 {
        let mut line = String::new();
        within(tokio::io::AsyncBufReadExt::read_line(&mut stdout, &mut line)).await.unwrap();
        at.push(line.split(' ').nth(1).unwrap().to_owned());
    }
    for _ in 0..2 {
        for at in &at {
            telexec_tests::until("it is forwarded", async || match TcpStream::connect(at).await {
                Ok(mut stream) => {
                    use tokio::io::AsyncWriteExt;
                    let mut answer = Vec::new();
                    stream.write_all(b"again").await.is_ok()
                        && stream.shutdown().await.is_ok()
                        && within(stream.read_to_end(&mut answer)).await.is_ok()
                        && answer == b"again"
                }
                Err(_) => false,
            })
            .await;
        }
        proxy.cut();
    }
}
