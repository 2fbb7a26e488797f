//! The agent as its keeper's child: starts, ends, signals, the service manager.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use telexec_executor::{Command, Executor, OnDisconnect};
use telexec_tests::{
    Agent, MARK, Syslog, children, exit_of, is_root, marker, processes_with, run, stop, telexecd, until, within,
};

use crate::cli::troubleshooting::shows;

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_in_an_orderly_way_with_its_agent() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut agent = Agent::builder().kept().config("shutdown_grace = \"0s\"").start();
        let (executor, mark) = (agent.executor().await, marker());
        let command = Command::shell("setsid sleep 300 & sleep 300").env(MARK, &mark).build().unwrap();
        let running = within(executor.execute(command)).await.unwrap();
        until("both run", async || processes_with(&mark).len() >= 3).await;
        agent.signal(signal);
        assert!(agent.ended().await.success(), "{}", agent.log());
        assert_eq!(processes_with(&mark), []);
        assert!(agent.log().contains("shutting down"));
        drop(running);
    }
}

/// SIGTERM to the agent alone is no crash.
#[tokio::test(flavor = "multi_thread")]
async fn it_ends_with_an_agent_that_was_asked_to_end() {
    let mut agent = Agent::builder().kept().start();
    kill_process(Pid::from_raw(agent.serving_pid()).unwrap(), Signal::TERM).unwrap();
    assert!(agent.ended().await.success(), "{}", agent.log());
}

#[test]
fn an_agent_that_cannot_serve_is_not_started_again() {
    let refused = Agent::builder().kept().listen("unix:///no/such/directory/agent.sock").try_start().err().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert_eq!(refused.log.matches("/no/such/directory").count(), 1, "{refused}");
    let refused = Agent::builder().kept().config("max_connections = 0").try_start().err().unwrap();
    assert_eq!(refused.status.code(), Some(78), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_is_passed_on() {
    let agent = Agent::builder().kept().policy("permit(principal, action, resource);").start();
    let executor = agent.executor().await;
    run(&executor, Command::argv(["true"])).await.unwrap();
    std::fs::write(agent.policy(), "").unwrap();
    agent.signal(Signal::HUP);
    until("nothing is permitted", async || run(&executor, Command::argv(["true"])).await.is_err()).await;
}

/// It has all exit statuses: without it nothing can be run.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_keeper_an_agent_ends_what_it_runs_and_itself() {
    let agent = Agent::builder().kept().config("shutdown_grace = \"5m\"\nkill_grace = \"200ms\"").start();
    let (executor, mark) = (agent.executor().await, marker());
    let command = Command::argv(["sleep", "300"]).env(MARK, &mark).build().unwrap();
    let _running = within(executor.execute(command)).await.unwrap();
    let serving = agent.serving_pid();
    kill_process(Pid::from_raw(agent.pid()).unwrap(), Signal::KILL).unwrap();
    until("nothing is left", async || {
        processes_with(&mark).is_empty() && !std::path::Path::new(&format!("/proc/{serving}")).exists()
    })
    .await;
    assert!(agent.log().contains("the keeper is gone"), "{}", agent.log());
}

/// Nor does it wait for anything once it has begun to end.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_keeper_an_agent_that_ends_does_so_at_once() {
    let agent = Agent::builder().kept().config("shutdown_grace = \"5m\"\nkill_grace = \"200ms\"").start();
    let (executor, mark) = (agent.executor().await, marker());
    let command = Command::argv(["sleep", "300"]).env(MARK, &mark).build().unwrap();
    let _running = within(executor.execute(command)).await.unwrap();
    agent.signal(Signal::TERM);
    until("it ends", async || agent.log().contains("shutting down")).await;
    assert!(!processes_with(&mark).is_empty());
    kill_process(Pid::from_raw(agent.pid()).unwrap(), Signal::KILL).unwrap();
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// Its commands in the background too: another one ends them.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_crashes_while_it_ends_leaves_nothing() {
    let mut agent = Agent::builder().kept().config("shutdown_grace = \"5m\"\nkill_grace = \"200ms\"").start();
    let (executor, mark) = (agent.executor().await, marker());
    let command = Command::shell("trap '' TERM; sleep 300; sleep 300").env(MARK, &mark);
    let command = command.on_disconnect(OnDisconnect::Detach).build().unwrap();
    drop(within(executor.execute(command)).await.unwrap());
    agent.signal(Signal::TERM);
    until("it ends", async || agent.log().contains("shutting down")).await;
    super::crash(agent.serving_pid());
    until("another one ends", async || agent.log().matches("listening on").count() == 2).await;
    // its grace is as long
    super::crash(super::serving(&agent).unwrap());
    agent.ended().await;
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// As a service manager does it.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_hangs_is_killed_when_it_is_asked_again() {
    let mut agent = Agent::builder().kept().start();
    stop(agent.serving_pid()).await;
    agent.signal(Signal::TERM);
    // they are one while the first was not read
    until("it has ended", async || {
        agent.signal(Signal::TERM);
        !std::path::Path::new(&format!("/proc/{}", agent.serving_pid())).exists()
    })
    .await;
    assert_eq!(agent.ended().await.code(), Some(137));
}

/// What waits for it fails, later starts at once; and nothing of them is left once it continues.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_keeper_that_responds_starts_fail_and_the_agent_does_not_serve() {
    let agent = Agent::builder().kept().start();
    let (connected, mark) = (agent.connect().await, marker());
    let executor = connected.executor();
    run(&executor, Command::argv(["true"])).await.unwrap();
    stop(agent.pid()).await;
    let ran = agent.directory().join("ran");
    let sleep = || Command::shell(format!("touch {}; sleep 300", ran.display())).env(MARK, &mark);
    let failed = run(&executor, sleep()).await.unwrap_err().to_string();
    shows("the agent's keeper does not respond", &failed);
    assert!(failed.contains("; gave up waiting for the start"), "{failed}");
    until("it does not serve", async || !connected.ping().await.unwrap().serving).await;
    let failed = run(&executor, sleep()).await.unwrap_err().to_string();
    assert!(failed.contains("does not respond") && failed.ends_with("nothing ran"), "{failed}");
    until("that is logged", async || agent.log().contains("the keeper does not respond")).await;
    shows("the keeper does not respond: nothing can be started", &agent.log());
    agent.signal(Signal::CONT);
    until("it serves", async || connected.ping().await.unwrap().serving).await;
    assert_eq!(run(&executor, Command::argv(["echo", "hi"])).await.unwrap().text(), "hi\n");
    until("that is logged", async || agent.log().contains("the keeper responds again")).await;
    assert!(processes_with(&mark).is_empty() && !ran.exists());
}

#[test]
fn a_keeper_that_is_none_is_refused() {
    for value in ["", "3", "-1:1", "2:1", "7:1", "x:1", "0:0"] {
        let mut command = telexecd();
        command.args(["--listen", "unix:///no/such/place.sock"]).env("TELEXEC_KEEPER", value);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{value}: {said}");
        assert!(said.contains("TELEXEC_KEEPER") || said.contains("another version"), "{value}: {said}");
    }
}

/// What the log does not take is counted, and holds nothing up.
#[tokio::test(flavor = "multi_thread")]
async fn starts_are_in_the_systems_log() {
    let syslog = Syslog::new();
    let agent = Agent::builder().kept().config(format!("keeper_syslog = {:?}", syslog.path())).start();
    let executor = agent.executor().await;
    let start = async || {
        let execution = within(executor.execute(Command::argv(["true"]).build().unwrap())).await.unwrap();
        let (pid, id) = (execution.started().pid, execution.id().clone());
        exit_of(execution).await;
        format!("start of process {pid} as uid {} for \"execution {id}, of unix:uid={}\"\n", geteuid(), geteuid())
    };
    let first = start().await;
    let gap = syslog.take_none();
    start().await;
    start().await;
    drop(gap);
    let last = start().await;
    until("all are logged", async || syslog.lines().contains(&last)).await;
    let tag = format!("<86>telexec-keeper[{}]: ", agent.pid());
    assert_eq!(syslog.lines(), format!("{tag}{first}{tag}2 starts were not logged\n{tag}{last}"));
    assert_eq!(agent.log().matches("cannot log the start of process").count(), 1, "{}", agent.log());
}

/// A service manager knows the keeper, and hears from no other process.
#[tokio::test(flavor = "multi_thread")]
async fn the_service_manager_hears_from_the_keeper() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    rustix::net::sockopt::set_socket_passcred(&manager, true).unwrap();
    let socket = format!("unix://{}", directory.path().join("agent.sock").display());
    let mut command = telexecd();
    command.args(["--keeper", "on", "--listen", &socket]).env("NOTIFY_SOCKET", &path);
    // which is busy
    let busy = UnixDatagram::unbound().unwrap();
    busy.set_nonblocking(true).unwrap();
    let messages = (0..).take_while(|_| busy.send_to(b"X", &path).is_ok()).count();
    let mut keeper = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = Pid::from_child(&keeper);
    let serves = || std::os::unix::net::UnixStream::connect(directory.path().join("agent.sock")).is_ok();
    until("it serves", async || serves()).await;
    (0..messages).for_each(|_| assert_eq!(heard(&manager).0, "X"));
    assert_eq!(heard(&manager), ("READY=1".to_owned(), pid.as_raw_nonzero().get()));
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(heard(&manager), ("STOPPING=1".to_owned(), pid.as_raw_nonzero().get()));
    assert!(keeper.wait().unwrap().success());
}

/// A message, and who has sent it.
fn heard(manager: &UnixDatagram) -> (String, i32) {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let (mut text, mut space) = ([0; 100], [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))]);
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    assert!(manager.as_raw_fd() >= 0);
    let received =
        recvmsg(manager, &mut [std::io::IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::empty()).unwrap();
    let sender = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid.as_raw_nonzero().get()),
        _ => None,
    });
    (String::from_utf8_lossy(&text[..received.bytes]).into_owned(), sender.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_that_it_is_passed_are_its_agents() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("passed.sock");
    let socket = format!("unix:{}", path.display());
    let agent = Agent::builder().kept().passed(&[&socket]).start();
    let outcome = run(&agent.executor().await, Command::shell("ls /proc/self/fd | wc -l")).await.unwrap();
    // 0 to 2, and the directory that is read
    assert_eq!(outcome.text(), "4\n");
    // and those of the next one
    kill_process(Pid::from_raw(agent.serving_pid()).unwrap(), Signal::KILL).unwrap();
    until("another one serves", async || {
        agent.log().matches("listening on").count() == 2
            && run(&agent.executor().await, Command::argv(["true"])).await.is_ok()
    })
    .await;
}

/// As the first process of a machine: a crash of the agent is no end of the machine.
#[tokio::test(flavor = "multi_thread")]
async fn as_the_first_process_it_outlives_its_agent_and_ends_all() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::builder().kept().in_pid_namespace().config("shutdown_grace = \"0s\"").start();
    let mark = marker();
    let stray = "(setsid sleep 300 &) >/dev/null 2>&1; echo $PPID";
    let outcome = run(&agent.executor().await, Command::shell(stray).env(MARK, &mark)).await.unwrap();
    assert_eq!(outcome.text(), "1\n");
    kill_process(Pid::from_raw(agent.serving_pid()).unwrap(), Signal::KILL).unwrap();
    until("another one serves", async || agent.log().matches("listening on").count() == 2).await;
    assert_eq!(run(&agent.executor().await, Command::argv(["echo", "hi"])).await.unwrap().text(), "hi\n");
    until("orphans are reaped", async || children(agent.pid()).iter().all(|process| process.state != 'Z')).await;
    assert!(agent.terminate().await.success(), "{}", agent.log());
    assert_eq!(processes_with(&mark), []);
}
