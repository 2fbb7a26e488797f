//! Connections that wait for who listens, and many of them.

use super::*;

/// A socket of nobody's that accepts nothing, and whose queue is full.
async fn full(room: &Room) -> (UnixListener, Vec<UnixStream>) {
    let socket = UnixSocket::new_stream().unwrap();
    socket.bind(&room.path).unwrap();
    chown(&room.path, Some(NOBODY), Some(NOBODY)).unwrap();
    let listener = socket.listen(1).unwrap();
    let mut queue = Vec::new();
    while let Ok(stream) = UnixStream::connect(&room.path).await {
        queue.push(stream);
    }
    (listener, queue)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_waits_ends_with_its_call() {
    if !is_root() {
        return;
    }
    let (site, room) = (Site::start(""), Room::of(NOBODY));
    let (_listener, _queue) = full(&room).await;
    let waits = async || until("it waits", async || !connecting(&site.agent).is_empty()).await;
    let forwards = site.agent.connect().await.forwards();
    // given up
    tokio::select! {
        connected = forwards.connect(room.dial("nobody")) => panic!("{connected:?}"),
        () = waits() => {}
    }
    none_is_left(&site.agent).await;
    // killed, so that nothing is given up
    let mut client = site.telexec("connect", &["--user", "nobody", &room.path]).spawn().unwrap();
    waits().await;
    client.kill().await.unwrap();
    none_is_left(&site.agent).await;
    // nobody answers
    assert_eq!(failure(&forwards, room.dial("nobody")).await.errno, "ETIMEDOUT");
    none_is_left(&site.agent).await;
    assert_eq!(site.agent.connect().await.forwards().connect(room.dial("")).await.unwrap_err().to_string(), {
        let path = &room.path;
        format!("cannot connect to {path}: resource temporarily unavailable")
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ends_leaves_no_process_that_waits() {
    if !is_root() {
        return;
    }
    let room = Room::of(NOBODY);
    let (_listener, _queue) = full(&room).await;
    for is_killed in [false, true] {
        let mut agent = Agent::start();
        let forwards = agent.connect().await.forwards();
        let dial = room.dial("nobody");
        let dial = tokio::spawn(async move { forwards.connect(dial).await });
        until("it waits", async || !connecting(&agent).is_empty()).await;
        let waiting = Watch::of(connecting(&agent));
        assert_eq!(waiting.count(), 1);
        match is_killed {
            false => assert!(agent.terminate().await.success()),
            true => agent.kill(),
        }
        waiting.wait();
        assert!(within(dial).await.unwrap().is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_connect_at_once() {
    if !is_root() {
        return;
    }
    const MANY: usize = 64;
    let (agent, room) = (Agent::start(), Room::that_tells(NOBODY));
    let forwards = agent.connect().await.forwards();
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count();
    told(&forwards, room.dial("nobody"), "").await;
    let before = settled(descriptors);
    let connected = join_all((0..MANY).map(|_| within(forwards.connect(room.dial("nobody"))))).await;
    none_is_left(&agent).await;
    for (at, connection) in connected.into_iter().enumerate() {
        let text = format!("number {at}");
        let answer = exchange(connection.unwrap(), text.as_bytes()).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("65534:") && answer.ends_with(&text), "{answer}");
    }
    // those of the HTTP/2 connections stay
    let pooled = MANY / 7 + 2;
    until("its descriptors are closed", async || descriptors() <= before + pooled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_apply() {
    if !is_root() {
        return;
    }
    let room = Room::that_tells(NOBODY);
    let exhausted = async |forwards: &Forwards, what: &str| {
        let refused = refusal(forwards, room.dial("nobody")).await;
        assert!(matches!(refused, ExecutorError::Exhausted { .. }) && refused.to_string().contains(what), "{refused}");
    };
    let agent = Agent::builder().config("max_forwards_per_identity = 1").start();
    let forwards = agent.connect().await.forwards();
    let open = within(forwards.connect(room.dial("nobody"))).await.unwrap();
    exhausted(&forwards, "(max_forwards_per_identity)").await;
    drop(open);
    until("there is room again", async || forwards.connect(room.dial("nobody")).await.is_ok()).await;

    let agent = Agent::builder().config("max_executions = 1\nmax_executions_per_identity = 2").start();
    let forwards = agent.connect().await.forwards();
    let running = agent.executor().await;
    let running = running.execute(Command::argv(["sleep", "1000"]).build().unwrap()).await.unwrap();
    exhausted(&forwards, "(max_executions)").await;
    // the agent itself needs no process
    told(&forwards, room.dial(""), "").await;
    drop(running);

    let agent = Agent::builder().config("max_starts_per_second = 1").start();
    let forwards = agent.connect().await.forwards();
    let begun = join_all((0..10).map(|_| within(forwards.connect(room.dial("nobody"))))).await;
    let refused = begun.iter().filter(|begun| {
        matches!(begun, Err(ForwardError::Call(ExecutorError::Exhausted { retry_after: Some(_), .. })))
    });
    assert!(refused.count() > 0 && begun.iter().any(Result::is_ok), "{begun:?}");
}
