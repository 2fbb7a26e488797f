//! Agents that are killed, and the next ones on their state directories.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::{Command as Program, Stdio};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use telexec_executor::{Command, CommandBuilder, Event, Execution, Executor, OnDisconnect};
use telexec_tests::{Agent, MARK, cgroups, marker, processes_with, program, rounds, run, until, until_output, within};

/// A tree that is hard to end: a session of its own, an orphan, one that ignores SIGTERM, one without any environment.
fn tree(mark: &str) -> CommandBuilder {
    Command::shell(format!(
        "trap '' TERM; setsid sleep 300 & (setsid sh -c 'sleep 300 & wait' &); \
         env -i sh -c 'sleep 300; :' {mark} & echo ready; while :; do sleep 300; done"
    ))
}

async fn started(agent: &Agent, command: CommandBuilder, mark: &str) -> Execution {
    let command = command.env(MARK, mark).report_working_directory(true).build().unwrap();
    let mut execution = agent.executor().await.execute(command).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    execution
}

fn names(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

async fn the_next_agent_ends_what_was_bound_and_spares_the_rest(containment: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (state, temporary) = (directory.path().join("state"), directory.path().join("tmp"));
    fs::create_dir(&temporary).unwrap();
    let agent = || {
        let agent = Agent::builder().args(["--state-dir", state.to_str().unwrap()]);
        agent.config(format!("containment = {containment:?}")).env("TMPDIR", temporary.to_str().unwrap()).try_start()
    };
    let Ok(mut killed) = agent() else {
        eprintln!("skipped: no {containment} here");
        return;
    };
    let marks: [String; 5] = std::array::from_fn(|_| marker());
    let [bound, resumable, detached, promoted, survivor] = &marks;
    let _bound = started(&killed, tree(bound), bound).await;
    let id = marker().parse().unwrap();
    let _resumable = started(&killed, tree(resumable).execution_id(id), resumable).await;
    let sleeper = || Command::shell("echo ready; while :; do sleep 300; done");
    let _detached = started(&killed, sleeper().on_disconnect(OnDisconnect::Detach), detached).await;
    let command = sleeper().yield_after(Duration::ZERO).env(MARK, promoted).build().unwrap();
    let mut followed = killed.executor().await.execute(command).await.unwrap();
    while !matches!(within(followed.next()).await.unwrap().unwrap(), Event::Promoted) {}
    let sleeps = || processes_with(promoted).iter().any(|process| process.name == "sleep");
    until("it sleeps", async || sleeps()).await;
    let survives = Command::shell("sleep 300 >/dev/null 2>&1 & exit 0").env(MARK, survivor);
    let outcome = run(&killed.executor().await, survives).await.unwrap();
    assert_eq!(outcome.exited.surviving_processes, 1);
    // it is noted after its exit is reported
    until("three are noted", async || {
        let spool = state.join(names(&state).into_iter().find(|name| name.starts_with("spool-")).unwrap());
        let is_whole = |name: &String| fs::read(spool.join(name)).is_ok_and(|it| it == b"null" || it.ends_with(b"}"));
        names(&spool).iter().filter(|name| name.starts_with("outlives-") && is_whole(name)).count() == 3
    })
    .await;
    let trees = cgroups(killed.pid()).len();
    killed.kill();

    let mut next = agent().unwrap();
    // before it listens
    for mark in [bound, resumable] {
        assert_eq!(processes_with(mark), [], "bound to a call");
    }
    for mark in [detached, promoted, survivor] {
        assert!(!processes_with(mark).is_empty(), "meant to outlive its call");
    }
    let log = next.log();
    assert!(log.contains("ended processes that a killed agent left running"), "{log}");
    assert!(log.contains("telexec can no longer reach them"), "{log}");
    let kept = |name: &String| name.starts_with("cwd-") || name.starts_with("outlives-");
    assert!(names(&state).iter().all(|name| !kept(name)), "{:?}", names(&state));
    assert_eq!(names(&temporary), [""; 0]);
    assert_eq!(names(&state).iter().filter(|name| name.starts_with("spool-")).count(), 1);
    for mark in [detached, promoted, survivor] {
        until("the rest is gone", async || {
            let left = processes_with(mark);
            for process in &left {
                let _ = kill_process(Pid::from_raw(process.pid).unwrap(), Signal::KILL);
            }
            left.is_empty()
        })
        .await;
    }
    assert!(next.terminate().await.success());
    // the one after it finds nothing but empty cgroups
    let third = agent().unwrap();
    assert!(!third.log().contains("killed agent"), "{}", third.log());
    assert!(trees > 0 || containment == "process-group");
    assert_eq!(cgroups(killed.pid()), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_ends_what_was_bound_with_cgroup_v2() {
    the_next_agent_ends_what_was_bound_and_spares_the_rest("cgroup-v2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_ends_what_was_bound_with_cgroup_v1() {
    the_next_agent_ends_what_was_bound_and_spares_the_rest("cgroup-v1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_ends_what_was_bound_with_process_group() {
    the_next_agent_ends_what_was_bound_and_spares_the_rest("process-group").await;
}

/// As of `env -i` and sudo: only their session shows whose they are.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_ends_commands_with_a_cleaned_environment() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let agent = || {
        let agent = Agent::builder().args(["--state-dir", state.to_str().unwrap()]);
        agent.config("containment = \"process-group\"").start()
    };
    let mut killed = agent();
    let [bound, detached] = [marker(), marker()];
    let clean = |mark: &str| format!("exec env -i sh -c 'echo ready; env -i sleep 300; :' {mark}");
    let _bound = started(&killed, Command::shell(clean(&bound)), &bound).await;
    let spared = Command::shell(clean(&detached)).on_disconnect(OnDisconnect::Detach);
    let _detached = started(&killed, spared, &detached).await;
    let is_noted = async || {
        let spool = names(&state).into_iter().find(|name| name.starts_with("spool-")).unwrap();
        let sessions = fs::read_to_string(state.join(spool).join("sessions")).unwrap_or_default();
        sessions.lines().filter(|line| !line.trim().is_empty()).count() == 2
    };
    until("both are noted", is_noted).await;
    killed.kill();
    let _next = agent();
    assert_eq!(processes_with(&bound), [], "bound to a call");
    let left = processes_with(&detached);
    assert!(!left.is_empty(), "meant to outlive its call");
    for process in left {
        let _ = kill_process(Pid::from_raw(process.pid).unwrap(), Signal::KILL);
    }
}

/// `telexec exec local` has no state directory: what is left of it is in the directory for temporary files.
#[tokio::test]
async fn the_next_engine_removes_temporary_state_directories() {
    let (temporary, mark) = (tempfile::tempdir().unwrap(), marker());
    let telexec = || {
        let mut telexec = Program::new(program("telexec"));
        telexec.args(["exec", "local", "--"]).env("TMPDIR", temporary.path()).stdin(Stdio::null());
        telexec
    };
    let environment = format!("{MARK}={mark}");
    // its main process stays, which setsid(1) alone does not
    let text = "setsid sleep 300 & wait";
    let mut killed = telexec().args(["env", &environment, "sh", "-c", text]).spawn().unwrap();
    let runs = || processes_with(&mark).iter().any(|process| process.name == "sleep");
    until("it runs", async || runs()).await;
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(names(temporary.path()).len(), 1);
    assert!(telexec().arg("true").status().unwrap().success());
    assert_eq!((processes_with(&mark), names(temporary.path())), (vec![], vec![]));
}

/// Killed at any moment: what runs then is ended by the next agent.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_while_commands_start_leaves_nothing_bound() {
    let (directory, mark) = (tempfile::tempdir().unwrap(), marker());
    let state = directory.path().join("state");
    let agent = || Agent::builder().args(["--state-dir", state.to_str().unwrap()]).start();
    for round in 0..rounds(5) {
        let mut killed = agent();
        let machine = killed.executor().await;
        let start = async |i: u32| {
            let command = match i % 4 {
                0 => Command::argv(["sleep", "1"]).on_disconnect(OnDisconnect::Detach),
                _ => Command::argv(["sleep", "300"]).env(MARK, &mark),
            };
            let _execution = machine.execute(command.build().unwrap()).await;
            std::future::pending::<()>().await;
        };
        let all = join_all((0..20).map(start));
        let moment = Duration::from_micros(u64::from(fastrand::u32(..20_000)));
        let _ = tokio::time::timeout(moment, all).await;
        killed.kill();
        let _next = agent();
        assert_eq!(processes_with(&mark), [], "round {round}");
    }
}

/// Where the notes of the agent were removed with all else, they are made again with it.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_ends_what_was_bound_where_the_state_directory_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let agent = || Agent::builder().args(["--state-dir", state.to_str().unwrap()]).start();
    let mut killed = agent();
    let [bound, detached] = [marker(), marker()];
    let _bound = started(&killed, tree(&bound), &bound).await;
    let sleeper = Command::shell("echo ready; exec sleep 300").on_disconnect(OnDisconnect::Detach);
    let _detached = started(&killed, sleeper, &detached).await;
    fs::remove_dir_all(&state).unwrap();
    run(&killed.executor().await, Command::argv(["true"]).on_disconnect(OnDisconnect::Detach)).await.unwrap();
    killed.kill();

    let next = agent();
    assert_eq!(processes_with(&bound), [], "bound to a call");
    assert!(!processes_with(&detached).is_empty(), "meant to outlive its call");
    assert!(next.log().contains("telexec can no longer reach them"), "{}", next.log());
    for process in processes_with(&detached) {
        let _ = kill_process(Pid::from_raw(process.pid).unwrap(), Signal::KILL);
    }
}

/// A tool that clears away empty cgroups takes the agent's too, which is made again.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_ends_what_was_bound_in_cgroups_that_were_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let agent =
        || Agent::builder().args(["--state-dir", state.to_str().unwrap()]).config("require_containment = \"cgroup\"");
    let Ok(mut killed) = agent().try_start() else { return eprintln!("skipped: no cgroups here") };
    until("its cgroups are gone", async || {
        let mut left = cgroups(killed.pid());
        left.sort_by_key(|path| std::cmp::Reverse(path.as_os_str().len()));
        left.iter().for_each(|path| drop(fs::remove_dir(path)));
        cgroups(killed.pid()).is_empty()
    })
    .await;
    let mark = marker();
    // only its cgroup shows whose it is
    let text = format!("(env -i setsid sh -c 'sleep 300; :' {mark} >/dev/null 2>&1 &); echo ready; exec sleep 300");
    let _bound = started(&killed, Command::shell(text), &mark).await;
    killed.kill();
    let _next = agent().start();
    assert_eq!(processes_with(&mark), []);
}
