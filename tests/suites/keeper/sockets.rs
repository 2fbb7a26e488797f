//! The addresses that the agent listens on, while no agent runs and from one to the next.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use telexec_executor::{Command, Executor, TerminalSize};
use telexec_tests::{Agent, Hierarchy, is_root, run, stop, until, within};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::{crash, crash_and_wait, serving};

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

/// Connects, and waits until an agent speaks or ends: no more connections wait than net.core.somaxconn lets.
async fn visit(uri: &str) -> io::Result<()> {
    async fn wait(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        // the client's part of RFC 9113, section 3.4, which the agent answers with its own
        if stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.is_ok() {
            let _ = stream.read_u8().await;
        }
    }
    match uri.split_once("://").unwrap() {
        ("unix", path) => wait(UnixStream::connect(path).await?).await,
        (_, address) => wait(TcpStream::connect(address).await?).await,
    }
    Ok(())
}

/// The second: of its Unix socket.
fn listens_everywhere() -> (Agent, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = format!("unix://{}/agent.sock", directory.path().display());
    (Agent::builder().kept().listen(&path).tcp().start(), directory)
}

/// Ends the agent by this signal, and waits until the next one listens at so many addresses.
async fn replace(agent: &Agent, signal: Signal, addresses: usize) {
    let lines = || agent.log().matches("listening on").count();
    let before = lines();
    kill_process(Pid::from_raw(serving(agent).unwrap()).unwrap(), signal).unwrap();
    until("another agent serves", async || lines() == before + addresses).await;
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
            replace(&agent, Signal::USR2, 2).await;
            replace(&agent, Signal::KILL, 2).await;
        }
    };
    let connections = async {
        loop {
            for uri in agent.uris() {
                visit(uri).await.unwrap();
            }
        }
    };
    tokio::select! {
        () = change => {}
        never = connections => never,
    }
}

/// Nor after an agent that could not start.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_cannot_start_leaves_the_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let listen = |more: &str| format!("insecure = true\nlisten = [\"unix://{}\"{more}]", path.display());
    let agent = Agent::builder().kept().config(listen("")).listen_as_configured(1).start();
    run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
    let config = agent.directory().join("telexecd.toml");
    let inode = || std::fs::symlink_metadata(&path).unwrap().ino();
    let before = inode();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let in_use = std::net::TcpListener::bind(taken).unwrap();
    std::fs::write(&config, listen(&format!(", \"tcp://{taken}\""))).unwrap();
    crash(serving(&agent).unwrap());
    until("the next one cannot start", async || agent.log().contains("Address already in use")).await;
    drop(in_use);
    assert_eq!(run(&agent.executor().await, Command::argv(["echo", "hi"])).await.unwrap().text(), "hi\n");
    assert_eq!(inode(), before);
}

/// While it ends what runs, which may take long.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ends_refuses_connections() {
    let (agent, _directory) = listens_everywhere();
    let executor = agent.executor().await;
    let _running = within(executor.execute(Command::argv(["sleep", "300"]).build().unwrap())).await.unwrap();
    agent.signal(Signal::TERM);
    for uri in agent.uris() {
        until("it refuses connections", async || connect(std::slice::from_ref(uri)).await.is_err()).await;
    }
    assert!(Path::new(&format!("/proc/{}", agent.pid())).exists());
}

/// As an agent may leave it that is not root.
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_was_shut_down_is_bound_again() {
    let agent = Agent::builder().kept().start();
    run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
    let dying = serving(&agent).unwrap();
    let shut_down = "import os, socket, sys
pid = os.pidfd_open(int(sys.argv[1]))
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in os.listdir(f'/proc/{sys.argv[1]}/fd'):
    copy = libc.syscall(438, pid, int(number), 0)
    if copy < 0: continue
    try: found = socket.socket(fileno=copy)
    except OSError: continue
    if found.family == socket.AF_UNIX and found.getsockname() == sys.argv[2]: found.shutdown(socket.SHUT_RDWR)";
    let mut python = std::process::Command::new("python3");
    let arguments = ["-c", shut_down, &dying.to_string(), agent.address()];
    assert!(python.args(arguments).status().unwrap().success());
    assert!(connect(agent.uris()).await.is_err());
    crash_and_wait(&agent).await;
    assert_eq!(run(&agent.executor().await, Command::argv(["echo", "hi"])).await.unwrap().text(), "hi\n");
}

/// Where they are in the way of one that is new.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_written_otherwise_is_bound_again() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = |host| format!("insecure = true\nlisten = [\"tcp://{host}:{free}\"]");
    let agent = Agent::builder().kept().config(listen("127.0.0.1")).listen_as_configured(1).start();
    run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
    std::fs::write(agent.directory().join("telexecd.toml"), listen("localhost")).unwrap();
    crash_and_wait(&agent).await;
    run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
}

/// They are for the agents alone.
#[tokio::test(flavor = "multi_thread")]
async fn no_command_has_them() {
    let agent = Agent::builder().kept().start();
    let (executor, size) = (agent.executor().await, TerminalSize::new(80, 24).unwrap());
    for command in [Command::shell("ls -l /proc/$$/fd"), Command::shell("ls -l /proc/$$/fd").terminal(size)] {
        let listed = run(&executor, command).await.unwrap();
        assert!(listed.text().contains("1 -> ") && !listed.text().contains("socket:"), "{}", listed.text());
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
        replace(&agent, Signal::USR2, 1).await;
        connect(&others[round..=round]).await.unwrap();
        let refused = connect(&others[1 - round..2 - round]).await.unwrap_err();
        assert!(matches!(refused, ErrorKind::ConnectionRefused | ErrorKind::NotFound), "{refused}");
        assert!(round == 0 || !path.exists());
        // it can come back
        std::fs::write(&config, &text).unwrap();
        replace(&agent, Signal::USR2, 2).await;
        connect(&others).await.unwrap();
        replace(&agent, Signal::KILL, 2).await;
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
