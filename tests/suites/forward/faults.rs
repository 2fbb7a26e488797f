//! What cannot be reached, what stalls, and what is asked for in the wrong way.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use telexec_client::ForwardError;
use telexec_proto::v1::connect_request::Step;
use telexec_proto::v1::forward_service_client::ForwardServiceClient;
use telexec_proto::v1::{ConnectRequest, Dial, ListenRequest, TcpAddress, dial, listen_request};
use telexec_tests::{Agent, Wire, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::{Server, Site, exchange, refused, said, unused};

fn to(host: &str, port: u32) -> Step {
    let to = Some(dial::To::Tcp(TcpAddress { host: host.into(), port }));
    Step::Dial(Dial { to, user: String::new() })
}

fn to_unix(path: &str, user: &str) -> Step {
    Step::Dial(Dial { to: Some(dial::To::UnixPath(path.into())), user: user.into() })
}

/// How a call with these requests ends, which then waits for its end.
async fn status(wire: &Wire, steps: impl IntoIterator<Item = Step>) -> Status {
    let requests: Vec<_> = steps.into_iter().map(|step| ConnectRequest { step: Some(step) }).collect();
    let requests = futures_util::stream::iter(requests).chain(futures_util::stream::pending());
    let mut client = ForwardServiceClient::with_origin(wire.clone(), Wire::origin());
    let mut answers = match within(client.connect(requests)).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return status,
    };
    loop {
        match within(answers.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => return Status::ok(""),
            Err(status) => return status,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_reached_is_told_by_errno_and_address() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let nobody = unused().await;
    let port = u32::from(nobody.port());
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let missing = missing.to_str().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (step, code, errno, address) in [
        (to("127.0.0.1", port), Code::Unavailable, "ECONNREFUSED", nobody.to_string()),
        (to("LocalHost", port), Code::Unavailable, "ECONNREFUSED", format!("localhost:{port}")),
        (to("no-such-host.invalid", 1), Code::NotFound, "EAI_NONAME", "no-such-host.invalid:1".to_owned()),
        (to_unix(missing, ""), Code::NotFound, "ENOENT", missing.to_owned()),
        (to_unix(file.to_str().unwrap(), ""), Code::Unavailable, "ECONNREFUSED", file.display().to_string()),
        (to_unix(agent.address(), ""), Code::FailedPrecondition, "EACCES", agent.address().to_owned()),
    ] {
        let status = status(&wire, [step]).await;
        let info = status.get_details_error_info().unwrap();
        assert_eq!((status.code(), info.reason.as_str(), info.domain.as_str()), (code, "DIAL_FAILED", "telexec"));
        assert_eq!((info.metadata["errno"].as_str(), &info.metadata["address"]), (errno, &address), "{status:?}");
        assert!(status.message().starts_with(&format!("cannot connect to {address}: ")), "{status:?}");
    }
    let tcp = Some(dial::To::Tcp(TcpAddress { host: "127.0.0.1".into(), port }));
    let foreign = status(&wire, [Step::Dial(Dial { to: tcp.clone(), user: "nobody".into() })]).await;
    assert_eq!(foreign.code(), Code::FailedPrecondition);
    let info = foreign.get_details_error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.metadata["field"].as_str()), ("UNSUPPORTED", "dial.user"));
    let own = rustix::process::geteuid().as_raw().to_string();
    let own = status(&wire, [Step::Dial(Dial { to: tcp, user: own })]).await;
    assert_eq!(own.get_details_error_info().unwrap().metadata["errno"], "ECONNREFUSED");
    for at in [
        listen_request::At::UnixPath(missing.to_owned()),
        listen_request::At::Tcp(TcpAddress { host: "localhost".into(), port: 0 }),
    ] {
        let request = ListenRequest { at: Some(at), user: "nobody".into() };
        let mut client = ForwardServiceClient::with_origin(wire.clone(), Wire::origin());
        let foreign = within(client.listen(request)).await.unwrap_err();
        let info = foreign.get_details_error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.metadata["field"].as_str()), ("UNSUPPORTED", "user"));
    }
    let unknown = Step::Dial(Dial { to: Some(dial::To::Accepted("x".into())), user: String::new() });
    let unknown = status(&wire, [unknown]).await;
    assert_eq!(unknown.get_details_error_info().unwrap().reason, "CONNECTION_NOT_FOUND");
    assert_eq!(unknown.code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_malformed_is_refused() {
    let (agent, echo) = (Agent::start(), Server::echo().await);
    let wire = Wire::connect(&agent).await.unwrap();
    let there = || to("127.0.0.1", echo.address.port().into());
    for (steps, what) in [
        (vec![Step::Data("x".into())], "dial: is missing"),
        (vec![to("", 1)], "dial.tcp.host: "),
        (vec![to("a b", 1)], "dial.tcp.host: "),
        (vec![to("127.1", 1)], "dial.tcp.host: "),
        (vec![to("a", 0)], "dial.tcp.port: "),
        (vec![to("a", 65536)], "dial.tcp.port: "),
        (vec![to_unix("a", "")], "dial.unix_path: "),
        (vec![to_unix("/a/../b", "")], "dial.unix_path: "),
        (vec![to_unix(&format!("/{}", "a".repeat(200)), "")], "dial.unix_path: "),
        (vec![Step::Dial(Dial::default())], "dial.to: is missing"),
        (vec![to_unix("/a", "nobody-of-that-name")], "dial.user: "),
        (vec![Step::Dial(Dial { to: Some(dial::To::Accepted("x".into())), user: "nobody".into() })], "dial.user: "),
        (vec![there(), there()], "step: "),
    ] {
        let status = status(&wire, steps).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().starts_with(what), "{status:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_closes_that_one_connection_and_is_said() {
    let (site, echo) = (Site::start(""), Server::echo().await);
    let nobody = unused().await;
    let (bad, good) = (format!("0:{nobody}"), echo.on_any_port());
    let mut forward = site.forward(&["-L", &bad, "-L", "0:no-such-host.invalid:1", "-L", &good, "-R", &bad]).await;
    for flag in [0, 1, 3] {
        assert_eq!(refused(forward.at(flag)).await, ErrorKind::ConnectionReset, "{flag}");
        assert_eq!(exchange(forward.dial(2).await, b"fine").await, b"fine");
    }
    forward.signal(rustix::process::Signal::TERM);
    forward.child.stdout.take();
    let (code, stderr) = said(forward.child).await;
    assert_eq!(code, 143);
    let refused = format!("cannot connect to {nobody}: connection refused");
    assert_eq!(stderr.matches(&refused).count(), 2, "{stderr}");
    assert!(stderr.contains("cannot connect to no-such-host.invalid:1: "), "{stderr}");
    assert!(stderr.lines().count() == 3 && stderr.lines().all(|line| line.starts_with("telexec: ")), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_not_read_hold_up_no_other() {
    let (site, echo) = (Site::start(""), Server::echo().await);
    // as many bytes as are taken, from both sides, which neither reads
    let deaf = Server::start(|mut stream| async move {
        let data = vec![0; 1024 * 1024];
        while tokio::time::timeout(Duration::from_secs(60), stream.write_all(&data))
            .await
            .is_ok_and(|done| done.is_ok())
        {}
    })
    .await;
    let (to, good) = (deaf.on_any_port(), echo.on_any_port());
    let forward = site.forward(&["-L", &to, "-L", &good, "-R", &to]).await;
    let mut stalled = Vec::new();
    for at in 0..40 {
        let mut stream = forward.dial(if at % 2 == 0 { 0 } else { 2 }).await;
        // until no more is taken
        let data = vec![0; 64 * 1024];
        while tokio::time::timeout(super::SHORT, stream.write_all(&data)).await.is_ok() {}
        stalled.push(stream);
    }
    let data = vec![7; 8 * 1024 * 1024];
    let begin = Instant::now();
    assert!(exchange(forward.dial(1).await, &data).await == data);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_limits_for_all_and_for_each() {
    let site = Site::start("max_forwards = 4\nmax_forwards_per_identity = 3");
    let echo = Server::echo().await;
    let forwards = site.agent.connect().await.forwards();
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(forwards.connect(echo.dial()).await.unwrap());
    }
    let listening = forwards.listen(&super::tcp("localhost:0")).await.unwrap();
    let full = async |forwards: &telexec_client::Forwards, key: &str| {
        let error = forwards.connect(echo.dial()).await.unwrap_err();
        assert!(error.to_string().contains(key), "{error:?}");
    };
    full(&forwards, "(max_forwards_per_identity)").await;
    let other = site.agent.connect_as(&site.certs.ca.issue(telexec_tests::Leaf::client("other"))).await.forwards();
    let others = other.connect(echo.dial()).await.unwrap();
    full(&other, "(max_forwards)").await;
    // what comes to a listener counts too
    assert_eq!(refused(&listening.endpoint().to_string()).await, ErrorKind::ConnectionReset);
    drop(others);
    drop(open.pop());
    telexec_tests::until("there is room again", async || forwards.connect(echo.dial()).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_connection() {
    let agent = Agent::start();
    let echo = Server::echo().await;
    let wire = Wire::connect(&agent).await.unwrap();
    let first = ConnectRequest { step: Some(to("127.0.0.1", echo.address.port().into())) };
    let requests = futures_util::stream::iter([first]).chain(futures_util::stream::pending());
    let mut request = tonic::Request::new(requests);
    request.set_timeout(Duration::from_millis(300));
    let mut client = ForwardServiceClient::with_origin(wire, Wire::origin());
    let mut answers = within(client.connect(request)).await.unwrap().into_inner();
    within(answers.message()).await.unwrap().unwrap();
    assert_eq!(within(answers.message()).await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_tells_failures_by_its_exit_code() {
    let site = Site::start("");
    let nobody = unused().await.to_string();
    for (to, code, text) in [
        (nobody.as_str(), 1, format!("cannot connect to {nobody}: connection refused")),
        ("a_b:x", 2, "is not a port".to_owned()),
    ] {
        let output = within(site.telexec("connect", &[to]).output()).await.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && stderr.contains(&text), "{stderr}");
    }
    let rude = Server::start(|stream| async move { super::reset(stream) }).await;
    let output = within(site.telexec("connect", &[&rude.address.to_string()]).output()).await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains("connection reset by peer"), "{stderr}");
    let taken = Server::echo().await;
    let mut child = site.telexec("forward", &["-L", &format!("{}:x:1", taken.address)]).spawn().unwrap();
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).await.unwrap();
    let (code, stderr) = said(child).await;
    assert!(code == 1 && stdout.is_empty() && stderr.contains("cannot listen on "), "{stderr}");
    let error = site.agent.connect().await.forwards().listen(&taken.endpoint()).await.unwrap_err();
    assert!(matches!(&error, ForwardError::Failed(failure) if failure.errno == "EADDRINUSE"), "{error:?}");
}
