//! What is reported of a command that ends by itself just when something else is about to end it: what happened.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use telexec_engine::{ContainmentKind, LocalConfig, LocalExecutor};
use telexec_executor::{Attach, Command, CommandBuilder, Descendants, Execution, Executor, ExitCause, Exited, Signal};
use telexec_proto::v1::ExecuteRequest;
use telexec_tests::{Agent, Outcome, Watch, Wire, collect, directory, is_root, run, within};
use tonic::Code;
use tonic_types::StatusExt;

/// An engine for each containment that works here.
fn engines() -> impl Iterator<Item = LocalExecutor> {
    let kinds = [ContainmentKind::CgroupV2, ContainmentKind::CgroupV1, ContainmentKind::ProcessGroup];
    kinds.into_iter().filter_map(|kind| {
        let engine = LocalExecutor::new(LocalConfig { containment: Some(kind), ..LocalConfig::default() });
        engine.inspect_err(|error| eprintln!("partly skipped: {error}")).ok()
    })
}

/// Starts a command that exits with 7, and returns when it has. The engine has not heard of that: it shares this thread.
async fn exited_unheard(engine: &LocalExecutor, more: impl FnOnce(CommandBuilder) -> CommandBuilder) -> Execution {
    let directory = directory();
    let go = directory.path().join("go");
    let command = Command::shell(format!("until [ -e {} ]; do sleep 0.01; done; exit 7", go.display()));
    let execution = within(engine.execute(more(command).build().unwrap())).await.unwrap();
    fs::write(&go, "").unwrap();
    Watch::of([i32::try_from(execution.started().pid).unwrap()]).wait();
    execution
}

async fn exited(execution: Execution) -> Exited {
    within(collect(execution)).await.unwrap().exited
}

#[tokio::test]
async fn a_kill_that_comes_after_the_exit_is_not_what_ended_it() {
    for engine in engines() {
        let execution = exited_unheard(&engine, |command| command).await;
        engine.signal(execution.id(), Signal::KILL).await.unwrap();
        let exited = exited(execution).await;
        assert_eq!((exited.cause, exited.signal), (ExitCause::Exited(7), None), "{:?}", engine.containment());
    }
}

#[tokio::test]
async fn a_cancel_that_comes_after_the_exit_is_not_what_ended_it() {
    for engine in engines() {
        let execution = exited_unheard(&engine, |command| command).await;
        let follower = engine.attach(execution.id(), Attach::start()).await.unwrap();
        drop(execution);
        assert_eq!(exited(follower).await.cause, ExitCause::Exited(7), "{:?}", engine.containment());
    }
}

#[tokio::test]
async fn a_timeout_or_deadline_that_comes_after_the_exit_is_not_what_ended_it() {
    let limit = Duration::from_secs(1);
    for engine in engines() {
        let now = Instant::now();
        let execution = exited_unheard(&engine, |command| command.timeout(limit).deadline(now + 2 * limit)).await;
        // nor does the engine hear of this
        std::thread::sleep((now + 2 * limit + limit / 10).saturating_duration_since(Instant::now()));
        assert_eq!(exited(execution).await.cause, ExitCause::Exited(7), "{:?}", engine.containment());
    }
}

/// One that catches SIGTERM and exits with a code of its own did not end by itself.
#[tokio::test]
async fn what_a_timeout_ends_is_reported_as_that_whatever_its_code() {
    for engine in engines() {
        let text = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";
        let outcome = run(&engine, Command::shell(text).timeout(Duration::from_millis(300))).await.unwrap();
        assert_eq!((outcome.exited.cause, outcome.exited.exit_code()), (ExitCause::TimedOut, -1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_command_ends_with_its_main_process() {
    let grace = Duration::from_millis(1500);
    for engine in engines() {
        let directory = directory();
        let text = "(trap '' TERM; echo > ready; while :; do sleep 0.1; done) & until [ -e ready ]; do sleep 0.01; done; exit 3";
        let command = Command::shell(text).working_directory(directory.path().to_str().unwrap());
        let command = command.descendants(Descendants::Kill).kill_grace(grace);
        let began = Instant::now();
        let Outcome { exited, .. } = run(&engine, command).await.unwrap();
        assert!(exited.cause == ExitCause::Exited(3) && began.elapsed() >= grace, "{exited:?}");
        assert!(exited.wall_time < grace, "the grace of what it left is no part of it: {exited:?}");
    }
}

/// An agent in a memory cgroup of version 1 with a limit, if such cgroups can be made here; and that cgroup.
fn in_little_memory(containment: &str) -> Option<(Agent, PathBuf)> {
    let cgroup = PathBuf::from(format!("/sys/fs/cgroup/memory/telexec-test-{}", telexec_tests::marker()));
    if !cgroup.with_file_name("memory.limit_in_bytes").exists() || fs::create_dir(&cgroup).is_err() {
        eprintln!("skipped: no memory cgroup of version 1 can be made here");
        return None;
    }
    fs::write(cgroup.join("memory.limit_in_bytes"), "256M").unwrap();
    let _ = fs::write(cgroup.join("memory.memsw.limit_in_bytes"), "256M");
    let agent = Agent::builder().config(format!("containment = \"{containment}\""));
    let agent = agent.after(&format!("echo $$ > {}/cgroup.procs", cgroup.display())).try_start();
    agent.inspect_err(|refused| eprintln!("partly skipped: {containment}: {refused}")).ok().map(|agent| (agent, cgroup))
}

/// The limit is not the command's, but that of a cgroup above it.
#[tokio::test(flavor = "multi_thread")]
async fn a_memory_kill_without_a_limit_of_its_own_is_reported() {
    for containment in ["cgroup-v1", "cgroup-v2", "process-group"] {
        let Some((agent, cgroup)) = in_little_memory(containment) else { continue };
        let executor = agent.executor().await;
        let hog = || Command::shell("ulimit -v 4000000; exec tail /dev/zero");
        for _ in 0..2 {
            let outcome = run(&executor, hog()).await.unwrap();
            assert_eq!(outcome.exited.cause, ExitCause::OutOfMemory, "{containment}");
            let killed = run(&executor, Command::shell("kill -9 $$")).await.unwrap();
            assert_eq!((killed.exited.cause, killed.exited.signal), (ExitCause::Signaled, Some(Signal::KILL)));
        }
        // who was ended is known only by a cgroup of its own
        let other = Command::shell("read -r; kill -9 $$").accepts_input(true).build().unwrap();
        let other = executor.execute(other).await.unwrap();
        run(&executor, hog()).await.unwrap();
        let input = telexec_executor::Input { data: "\n".into(), close: true, offset: None };
        executor.write_input(other.id(), input).await.unwrap();
        assert_eq!(exited(other).await.cause, ExitCause::Signaled, "{containment}");
        drop(agent);
        fs::remove_dir(cgroup).unwrap();
    }
}

/// For any user of the command, and so wherever the report is written.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_where_a_directory_is_to_be_reported() {
    if !is_root() {
        return;
    }
    let place = directory();
    let path = place.path().to_str().unwrap();
    let mount = format!("mount -t tmpfs -o nr_inodes=40,mode=0755 none {path} || exit 77");
    let agent = Agent::builder().args(["--state-dir", &format!("{path}/state")]).env("TMPDIR", path);
    let agent = match agent.through(["unshare", "--mount"]).after(&mount).try_start() {
        Ok(agent) => agent,
        Err(refused) => return eprintln!("skipped: nothing can be mounted here: {refused}"),
    };
    let seen = PathBuf::from(format!("/proc/{}/root{path}", agent.pid()));
    assert!((0..50).any(|number| fs::write(seen.join(number.to_string()), "").is_err()));
    let wire = Wire::connect(&agent).await.unwrap();
    for user in ["", "nobody"] {
        let command = "true".to_owned();
        let request =
            ExecuteRequest { command, user: user.into(), report_working_directory: true, ..Default::default() };
        let status = within(wire.executions().run(request)).await.unwrap_err();
        let info = status.get_details_error_info().unwrap();
        assert_eq!((status.code(), info.metadata["errno"].as_str()), (Code::ResourceExhausted, "ENOSPC"), "{user:?}");
    }
}
