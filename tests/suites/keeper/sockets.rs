//! The addresses that the agent listens on, while no agent runs and from one to the next.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use telexec_executor::Command;
use telexec_tests::{Agent, Hierarchy, is_root, run, stop, until, within};
use tokio::net::{TcpStream, UnixStream};

use super::{crash, crash_and_wait, hand_over_and_wait, serving};

/// Whether one can connect to each of these addresses.
async fn connect(uris: &[String]) -> Result<(), ErrorKind> {
    for uri in uris {
        let connected = match uri.split_once("://").unwrap() {
            ("unix", path) => UnixStream::connect(path).await.map(drop),
            (_, address) => TcpStream::connect(address).await.map(drop),
        };
        connected.map_err(|error| error.kind())?;
    }
    Ok(())
}

/// The second: of its Unix socket.
fn listens_everywhere() -> (Agent, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = format!("unix://{}/agent.sock", directory.path().display());
    (Agent::builder().kept().listen(&path).tcp().start(), directory)
}

/// The keeper is stopped, so that no other one is started before that was seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_waits_for_the_next_agent() {
    let (agent, _directory) = listens_everywhere();
    for uri in agent.uris() {
        let target = uri.parse().unwrap();
        let keeper = agent.pid();
        let dying = serving(&agent).unwrap();
        stop(keeper).await;
        crash(dying);
        until("no agent runs", async || !Path::new(&format!("/proc/{dying}/exe")).exists()).await;
        connect(std::slice::from_ref(uri)).await.unwrap();
        let connecting = tokio::spawn(async move { telexec_client::Agent::connect(&target, Default::default()).await });
        kill_process(Pid::from_raw(keeper).unwrap(), Signal::CONT).unwrap();
        let connected = within(connecting).await.unwrap().unwrap();
        assert_eq!(run(&connected.executor(), Command::argv(["echo", "hi"])).await.unwrap().text(), "hi\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_connection_is_refused_from_one_agent_to_the_next() {
    let (agent, _directory) = listens_everywhere();
    let change = async {
        for _ in 0..3 {
            hand_over_and_wait(&agent).await;
            crash_and_wait(&agent).await;
        }
    };
    let connections = async {
        loop {
            connect(agent.uris()).await.unwrap();
        }
    };
    tokio::select! {
        () = change => {}
        never = connections => never,
    }
}

/// By the keeper too, which is not told.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_was_removed_refuses_connections() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.sock");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let others = [format!("unix://{}", path.display()), format!("tcp://{free}")];
    let listen = |more: &[String]| format!("insecure = true\nlisten = {more:?}");
    let mut agent = Agent::builder().kept().config(listen(&others)).listen_as_configured(2).start();
    let config = agent.directory().join("telexecd.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    for round in 0..2 {
        connect(&others).await.unwrap();
        std::fs::write(&config, text.replace(&listen(&others), &listen(&others[round..=round]))).unwrap();
        hand_over_and_wait(&agent).await;
        connect(&others[round..=round]).await.unwrap();
        let removed = &others[1 - round..2 - round];
        assert!(connect(removed).await.is_err(), "{removed:?}");
        assert!(round == 0 || !path.exists());
        // it can come back
        std::fs::write(&config, &text).unwrap();
        hand_over_and_wait(&agent).await;
        connect(&others).await.unwrap();
        crash_and_wait(&agent).await;
        connect(&others).await.unwrap();
    }
    agent.signal(Signal::TERM);
    assert!(agent.ended().await.success());
    assert!(!path.exists() && connect(&others).await.is_err());
}

/// Also by one that is not root.
#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_that_was_removed_is_there_again() {
    let mut kinds = vec![Agent::builder().kept()];
    if is_root() && Hierarchy::Unified.usable().is_some() {
        kinds.push(Agent::builder().agent_user());
    }
    for kind in kinds {
        let agent = kind.start();
        let found = || std::fs::symlink_metadata(agent.address()).unwrap();
        let before = found();
        // then it has been seen to serve, and is started again
        run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
        crash_and_wait(&agent).await;
        assert_eq!(found().ino(), before.ino());
        std::fs::remove_file(agent.address()).unwrap();
        crash_and_wait(&agent).await;
        assert_eq!((found().uid(), found().gid(), found().mode()), (before.uid(), before.gid(), before.mode()));
        run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
    }
}
