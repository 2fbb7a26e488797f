//! An agent that is not root, with a keeper that is.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use telexec_client::{Dial, Endpoint};
use telexec_executor::{
    Command, Executor, ExecutorError, ExitCause, FileTarget, Files, ListQuery, OnDisconnect, Signal,
};
use telexec_tests::{
    AGENT_USER, Agent, AgentBuilder, Certs, Hierarchy, MARK, Refused, collect, is_root, marker, processes_with, run,
    until, until_output, within,
};

use super::{crash, crash_and_wait};

/// `None`: there can be none here.
fn agent(config: &str) -> Option<Agent> {
    builder(config).map(AgentBuilder::start)
}

fn builder(config: &str) -> Option<AgentBuilder> {
    let is_possible = is_root() && Hierarchy::Unified.usable().is_some();
    is_possible.then(|| Agent::builder().config(config).agent_user())
}

fn refused(config: &str) -> Option<Refused> {
    builder(config).map(|builder| builder.try_start().err().unwrap())
}

async fn said(agent: &Agent, user: &str, text: &str) -> String {
    let outcome = run(&agent.executor().await, Command::shell(text).user(user)).await.unwrap();
    outcome.text().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_has_no_privileges() {
    let Some(agent) = agent("") else { return };
    let uid = said(&agent, "root", &format!("id -u {AGENT_USER}")).await;
    let info = within(agent.connect().await.info()).await.unwrap();
    assert_eq!((&*info.agent_user, &*info.default_user, info.has_keeper), (AGENT_USER, "root", true));
    for _ in 0..2 {
        let pid = super::serving(&agent).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        assert_eq!(field("Uid:").split_whitespace().collect::<Vec<_>>(), [uid.trim(); 4]);
        for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(field(capabilities), "0000000000000000", "{capabilities}");
        }
        assert_eq!((&*field("NoNewPrivs:"), &*field("Seccomp:")), ("1", "2"));
        // its memory is root's
        assert_eq!(std::fs::metadata(format!("/proc/{pid}/mem")).unwrap().uid(), 0);
        crash_and_wait(&agent).await;
    }
}

/// As another user: by files, sockets, signals, or its processes' memory.
#[tokio::test(flavor = "multi_thread")]
async fn commands_do_not_reach_it_or_each_other() {
    let log = tempfile::tempdir().unwrap();
    std::fs::set_permissions(log.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let file = log.path().join("log/audit.log");
    let Some(agent) = agent(&format!("[audit]\nfile = {file:?}")) else { return };
    let executor = agent.executor().await;
    let secret = Command::shell("echo secret; exec sleep 300").user("nobody").env("SECRET", "secret");
    let mut other =
        within(executor.execute(secret.on_disconnect(OnDisconnect::Detach).build().unwrap())).await.unwrap();
    until_output(&mut other, "secret\n").await;
    let (serving, keeper, pid) = (super::serving(&agent).unwrap(), agent.pid(), other.started().pid);
    let directory = agent.directory().display();
    let (log, socket) = (log.path().display(), agent.address());
    for attempt in [
        format!("cat /proc/{serving}/environ"),
        format!("head -c 1 /proc/{serving}/mem"),
        format!("cat /proc/{serving}/maps"),
        format!("ls /proc/{serving}/fd"),
        format!("cat /proc/{keeper}/environ"),
        format!("cat /proc/{pid}/environ"),
        format!("kill -9 {serving}"),
        format!("kill -9 {keeper}"),
        format!("kill -9 {pid}"),
        format!("ls {directory}/state"),
        format!("cat {directory}/state/lock"),
        format!("ls {log}/log"),
        format!("echo >> {log}/log/audit.log"),
        format!("python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{socket}\")'"),
        "d=$(sed -n 's/^0:://p' /proc/self/cgroup); m=$(awk '$3 == \"cgroup2\" { print $2; exit }' /proc/mounts); \
         echo 1 > $m$d/cgroup.kill"
            .to_owned(),
    ] {
        let outcome = run(&executor, Command::shell(&attempt).user("daemon")).await.unwrap();
        assert!(!matches!(outcome.exited.cause, ExitCause::Exited(0)), "{attempt}: {}", outcome.text());
        assert!(matches!(outcome.exited.cause, ExitCause::Exited(_)), "{attempt}");
    }
    assert_eq!(super::serving(&agent), Some(serving), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_others_are_signalled_and_ended_and_have_what_is_theirs() {
    let Some(agent) = agent("") else { return };
    let (executor, mark) = (agent.executor().await, marker());
    let text = "trap 'echo caught' USR1; trap '' TERM; setsid sleep 300 & (setsid sh -c 'sleep 300 &' &); echo ready
                while :; do sleep 0.05; done";
    let grace = std::time::Duration::from_millis(200);
    let command = Command::shell(text).user("daemon").env(MARK, &mark).kill_grace(grace).build().unwrap();
    let mut execution = within(executor.execute(command)).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    executor.signal(execution.id(), "USR1".parse().unwrap()).await.unwrap();
    until_output(&mut execution, "caught\n").await;
    drop(execution);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    // streams, a terminal, and where a shell ended
    assert_eq!(said(&agent, "daemon", "echo again > /dev/stdout; cat < /dev/stdin").await, "again\n");
    let terminal = Command::shell("stat -c %U $(tty); echo through > /dev/tty").user("daemon");
    let size = telexec_executor::TerminalSize::new(80, 24).unwrap();
    assert_eq!(run(&executor, terminal.terminal(size)).await.unwrap().text(), "daemon\r\nthrough\r\n");
    for user in ["daemon", "root"] {
        let ended = Command::shell("cd /usr").user(user).report_working_directory(true);
        let ended = run(&executor, ended).await.unwrap().exited;
        assert_eq!(ended.working_directory.as_deref(), Some("/usr"), "{user}");
    }
}

/// As only root can do it.
#[tokio::test(flavor = "multi_thread")]
async fn cgroups_that_a_command_has_closed_to_it_hold_up_nothing() {
    let Some(agent) = agent("kill_grace = \"200ms\"") else { return };
    let (executor, mark) = (agent.executor().await, marker());
    let text = r#"
        cd "$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)$(sed -n 's/^0:://p' /proc/self/cgroup)" || exit
        mkdir -p a/b c && chmod 0 c/cgroup.procs
        (echo 0 >a/b/cgroup.procs; exec sleep 300) &
        until [ -n "$(cat a/b/cgroup.procs)" ]; do :; done
        chmod 0 a/b a; echo closed; exec sleep 300"#;
    let command = Command::shell(text).user("root").env(MARK, &mark).build().unwrap();
    let mut running = within(executor.execute(command)).await.unwrap();
    until_output(&mut running, "closed\n").await;
    let id = running.started().id.clone();
    let listed = within(executor.list(ListQuery::default())).await.unwrap();
    assert_eq!(listed.executions.iter().map(|info| &info.id).collect::<Vec<_>>(), [&id]);
    within(executor.signal(&id, Signal::CONT)).await.unwrap();
    drop(running);
    until("it has ended", async || processes_with(&mark).is_empty()).await;
    until("its end is known", async || {
        let ended = within(executor.get(&id)).await.unwrap().exited;
        ended.is_some_and(|exited| exited.surviving_processes == 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_never_run_as_it_and_without_a_name_as_the_first_that_is_allowed() {
    let Some(agent) = agent("") else { return };
    assert!(agent.log().contains("set command_users"), "{}", agent.log());
    for name in [AGENT_USER, said(&agent, "root", &format!("id -u {AGENT_USER}")).await.trim()] {
        let refused = run(&agent.executor().await, Command::argv(["true"]).user(name)).await.unwrap_err();
        assert!(
            matches!(&refused, ExecutorError::Denied { reason, .. } if reason.contains("agent's user")),
            "{refused}"
        );
    }
    assert_eq!(run(&agent.executor().await, Command::shell("id -un")).await.unwrap().text(), "root\n");
    let agent = self::agent("command_users = [\"daemon\", \"nobody\"]").unwrap();
    assert!(!agent.log().contains("set command_users"), "{}", agent.log());
    assert_eq!(
        run(&agent.executor().await, Command::shell("id -un; id -gn")).await.unwrap().text(),
        "daemon\ndaemon\n"
    );
    assert_eq!(said(&agent, "nobody", "id -un").await, "nobody\n");
    let refused = run(&agent.executor().await, Command::argv(["true"]).user("root")).await.unwrap_err();
    assert!(refused.to_string().contains("command_users"), "{refused}");
    // files and sockets too
    let client = agent.connect().await;
    let closed = client.files().info(FileTarget::new("/root/x")).await.unwrap_err();
    assert!(closed.to_string().to_lowercase().contains("denied"), "{closed}");
    let room = tempfile::tempdir().unwrap();
    std::fs::set_permissions(room.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = room.path().join("socket");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    let path = path.to_str().unwrap().to_owned();
    let _connected = within(client.forwards().connect(Dial::To(Endpoint::Unix(path.clone())))).await.unwrap();
    assert_eq!(within(listener.accept()).await.unwrap().0.peer_cred().unwrap().uid(), 1);
    let refused = within(client.forwards().connect(Dial::UnixAs { path, user: AGENT_USER.into() })).await;
    assert!(refused.is_err_and(|refused| refused.to_string().contains("agent's user")));
}

/// Those of root become the agent's; others are a matter of who has made them.
/// By who restarts an agent whose keeper was killed, without waiting for it.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_keeper_it_ends_all_before_the_next_one_serves() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(directory.path().join("socket")).unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let start = || {
        let builder = builder("kill_grace = \"30s\"\nshutdown_grace = \"5m\"")?
            .listen(&format!("unix://{}", at("socket/agent.sock")));
        Some(builder.args(["--state-dir", &at("state")]).start())
    };
    let Some(first) = start() else { return };
    let (executor, mark) = (first.executor().await, marker());
    for text in ["trap '' TERM; sleep 300; sleep 300", "setsid sleep 300 & sleep 300"] {
        let command = Command::shell(text).env(MARK, &mark).on_disconnect(OnDisconnect::Detach).build().unwrap();
        drop(within(executor.execute(command)).await.unwrap());
    }
    until("all run", async || processes_with(&mark).len() >= 5).await;
    crash(first.pid());
    let second = start().unwrap();
    assert_eq!(processes_with(&mark), []);
    assert!(!second.log().contains("left"), "{}", second.log());
}

/// One whose keeper lives, but in another pid namespace, is no dead keeper's.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_one_in_another_pid_namespace_spares_it() {
    let Some(first) = agent("") else { return };
    let (executor, serving) = (first.executor().await, super::serving(&first));
    let mark = marker();
    let command = Command::argv(["sleep", "300"]).env(MARK, &mark).build().unwrap();
    let _running = within(executor.execute(command)).await.unwrap();
    let second = builder("").unwrap().in_pid_namespace().start();
    run(&second.executor().await, Command::argv(["true"])).await.unwrap();
    assert_eq!(super::serving(&first), serving);
    assert_eq!(processes_with(&mark).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_over_the_directories_of_an_agent_that_was_root() {
    let base = tempfile::tempdir().unwrap();
    std::fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (state, log) = (base.path().join("state"), base.path().join("log/audit.log"));
    let config = format!("[audit]\nfile = {log:?}");
    let with_state = |builder: AgentBuilder| builder.args(["--state-dir", state.to_str().unwrap()]);
    let Some(separate) = builder(&config) else { return };
    let mut first = with_state(Agent::builder().kept().config(&config)).start();
    let detached = Command::shell("echo kept").on_disconnect(OnDisconnect::Detach);
    let ended = run(&first.executor().await, detached).await.unwrap();
    assert!(first.terminate().await.success());
    let mut second = with_state(separate).start();
    let start = telexec_executor::Attach::start();
    let again = within(second.executor().await.attach(&ended.started.id, start)).await.unwrap();
    assert_eq!(collect(again).await.unwrap().text(), "kept\n");
    assert!(second.terminate().await.success());
    let mut verify = telexec_tests::telexecd();
    let verified = verify.args(["audit", "verify"]).arg(&log).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    for path in [&*state, log.parent().unwrap(), &*log] {
        assert_ne!(path.metadata().unwrap().uid(), 0, "{path:?}");
    }
    // also where one has closed them to its successors
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o000)).unwrap();
    let third = with_state(builder(&config).unwrap()).start();
    run(&third.executor().await, Command::argv(["true"])).await.unwrap();
}

#[test]
fn what_may_be_others_is_not_given_away() {
    let base = tempfile::tempdir().unwrap();
    std::fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let state = base.path().join("state");
    let outside = base.path().join("outside");
    std::fs::write(&outside, "").unwrap();
    std::fs::create_dir(&state).unwrap();
    let with_state = |path: &Path| {
        let builder = builder("")?.args(["--state-dir", path.to_str().unwrap()]);
        Some(builder.try_start().map(drop))
    };
    let refused = |path: &Path, reason: &str| {
        let Some(started) = with_state(path) else { return };
        let refused = started.unwrap_err();
        assert!(refused.status.code() == Some(78) && refused.log.contains(reason), "{reason}: {refused}");
        assert_eq!(path.metadata().unwrap().uid(), 0);
    };
    std::fs::write(state.join("other"), "").unwrap();
    refused(&state, "it also contains other");
    std::fs::remove_file(state.join("other")).unwrap();
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o775)).unwrap();
    refused(&state, "writable by users other than root");
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(state.join("spool-x")).unwrap();
    std::fs::write(state.join("spool-x/program"), "").unwrap();
    std::fs::set_permissions(state.join("spool-x/program"), PermissionsExt::from_mode(0o4755)).unwrap();
    refused(&state, "set-user-ID");
    std::fs::remove_file(state.join("spool-x/program")).unwrap();
    // below a directory of another user, who could have put a link there
    let room = base.path().join("room");
    std::fs::create_dir_all(room.join("state")).unwrap();
    if is_root() {
        chown(&room, Some(1), Some(1)).unwrap();
        refused(&room.join("state"), "belongs to a user other than root");
    }
    // below one in which others could put a link in its place
    if is_root() {
        chown(&room, Some(0), Some(0)).unwrap();
        std::fs::set_permissions(&room, PermissionsExt::from_mode(0o777)).unwrap();
        refused(&room.join("state"), "room is writable by users other than root");
        std::fs::remove_dir(room.join("state")).unwrap();
        std::fs::set_permissions(&room, PermissionsExt::from_mode(0o1777)).unwrap();
        if let Some(started) = with_state(&room.join("state")) {
            started.unwrap();
        }
    }
    // links lead nowhere
    std::os::unix::fs::symlink(&outside, state.join("spool-x/link")).unwrap();
    std::fs::hard_link(&outside, state.join("spool-x/hard")).unwrap();
    if let Some(started) = with_state(&state) {
        started.unwrap();
        assert_eq!(outside.metadata().unwrap().uid(), 0);
        assert_ne!(state.metadata().unwrap().uid(), 0);
    }
}

#[test]
fn what_does_not_go_together_is_said_before_anything_starts() {
    let certs = Certs::new();
    let key = certs.agent.key.to_str().unwrap().to_owned();
    for (config, reason) in [
        ("command_users = [\"games\"]".to_owned(), "games is in command_users too"),
        ("command_users = [\"nobody-at-all\"]".to_owned(), "command_users: cannot look up the user nobody-at-all"),
        ("containment = \"process-group\"".to_owned(), "requires containment = \"cgroup-v2\""),
    ] {
        let Some(refused) = refused(&config) else { return };
        assert!(refused.status.code() == Some(78) && refused.log.contains(reason), "{config}: {refused}");
    }
    let with = |args: &[&str]| Agent::builder().args(args.iter().copied()).try_start().err().unwrap();
    for (args, reason) in [
        (["--agent-user", "games", "--keeper", "off"], "agent_user requires a keeper: remove keeper = \"off\""),
        (["--agent-user", "root", "--keeper", "on"], "agent_user must not be root"),
        (
            ["--agent-user", "nobody-at-all", "--keeper", "on"],
            "agent_user: cannot look up the user nobody-at-all: no such user",
        ),
    ] {
        let refused = with(&args);
        assert!(refused.status.code() == Some(78) && refused.log.contains(reason), "{args:?}: {refused}");
    }
    let low = Agent::builder().listen("tcp://127.0.0.1:1").args(["--insecure"]).agent_user().try_start().err().unwrap();
    assert!(low.log.contains("may not listen on tcp://127.0.0.1:1: ports below"), "{low}");
    let of_nobody = Agent::builder().user(telexec_tests::NOBODY).args(["--agent-user", "games", "--keeper", "on"]);
    let refused = of_nobody.try_start().err().unwrap();
    assert!(refused.log.contains("only root can run the agent as another user"), "{refused}");
    // a key that it may not read: also for who only checks
    let refused = builder("").unwrap().mtls(&certs).try_start().err().unwrap();
    assert!(refused.log.contains("games has no access to") && refused.log.contains(&key), "{refused}");
    let mut check = telexec_tests::telexecd();
    check.args(["--check-config", "--listen", "tcp://127.0.0.1:0", "--keeper", "on", "--agent-user", "games"]);
    let pair = [&certs.agent.cert, &certs.agent.key, &certs.ca.cert()];
    ["--tls-cert", "--tls-key", "--client-ca"].iter().zip(pair).for_each(|(flag, file)| {
        check.arg(flag).arg(file);
    });
    let checked = check.output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.code() == Some(78) && said.contains("games has no access to"), "{said}");
}
