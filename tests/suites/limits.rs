//! Limits of what a command may use, however its processes are kept together.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use telexec_executor::{Command, Descendants, Executor, ExecutorError, ExitCause, ResourceLimits};
use telexec_proto::v1::ExecuteRequest;
use telexec_tests::{
    Agent, AgentBuilder, Gate, MARK, MemoryLimit, NOBODY, Outcome, Wire, cgroups, exit_of, is_root, marker,
    processes_with, run, until, until_output, within,
};
use tonic::Code;
use tonic_types::StatusExt;

const MIB: u64 = 1024 * 1024;

/// Takes all memory that it gets; where that is not limited, it fails soon.
const HOG: &str = "ulimit -v 4000000; tail /dev/zero";

fn memory(bytes: u64) -> ResourceLimits {
    ResourceLimits { memory_bytes: Some(bytes), ..Default::default() }
}

fn processes(most: u32) -> ResourceLimits {
    ResourceLimits { max_processes: Some(most), ..Default::default() }
}

const ALL: ResourceLimits = ResourceLimits { memory_bytes: Some(64 * MIB), max_processes: Some(50), cpus: Some(1.5) };

/// An agent for each way to keep processes together that works here, if limits can be held here at all.
async fn agents() -> Vec<Agent> {
    let mut agents = Vec::new();
    for containment in ["cgroup-v2", "cgroup-v1", "process-group"] {
        let agent = match with(containment).try_start() {
            Ok(agent) => agent,
            Err(refused) => {
                eprintln!("partly skipped: {containment} does not work here: {refused}");
                continue;
            }
        };
        match run(&agent.executor().await, Command::argv(["true"]).limits(ALL)).await {
            Err(error @ ExecutorError::Unsupported { .. }) => eprintln!("partly skipped: {containment}: {error}"),
            outcome => {
                outcome.unwrap();
                agents.push(agent);
            }
        }
    }
    agents
}

#[tokio::test(flavor = "multi_thread")]
async fn what_limited_commands_used_is_known() {
    for agent in agents().await {
        let executor = agent.executor().await;
        // the last line of tail's input is in its memory
        let text = "head -c 20000000 /dev/zero | tail -n 1 | wc -c";
        let outcome = run(&executor, Command::shell(text).limits(ALL)).await.unwrap();
        assert_eq!(outcome.stdout, b"20000000\n");
        let usage = outcome.exited.usage;
        // of version 1 only if the controllers for it are mounted together
        let is_unified = agent.connect().await.info().await.unwrap().containment == "cgroup-v2";
        assert!(usage.cpu_time().map_or(!is_unified, |time| !time.is_zero()), "{usage:?}");
        // of version 2 the kernel counts it since 5.19
        if let Some(peak) = usage.peak_memory_bytes {
            assert!((20_000_000..=64 * MIB).contains(&peak), "{usage:?}");
        }
        assert!(usage.peak_processes.is_none_or(|most| (2..=50).contains(&most)), "{usage:?}");
    }
}

fn with(containment: &str) -> AgentBuilder {
    Agent::builder().config(format!("containment = \"{containment}\""))
}

/// Text for a shell, which prints files of its own cgroups, those that telexec made. It starts no process for that: there
/// may be little processor time.
fn own(files: &str) -> String {
    format!(
        "while IFS=: read -r number controllers path; do
            case $path in */telexec.*) ;; *) continue ;; esac
            for mount in /sys/fs/cgroup /sys/fs/cgroup/*; do
                for file in {files}; do
                    if [ -e $mount$path/$file ] && read -r value < $mount$path/$file; then echo $file $value; fi
                done
            done
        done < /proc/self/cgroup"
    )
}

/// Those of executions are numbered.
fn of_executions(pid: i32) -> Vec<PathBuf> {
    let is_number = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().parse::<u64>().is_ok();
    cgroups(pid).into_iter().filter(is_number).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_wants_more_memory_than_it_may_have_is_ended_and_told_so() {
    for agent in agents().await {
        let executor = agent.executor().await;
        // one that is ended itself, and one that only learns of it
        for text in [HOG.replace("tail", "exec tail"), format!("{HOG}; exit $?")] {
            let outcome = run(&executor, Command::shell(text).shell("sh").limits(memory(32 * MIB))).await.unwrap();
            let exited = &outcome.exited;
            assert_eq!((exited.cause, exited.exit_code()), (ExitCause::OutOfMemory, -1), "{agent:?}");
        }
        // nothing of that clings to the next one
        let outcome = run(&executor, Command::argv(["false"]).limits(memory(32 * MIB))).await.unwrap();
        assert_eq!(outcome.exited.cause, ExitCause::Exited(1));
    }
}

/// Without a cgroup of its own a command is in the agent's, with others.
#[tokio::test(flavor = "multi_thread")]
async fn that_another_was_ended_for_want_of_memory_is_not_told_of_a_command() {
    let Some(limit) = MemoryLimit::new(256 * MIB) else {
        eprintln!("skipped: no cgroup with a limit of memory can be made here");
        return;
    };
    let agent = with("process-group").after(&limit.enter()).start();
    let (executor, gate) = (agent.executor().await, Gate::new());
    let command = Command::shell(format!("echo ready; {}; exit 7", gate.wait())).build().unwrap();
    let mut execution = executor.execute(command).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    let hog = format!("{}; echo 1000 > /proc/$$/oom_score_adj; exec tail /dev/zero", limit.enter());
    let ended = std::process::Command::new("sh").args(["-c", &hog]).status().unwrap();
    assert_eq!(ended.signal(), Some(9));
    let _open = gate.open();
    assert_eq!(exit_of(execution).await.cause, ExitCause::Exited(7));
    // one of its own is
    for text in ["exec tail /dev/zero", "tail /dev/zero; exit $?"] {
        let outcome = run(&executor, Command::shell(text).shell("sh")).await.unwrap();
        assert_eq!(outcome.exited.cause, ExitCause::OutOfMemory, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_within_its_limits_is_left_alone() {
    for agent in agents().await {
        let command = Command::shell("head -c 8M /dev/zero | tail -c 8M | cat | wc -c").limits(ALL);
        let outcome = run(&agent.executor().await, command).await.unwrap();
        assert_eq!((outcome.text(), outcome.exited.cause), ("8388608\n", ExitCause::Exited(0)));
    }
}

/// A child shares the agent's memory until it runs its program.
#[tokio::test(flavor = "multi_thread")]
async fn limits_that_no_program_fits_in_do_not_harm_the_agent() {
    for mut agent in agents().await {
        let executor = agent.executor().await;
        let long = "x".repeat(100_000);
        for bytes in [1, 4096, 64 * 1024, 256 * 1024, MIB] {
            let command = Command::argv(["sh", "-c", "tail /dev/zero", &long, &long, &long]).limits(memory(bytes));
            match run(&executor, command).await {
                Ok(outcome) => assert_eq!(outcome.exited.cause, ExitCause::OutOfMemory, "{bytes}"),
                Err(ExecutorError::Spawn(error)) => eprintln!("{bytes}: {error}"),
                Err(error) => panic!("{bytes}: {error:?}"),
            }
            let limits = ResourceLimits { max_processes: Some(1), cpus: Some(0.01), ..Default::default() };
            let outcome = run(&executor, Command::argv(["echo", "here"]).limits(limits)).await.unwrap();
            assert_eq!(outcome.text(), "here\n");
        }
        assert!(agent.terminate().await.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_no_more_processes_than_it_may_and_others_have_theirs() {
    for agent in agents().await {
        let executor = agent.executor().await;
        let text = "sleep 300 & sleep 300 & echo two; sleep 300 & echo never";
        let command = Command::shell(text).shell("dash").limits(processes(3)).descendants(Descendants::Kill);
        let outcome = run(&executor, command).await.unwrap();
        let errors = String::from_utf8(outcome.stderr.clone()).unwrap();
        assert_eq!((outcome.text(), outcome.exited.cause), ("two\n", ExitCause::Exited(2)), "{errors}");
        assert!(errors.contains("fork"), "{errors}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_is_held_and_ended_and_others_run() {
    for agent in agents().await {
        let (executor, mark) = (agent.executor().await, marker());
        // each of them tries again and again, also when it may not
        let command = Command::shell("f() { while :; do f & done; }; echo ready; f 2>/dev/null").env(MARK, &mark);
        let command = command.limits(processes(16)).kill_grace(Duration::from_millis(200)).build().unwrap();
        let mut execution = executor.execute(command).await.unwrap();
        until_output(&mut execution, "ready\n").await;
        until("it has as many as it may have", async || {
            let count = processes_with(&mark).len();
            assert!(count <= 16, "{count}");
            count == 16
        })
        .await;
        let other =
            run(&executor, Command::shell("seq 1 100 | sort -n | tail -1").limits(processes(16))).await.unwrap();
        assert_eq!(other.text(), "100\n");
        drop(execution);
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
    }
}

/// The first of these files that is there.
fn held<'a>(outcome: &'a Outcome, files: &[&str]) -> &'a str {
    let line = |file: &str| outcome.text().lines().find_map(|line| line.strip_prefix(file)?.strip_prefix(' '));
    files.iter().find_map(|file| line(file)).unwrap_or_else(|| panic!("{files:?}: {}", outcome.text()))
}

#[tokio::test(flavor = "multi_thread")]
async fn several_limits_hold_together_for_whoever_runs_it() {
    let text = own("memory.max memory.limit_in_bytes pids.max cpu.max cpu.cfs_quota_us cpu.cfs_period_us");
    let users = if is_root() { &["root", "nobody"][..] } else { &[] };
    for agent in agents().await {
        let executor = agent.executor().await;
        let command = || Command::shell(&text).shell("sh").limits(ALL);
        for command in users.iter().map(|user| command().user(*user)).chain([command()]) {
            let outcome = run(&executor, command).await.unwrap();
            assert_eq!(held(&outcome, &["memory.max", "memory.limit_in_bytes"]), (64 * MIB).to_string());
            assert_eq!(held(&outcome, &["pids.max"]), "50");
            let cpus = held(&outcome, &["cpu.max", "cpu.cfs_quota_us"]);
            assert!(["150000 100000", "150000"].contains(&cpus), "{cpus}");
            if cpus == "150000" {
                assert_eq!(held(&outcome, &["cpu.cfs_period_us"]), "100000");
            }
        }
        // the least and the most that may be asked for
        for (cpus, quota) in [(0.01, "1000"), (10_000.0, "1000000000")] {
            let limits =
                ResourceLimits { cpus: Some(cpus), max_processes: Some(u32::MAX), memory_bytes: Some(u64::MAX) };
            let outcome = run(&executor, Command::shell(&text).shell("sh").limits(limits)).await.unwrap();
            assert!(held(&outcome, &["cpu.max", "cpu.cfs_quota_us"]).starts_with(quota), "{}", outcome.text());
        }
    }
}

/// Real-time processes cannot enter a cgroup that has no time for them: the child is none any more.
#[tokio::test(flavor = "multi_thread")]
async fn the_agents_own_scheduling_is_no_obstacle() {
    if !is_root() {
        return;
    }
    for containment in ["cgroup-v2", "cgroup-v1", "process-group"] {
        for policy in ["--fifo", "--rr"] {
            let Ok(agent) = with(containment).through(["chrt", policy, "1"]).try_start() else {
                eprintln!("partly skipped: {containment} or chrt {policy} does not work here");
                continue;
            };
            let outcome = run(&agent.executor().await, Command::shell("chrt -p $$").limits(ALL)).await;
            match outcome {
                Err(ExecutorError::Unsupported { .. }) => eprintln!("partly skipped: {outcome:?}"),
                outcome => assert!(outcome.unwrap().text().contains("SCHED_OTHER")),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_cannot_be_held_are_refused_and_nothing_runs() {
    if !is_root() {
        return;
    }
    let agent = Agent::builder().user(NOBODY).start();
    let wire = Wire::connect(&agent).await.unwrap();
    let cpus = ResourceLimits { cpus: Some(1.0), ..Default::default() };
    for (limits, field) in [
        (memory(64 * MIB), "limits.memory_bytes"),
        (processes(50), "limits.max_processes"),
        (cpus, "limits.cpus"),
        (ALL, "limits.memory_bytes"),
    ] {
        let directory = agent.directory().to_str().unwrap().to_owned();
        let limits = telexec_proto::v1::ResourceLimits {
            memory_bytes: limits.memory_bytes.unwrap_or_default(),
            max_processes: limits.max_processes.unwrap_or_default(),
            cpus: limits.cpus.unwrap_or_default(),
        };
        let (command, execution_id, limits) = ("echo ran > ran".into(), "the-same".into(), Some(limits));
        let request =
            ExecuteRequest { command, execution_id, limits, working_directory: directory, ..Default::default() };
        let status = within(wire.executions().execute(request)).await.expect_err("it does not run");
        let info = status.get_details_error_info().unwrap();
        assert_eq!((status.code(), &info.reason[..]), (Code::FailedPrecondition, "UNSUPPORTED"), "{status:?}");
        assert_eq!(info.metadata["field"], field);
        assert!(status.message().starts_with(field), "{status:?}");
    }
    assert!(!agent.directory().join("ran").exists());
    run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cgroups_of_an_execution_go_with_it_and_all_others_with_the_agent() {
    for mut agent in agents().await {
        let (executor, pid) = (agent.executor().await, agent.pid());
        assert_eq!(of_executions(pid).len(), 0);
        let mut execution =
            executor.execute(Command::shell("echo ready; sleep 300").limits(ALL).build().unwrap()).await;
        until_output(execution.as_mut().unwrap(), "ready\n").await;
        until("they are there", async || !of_executions(pid).is_empty()).await;
        drop(execution);
        for text in ["true", "exit 3", HOG, "kill -9 $$"] {
            run(&executor, Command::shell(text).limits(ResourceLimits { memory_bytes: Some(32 * MIB), ..ALL }))
                .await
                .unwrap();
        }
        let gone = Command::shell("true").working_directory("/no/such/directory").limits(ALL);
        run(&executor, gone).await.unwrap_err();
        // in version 2 one may be ready for the next
        let ready = |path: &PathBuf| path.join("cgroup.kill").exists();
        let left = || of_executions(pid).into_iter().partition::<Vec<_>, _>(ready);
        until("they are gone", async || matches!(left(), (ready, others) if ready.len() <= 1 && others.is_empty()))
            .await;
        assert!(!cgroups(pid).is_empty(), "the agent's own are still there");
        // the last ends just before the agent does
        run(&executor, Command::argv(["true"]).limits(ALL)).await.unwrap();
        assert!(agent.terminate().await.success());
        assert_eq!(cgroups(pid), Vec::<PathBuf>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_an_agent_that_ends_what_it_runs() {
    for containment in ["cgroup-v2", "cgroup-v1", "process-group"] {
        let hurried = format!("containment = \"{containment}\"\nshutdown_grace = \"0s\"\nkill_grace = \"0s\"");
        let Ok(mut agent) = Agent::builder().config(hurried).try_start() else {
            eprintln!("partly skipped: {containment} does not work here");
            continue;
        };
        let (executor, pid) = (agent.executor().await, agent.pid());
        let mut executions = Vec::new();
        for _ in 0..10 {
            let command = Command::shell("echo ready; setsid sleep 300 & sleep 300").limits(ALL).build().unwrap();
            let Ok(mut execution) = executor.execute(command).await else {
                eprintln!("partly skipped: limits do not work here");
                return;
            };
            until_output(&mut execution, "ready\n").await;
            executions.push(execution);
        }
        assert!(agent.terminate().await.success());
        assert_eq!(cgroups(pid), Vec::<PathBuf>::new(), "{containment}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn survivors_stay_within_their_limits_and_the_next_agent_tidies_up_after_them() {
    for mut agent in agents().await {
        let (executor, mark, pid) = (agent.executor().await, marker(), agent.pid());
        let text = "(setsid sleep 300 &) >/dev/null 2>&1; setsid sleep 300 >/dev/null 2>&1 &";
        run(&executor, Command::shell(text).env(MARK, &mark).limits(ALL)).await.unwrap();
        until("both are there", async || {
            processes_with(&mark).iter().filter(|process| process.name == "sleep").count() == 2
        })
        .await;
        let in_limits = || {
            for survivor in processes_with(&mark) {
                let cgroups = std::fs::read_to_string(format!("/proc/{}/cgroup", survivor.pid)).unwrap();
                let limited = cgroups.lines().filter(|line| line.contains(&format!("/telexec.{pid}."))).count();
                // memory, pids and cpu, where each has a hierarchy of its own; and one may be what keeps them together
                let separate = cgroups.lines().filter(|line| {
                    let controllers = line.split(':').nth(1).unwrap();
                    controllers.split(',').any(|controller| ["memory", "pids", "cpu"].contains(&controller))
                });
                assert!(limited >= separate.count().max(1), "{cgroups}");
            }
        };
        in_limits();
        assert!(agent.terminate().await.success());
        in_limits();
        assert!(!of_executions(pid).is_empty());
        for survivor in processes_with(&mark) {
            kill_process(Pid::from_raw(survivor.pid).unwrap(), Signal::KILL).unwrap();
        }
        until("they are gone", async || processes_with(&mark).is_empty()).await;
        let mut next = Agent::start();
        assert_eq!(cgroups(pid), Vec::<PathBuf>::new());
        assert!(next.terminate().await.success());
    }
}
