//! Unix sockets as other users than the agent's own, which only root's agent can become.

mod waiting;

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use futures_util::future::join_all;
use serde_json::{Value, json};
use telexec_client::{Dial, Endpoint, ForwardError, ForwardFailure, ForwardStep, Forwards};
use telexec_executor::{Command, Executor, ExecutorError, InvalidCommand};
use telexec_tests::{Agent, Certs, NOBODY, Watch, children, is_root, settled, until, within};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::task::JoinSet;

use super::{Site, exchange, said, tcp};

/// A Unix socket in a directory that only its user can enter; what comes there is served until this is dropped.
struct Room {
    directory: TempDir,
    path: String,
    task: JoinSet<()>,
}

impl Room {
    /// Of this user.
    fn of(uid: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o700)).unwrap();
        chown(directory.path(), Some(uid), Some(uid)).unwrap();
        let path = directory.path().join("socket").to_str().unwrap().to_owned();
        Self { directory, path, task: JoinSet::new() }
    }

    fn serve<F>(mut self, serve: impl Fn(UnixStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = UnixListener::bind(&self.path).unwrap();
        let owner = std::os::unix::fs::MetadataExt::uid(&self.directory.path().metadata().unwrap());
        chown(&self.path, Some(owner), Some(owner)).unwrap();
        self.task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream));
            }
        });
        self
    }

    /// Tells each who it is, and sends back what it sends.
    fn that_tells(uid: u32) -> Self {
        Self::of(uid).serve(|mut stream| async move {
            let peer = stream.peer_cred().unwrap();
            let (mut reader, mut writer) = stream.split();
            // a test may be over
            let _ = writer.write_all(format!("{}:{} ", peer.uid(), peer.gid()).as_bytes()).await;
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        })
    }

    fn dial(&self, user: &str) -> Dial {
        Dial::UnixAs { path: self.path.clone(), user: user.to_owned() }
    }
}

/// What is told to whoever says this there.
async fn told(forwards: &Forwards, dial: Dial, text: &str) -> String {
    let connection = within(forwards.connect(dial)).await.unwrap();
    String::from_utf8(exchange(connection, text.as_bytes()).await).unwrap()
}

async fn failure(forwards: &Forwards, dial: Dial) -> ForwardFailure {
    match within(forwards.connect(dial)).await {
        Err(ForwardError::Failed(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

async fn refusal(forwards: &Forwards, dial: Dial) -> ExecutorError {
    match within(forwards.connect(dial)).await {
        Err(ForwardError::Call(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// The processes of an agent that connect.
fn connecting(agent: &Agent) -> Vec<i32> {
    let connects =
        |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"--dial\0"));
    children(agent.pid()).into_iter().map(|process| process.pid).filter(connects).collect()
}

/// No process that connects is left.
async fn none_is_left(agent: &Agent) {
    until("none of its processes is left", async || children(agent.pid()).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_side_sees_the_user_that_the_call_names() {
    if !is_root() {
        return;
    }
    let (agent, room) = (Agent::start(), Room::that_tells(NOBODY));
    let forwards = agent.connect().await.forwards();
    for user in ["nobody", "65534"] {
        let answer = told(&forwards, room.dial(user), "hello").await;
        assert!(answer.starts_with("65534:") && answer.ends_with(" hello"), "{user}: {answer}");
    }
    for own in [Dial::To(Endpoint::Unix(room.path.clone())), room.dial("root"), room.dial("0"), room.dial("")] {
        assert_eq!(told(&forwards, own, "hello").await, "0:0 hello");
    }
    none_is_left(&agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_decides_who_may_connect() {
    if !is_root() {
        return;
    }
    let (agent, nobodys, roots) = (Agent::start(), Room::that_tells(NOBODY), Room::that_tells(0));
    let closed = Room::that_tells(0);
    std::fs::set_permissions(closed.directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&closed.path, PermissionsExt::from_mode(0o600)).unwrap();
    let file = nobodys.directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    let missing = nobodys.directory.path().join("missing");
    let forwards = agent.connect().await.forwards();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    for (to, user, errno) in [
        (nobodys.path.clone(), "daemon", "EACCES"),
        (roots.path.clone(), "nobody", "EACCES"),
        (closed.path.clone(), "nobody", "EACCES"),
        (path(&missing), "nobody", "ENOENT"),
        (path(&file), "nobody", "ECONNREFUSED"),
    ] {
        let failure = failure(&forwards, Dial::UnixAs { path: to.clone(), user: user.into() }).await;
        assert_eq!((failure.step, failure.errno.as_str(), &failure.address), (ForwardStep::Dial, errno, &to));
        assert!(failure.to_string().starts_with(&format!("cannot connect to {to}: ")), "{failure}");
    }
    none_is_left(&agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_direction_is_closed_by_itself() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let forwards = agent.connect().await.forwards();
    // closes first, and then tells how much it got
    let (told_length, mut length) = tokio::sync::mpsc::unbounded_channel();
    let room = Room::of(NOBODY).serve(move |mut stream| {
        let told_length = told_length.clone();
        async move {
            stream.write_all(b"mine").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            told_length.send(all.len()).unwrap();
        }
    });
    let mut connection = forwards.connect(room.dial("nobody")).await.unwrap();
    let mut answer = Vec::new();
    within(connection.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(answer, b"mine");
    let data = vec![7; 3_000_000];
    within(connection.write_all(&data)).await.unwrap();
    connection.shutdown().await.unwrap();
    within(connection.finish()).await.unwrap();
    assert_eq!(within(length.recv()).await, Some(data.len()));

    let answering = Room::of(NOBODY).serve(|mut stream| async move {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        stream.write_all(&all).await.unwrap();
    });
    let connection = forwards.connect(answering.dial("nobody")).await.unwrap();
    assert!(exchange(connection, &data).await == data);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_is_told_to_both_sides() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let forwards = agent.connect().await.forwards();
    // what is not read when a Unix socket is closed resets it
    let rude = Room::of(NOBODY).serve(|mut stream| async move { drop(stream.read_u8().await) });
    let mut connection = forwards.connect(rude.dial("nobody")).await.unwrap();
    connection.write_all(b"more than one").await.unwrap();
    let error = within(connection.read_u8()).await.unwrap_err().downcast::<ForwardError>();
    match error {
        Ok(ForwardError::Failed(failure)) => {
            assert_eq!((failure.step, failure.errno.as_str()), (ForwardStep::Carry, "ECONNRESET"));
        }
        other => panic!("{other:?}"),
    }
    let (told, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let room = Room::of(NOBODY).serve(move |mut stream| {
        let told = told.clone();
        async move { told.send(stream.read_u8().await.map_err(|error| error.kind())).unwrap() }
    });
    drop(forwards.connect(room.dial("nobody")).await.unwrap());
    assert_eq!(within(ends.recv()).await, Some(Err(std::io::ErrorKind::UnexpectedEof)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agents_own_socket_is_refused_by_any_name() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let [own, link, twin] = ["own", "link", "twin"].map(|name| directory.path().join(name));
    // so that its user, not its mode, is what is in the way
    let listen = format!("unix://{}", own.display());
    let everyones = "permit(principal, action, resource);";
    let agent = Agent::builder().listen(&listen).config("socket_mode = \"0666\"").policy(everyones).start();
    symlink(&own, &link).unwrap();
    std::fs::hard_link(&own, &twin).unwrap();
    let forwards = agent.connect().await.forwards();
    for (name, user) in [(&own, "nobody"), (&link, "nobody"), (&twin, "nobody"), (&link, "")] {
        let path = name.to_str().unwrap().to_owned();
        let failure = failure(&forwards, Dial::UnixAs { path, user: user.into() }).await;
        assert_eq!(failure.errno, "EACCES");
        assert!(failure.to_string().contains("it is the agent's own socket"), "{failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_user_can_do_names_the_field() {
    if !is_root() {
        return;
    }
    let (agent, room) = (Agent::start(), Room::that_tells(NOBODY));
    let forwards = agent.connect().await.forwards();
    for user in ["nobody-of-that-name", "4294967295", "+0 ", "a\0b"] {
        let refused = refusal(&forwards, room.dial(user)).await;
        let ExecutorError::Invalid(InvalidCommand { field, .. }) = &refused else { panic!("{refused:?}") };
        assert_eq!(field, "dial.user", "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_not_root_becomes_nobody_else() {
    if !is_root() {
        return;
    }
    let room = Room::that_tells(NOBODY);
    let agent = Agent::builder().user(NOBODY).start();
    let forwards = agent.connect().await.forwards();
    let refused = refusal(&forwards, room.dial("daemon")).await;
    assert!(matches!(refused, ExecutorError::Spawn(_)), "{refused:?}");
    assert!(told(&forwards, room.dial("nobody"), "x").await.starts_with("65534:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_about_the_user_too() {
    if !is_root() {
        return;
    }
    let (certs, room) = (Certs::new(), Room::that_tells(NOBODY));
    let policy = format!(
        r#"
        @id("nobody") permit(principal, action == Action::"Forward", resource)
        when {{ context.unix_path == "{}" && context.user == "nobody" }};
        @id("any") permit(principal, action == Action::"Forward", resource)
        when {{ context.unix_path == "{0}/any" }};
        @id("ports") permit(principal, action == Action::"Forward", resource) when {{ context has host }};
        @id("not-daemon") forbid(principal, action in Action::"ports", resource)
        when {{ context has user && context.user == "daemon" }};
        "#,
        room.path
    );
    let agent = Agent::builder().mtls(&certs).policy(policy).start();
    let forwards = agent.connect().await.forwards();
    assert!(told(&forwards, room.dial("65534"), "x").await.starts_with("65534:"));
    let denied = async |user: &str| match refusal(&forwards, room.dial(user)).await {
        ExecutorError::Denied { rule, reason, .. } => (rule.unwrap_or_default(), reason),
        other => panic!("{other:?}"),
    };
    for (user, rule, missing) in [
        ("", "default", "context.user == \"nobody\""),
        ("root", "default", "context.user == \"nobody\""),
        ("daemon", "not-daemon", ""),
        ("nobody-of-that-name", "default", "there is no such user"),
    ] {
        let (by, reason) = denied(user).await;
        assert!(by == rule && reason.contains(missing), "{user}: {by}: {reason}");
    }
    // who may be anybody there hears that there is no such user
    let anybody = |user: &str| Dial::UnixAs { path: format!("{}/any", room.path), user: user.to_owned() };
    let refused = refusal(&forwards, anybody("nobody-of-that-name")).await;
    assert!(matches!(refused, ExecutorError::Invalid(_)), "{refused:?}");
    assert_eq!(failure(&forwards, anybody("nobody")).await.errno, "ENOTDIR");
    // and TCP has no user
    assert!(matches!(within(forwards.connect(tcp("127.0.0.1:1"))).await, Err(ForwardError::Failed(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_has_the_user() {
    if !is_root() {
        return;
    }
    let (directory, room) = (tempfile::tempdir().unwrap(), Room::that_tells(NOBODY));
    let log = directory.path().join("audit.log");
    let agent = Agent::builder().config(format!("[audit]\nfile = {:?}", log.to_str().unwrap())).start();
    let forwards = agent.connect().await.forwards();
    told(&forwards, room.dial("65534"), "12345").await;
    failure(&forwards, room.dial("daemon")).await;
    refusal(&forwards, room.dial("nobody-of-that-name")).await;
    told(&forwards, room.dial(""), "").await;
    let mut records = Vec::new();
    until("all is recorded", async || {
        let text = std::fs::read_to_string(&log).unwrap();
        let parsed = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        records = parsed.filter(|record| record["rpc"] == "Connect").collect();
        records.len() == 8
    })
    .await;
    assert!(records.iter().all(|record| record["unix_path"] == room.path.as_str()), "{records:?}");
    let mut told: Vec<_> = records
        .iter()
        .map(|record| json!([record["event"], record["user"], record["cause"], record["errno"]]).to_string())
        .collect();
    // a connection's end is recorded after its caller knows
    told.sort();
    assert_eq!(
        told,
        [
            json!(["call", "daemon", null, null]),
            json!(["call", "nobody", null, null]),
            json!(["call", "root", null, null]),
            json!(["call", null, null, null]),
            json!(["forward", "daemon", "dial_failed", "EACCES"]),
            json!(["forward", "nobody", "closed", null]),
            json!(["forward", "root", "closed", null]),
            json!(["forward", null, "invalid", null]),
        ]
        .map(|record| record.to_string())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_programs_take_a_user() {
    if !is_root() {
        return;
    }
    let (site, room) = (Site::start(""), Room::that_tells(NOBODY));
    let echo = super::Server::echo().await;
    let (to_unix, to_tcp) = (format!("0:{}", room.path), echo.on_any_port());
    let forward = site.forward(&["-L", &to_unix, "-L", &to_tcp]).await;
    assert_eq!(exchange(forward.dial(0).await, b"x").await, b"0:0 x");
    let mut child = site.telexec("forward", &["--user", "nobody", "-L", &to_unix, "-L", &to_tcp]);
    let mut child = child.spawn().unwrap();
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(child.stdout.take().unwrap()));
    for (answer, is_exact) in [("65534:", false), ("x", true)] {
        let line = within(lines.next_line()).await.unwrap().unwrap();
        let at = line.split(' ').nth(1).unwrap();
        let stream = within(tokio::net::TcpStream::connect(at)).await.unwrap();
        let said = String::from_utf8(exchange(stream, b"x").await).unwrap();
        assert!(said.starts_with(answer) && (!is_exact || said == answer), "{said}");
    }
    let output = within(site.telexec("connect", &["-l", "nobody", &room.path]).output()).await.unwrap();
    assert!(output.stdout.starts_with(b"65534:"), "{output:?}");
    for (subcommand, args) in [
        ("connect", ["-l", "nobody", "127.0.0.1:1"].as_slice()),
        ("forward", &["--user", "nobody", "-L", "0:127.0.0.1:1"]),
        ("forward", &["--user", "nobody", "-D", "0"]),
    ] {
        let (code, stderr) = said(site.telexec(subcommand, args).spawn().unwrap()).await;
        assert!(code == 2 && stderr.contains("--user is for Unix sockets"), "{args:?}: {code} {stderr}");
    }
}
