//! What is kept on disk of commands in the background, up to where.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use rustix::process::{Pid, kill_process};
use telexec_executor::{
    Attach, Command, CommandBuilder, ExecutionId, ExecutionState, ExecutorError, ExitCause, ListQuery, OnDisconnect,
    OutputStream, Signal,
};
use telexec_tests::{
    Agent, AgentBuilder, Gate, MARK, Replay, Silent, collect, is_root, marker, processes_with, replay, run, until,
    until_output, within,
};

use super::{Machine, attach, start};

async fn machine(agent: &Agent) -> Machine {
    Arc::new(agent.executor().await)
}

fn detached(text: &str) -> CommandBuilder {
    Command::shell(text).on_disconnect(OnDisconnect::Detach)
}

async fn has_ended(machine: &Machine, id: &ExecutionId) {
    until("it has ended", async || machine.get(id).await.unwrap().state == ExecutionState::Exited).await;
}

/// Runs a command in the background to its end. Its caller receives nothing of it.
pub(crate) async fn ended(machine: &Machine, text: &str) -> ExecutionId {
    let gate = Gate::new();
    let command = Command::shell(format!("{}; {text}", gate.wait())).yield_after(Duration::ZERO);
    let caller = replay(start(machine, command).await, 0).await;
    assert!(caller.outputs.is_empty() && caller.exited.is_none());
    let _open = gate.open();
    has_ended(machine, &caller.started.id).await;
    caller.started.id
}

pub(crate) async fn replayed(machine: &Machine, id: &ExecutionId) -> Replay {
    replay(attach(machine, id, Attach::start()).await, 0).await
}

fn missing(reported: &Replay) -> u64 {
    reported.gaps.iter().map(|(from, to)| to - from).sum()
}

pub(crate) fn numbers(last: u32) -> String {
    (1..=last).map(|i| format!("{i}\n")).collect()
}

/// The files that output is kept in.
fn files(state: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path());
    let directories = entries(state).filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("spool-"));
    let files = directories.flat_map(|directory| entries(&directory).collect::<Vec<_>>());
    files.filter(|path| path.extension().is_some_and(|kind| kind == "output" || kind == "index")).collect()
}

fn directories(state: &Path) -> usize {
    let entries = fs::read_dir(state).unwrap().map(|entry| entry.unwrap().file_name());
    entries.filter(|name| name.to_string_lossy().starts_with("spool-")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_beyond_the_limit_of_one_is_dropped_and_counted() {
    let agent = Agent::builder().config("spool_max_bytes = 100000").start();
    let machine = machine(&agent).await;
    let id = ended(&machine, "seq 1 200000; exit 3").await;
    let reported = replayed(&machine, &id).await;
    let all = numbers(200_000);
    let [(from, to)] = reported.gaps[..] else { panic!("{:?}", reported.gaps) };
    assert_eq!(from, 100_000 - 8, "all of the limit is used, index included");
    let [from, to] = [from, to].map(|position| usize::try_from(position).unwrap());
    assert!(reported.text() == format!("{}{}", &all[..from], &all[to..]));
    let totals = reported.exited().stdout;
    assert_eq!((totals.bytes, totals.dropped_bytes), (all.len() as u64, missing(&reported)));
    assert_eq!(reported.exited().exit_code(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_dropped_is_counted_for_each_stream() {
    let agent = Agent::builder().config("spool_max_bytes = 100000").start();
    let machine = machine(&agent).await;
    let id = ended(&machine, "seq 1 100000 & seq 1 100000 >&2 & wait").await;
    let reported = replayed(&machine, &id).await;
    for (stream, totals) in
        [(OutputStream::Stdout, reported.exited().stdout), (OutputStream::Stderr, reported.exited().stderr)]
    {
        assert_eq!(totals.bytes, numbers(100_000).len() as u64);
        assert_eq!(totals.bytes - totals.dropped_bytes, reported.bytes(stream).len() as u64, "{stream:?}");
    }
}

/// What was sent to the caller before it went is not dropped, and what had not been read is.
#[tokio::test(flavor = "multi_thread")]
async fn what_waited_for_a_caller_that_went_is_counted_too() {
    let agent = Agent::builder().config("spool_max_bytes = 100000").start();
    let machine = machine(&agent).await;
    let execution = start(&machine, detached("head -c 30000000 /dev/zero; exit 3")).await;
    let id = execution.id().clone();
    let (mut position, mut looks) = (0, 0);
    until("it is held up by its caller", async || {
        let now = machine.get(&id).await.unwrap().position;
        looks = if now == position && now > 0 { looks + 1 } else { 0 };
        position = now;
        looks > 20
    })
    .await;
    drop(execution);
    has_ended(&machine, &id).await;
    let reported = replayed(&machine, &id).await;
    let totals = reported.exited().stdout;
    // the connection has taken some of it
    assert_eq!(totals.bytes, 30_000_000);
    assert!(totals.dropped_bytes <= missing(&reported), "{} of {}", totals.dropped_bytes, missing(&reported));
    assert!(totals.dropped_bytes >= 30_000_000 - position, "{} of {}", totals.dropped_bytes, missing(&reported));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ended_commands_the_oldest_output_is_given_up_for_others_but_for_the_last_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let agent = |config| Agent::builder().args(["--state-dir", state.to_str().unwrap()]).config(config).start();
    let mut first = agent("spool_total_bytes = 1000000");
    let machine_of_first = machine(&first).await;
    let all = numbers(60_000);
    let mut ids = Vec::new();
    // 348,894 bytes each
    for _ in 0..4 {
        ids.push(ended(&machine_of_first, "seq 1 60000").await);
    }
    assert!(files(&state).len() <= 4, "two of each execution");
    let all_reported = async |machine: &Machine| {
        let mut reported = Vec::new();
        for id in &ids {
            reported.push(replayed(machine, id).await);
        }
        reported
    };
    let reported = all_reported(&machine_of_first).await;
    let whole: Vec<bool> = reported.iter().map(|reported| reported.gaps.is_empty() && reported.text() == all).collect();
    assert_eq!(whole, [false, false, true, true]);
    for reported in &reported[..2] {
        let last = reported.text();
        assert!(all.ends_with(&last) && last.len() >= 8 * 1024, "{} bytes", last.len());
        assert_eq!(reported.gaps, [(0, (all.len() - last.len()) as u64)]);
        assert_eq!(reported.exited().stdout.dropped_bytes, 0, "it was kept when it ended");
    }
    assert!(first.terminate().await.success());
    let next = agent("");
    let reported_by_next = all_reported(&machine(&next).await).await;
    for (reported, by_next) in reported.iter().zip(&reported_by_next) {
        assert_eq!((reported.text(), &reported.gaps), (by_next.text(), &by_next.gaps));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_there_is_no_new_background_work() {
    let agent = Agent::builder().config("spool_total_bytes = 300000").start();
    let machine = machine(&agent).await;
    let gate = Gate::new();
    let mut holds = start(&machine, detached(&format!("seq 1 200000; echo full; {}; echo on", gate.wait()))).await;
    let id = holds.id().clone();
    until_output(&mut holds, "full\n").await;
    drop(holds);
    let new = || [detached("echo ran"), Command::shell("echo ran").yield_after(Duration::from_secs(60))];
    let is_full = |answer: &Result<_, ExecutorError>| {
        matches!(answer, Err(ExecutorError::Exhausted { retry_after: Some(_), .. }))
    };
    // the last of it may be on its way to the disk
    until("there is no room", async || is_full(&run(&machine, detached("echo ran")).await)).await;
    for command in new() {
        let answer = run(&machine, command).await;
        assert!(is_full(&answer), "{answer:?}");
    }
    for foreground in [Command::shell("echo ran"), Command::shell("echo ran").execution_id(marker().parse().unwrap())] {
        assert_eq!(run(&machine, foreground).await.unwrap().text(), "ran\n");
    }
    let _open = gate.open();
    has_ended(&machine, &id).await;
    let reported = replayed(&machine, &id).await;
    assert!(reported.text().ends_with("on\n"), "the end of it is kept");
    for command in new() {
        assert_eq!(run(&machine, command).await.unwrap().text(), "ran\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn little_output_needs_no_file() {
    let agent = Agent::start();
    let machine = machine(&agent).await;
    let gate = Gate::new();
    let mut execution = start(&machine, detached(&format!("seq 1 1000; echo ready; {}", gate.wait()))).await;
    until_output(&mut execution, "ready\n").await;
    assert_eq!(files(&agent.directory().join("state")), [] as [PathBuf; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_private_and_go_when_their_execution_is_forgotten() {
    let agent = Agent::builder().config("retention_count = 1").start();
    let machine = machine(&agent).await;
    let state = agent.directory().join("state");
    let id = ended(&machine, "seq 1 100000").await;
    let kept = files(&state);
    assert_eq!(kept.len(), 2, "{kept:?}");
    for file in &kept {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    run(&machine, Command::argv(["true"])).await.unwrap();
    run(&machine, Command::argv(["true"])).await.unwrap();
    let gone = machine.attach(&id, Attach::start()).await.unwrap_err();
    assert!(matches!(&gone, ExecutorError::NotFound(unknown) if *unknown == id), "{gone:?}");
    until("its files are gone", async || files(&state).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_where_there_is_nothing_to_leave() {
    let mut agent = Agent::start();
    let machine = machine(&agent).await;
    let state = agent.directory().join("state");
    let mark = marker();
    start(&machine, detached("seq 1 100000; exec sleep 300").env(MARK, &mark)).await;
    assert_eq!(directories(&state), 1);
    agent.kill();
    let mut next = Agent::builder().args(["--state-dir", state.to_str().unwrap()]).start();
    assert!(next.terminate().await.success());
    assert_eq!(directories(&state), 0);
    // its cgroup would be in the way of what is expected of another agent with this process id
    for process in processes_with(&mark) {
        kill_process(Pid::from_raw(process.pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_is_not_cut_off_when_it_is_forgotten() {
    let agent = Agent::builder().config("retention_count = 1").start();
    let machine = machine(&agent).await;
    let id = ended(&machine, "seq 1 1000000").await;
    let reader = attach(&machine, &id, Attach::start()).await;
    for _ in 0..2 {
        run(&machine, Command::argv(["true"])).await.unwrap();
    }
    machine.attach(&id, Attach::start()).await.unwrap_err();
    assert!(collect(reader).await.unwrap().text() == numbers(1_000_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_agent_left_is_removed_by_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let agent = || Agent::builder().args(["--state-dir", state.to_str().unwrap()]).start();
    let mut first = agent();
    ended(&machine(&first).await, "seq 1 100000").await;
    let beside = agent();
    assert_eq!(directories(&state), 2, "one that lives keeps what it has");
    first.kill();
    let _next = agent();
    assert_eq!((files(&state), directories(&state)), (vec![], 2));
    drop(beside);
}

/// The agent's state is on a file system of its own, which only it sees.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_ends_nothing_and_is_reported() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().to_str().unwrap().to_owned();
    let mount = format!("mount -t tmpfs -o size=4m,mode=0700 none {state} || exit 77; exec \"$@\"");
    let builder = Agent::builder().through(["unshare", "--mount", "sh", "-c", &mount, "sh"]);
    let agent = match builder.args(["--state-dir", &state]).try_start() {
        Ok(agent) => agent,
        Err(refused) if refused.log.contains("mount") || refused.status.code() == Some(77) => {
            eprintln!("skipped: nothing can be mounted here: {refused}");
            return;
        }
        Err(refused) => panic!("{refused}"),
    };
    let machine = machine(&agent).await;
    // as the agent sees it
    let fill = PathBuf::from(format!("/proc/{}/root{state}/fill", agent.pid()));
    let gate = Gate::new();
    let mut before = start(&machine, detached(&format!("echo ready; {}; seq 1 200000; exit 3", gate.wait()))).await;
    let id = before.id().clone();
    until_output(&mut before, "ready\n").await;
    drop(before);
    let full = fs::write(&fill, vec![0; 8 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);

    let answer = run(&machine, detached("echo ran")).await;
    assert!(matches!(answer, Err(ExecutorError::Exhausted { retry_after: Some(_), .. })), "{answer:?}");
    assert_eq!(run(&machine, Command::shell("echo ran")).await.unwrap().text(), "ran\n");
    let _open = gate.open();
    has_ended(&machine, &id).await;
    let reported = replayed(&machine, &id).await;
    let totals = reported.exited().stdout;
    assert_eq!((reported.exited().exit_code(), totals.bytes), (3, 6 + numbers(200_000).len() as u64));
    assert!(reported.text().ends_with("\n200000\n"));
    // its caller received the first line
    assert_eq!(totals.dropped_bytes, totals.bytes - reported.text().len() as u64 - 6);

    fs::remove_file(&fill).unwrap();
    let id = ended(&machine, "seq 1 200000").await;
    assert!(replayed(&machine, &id).await.text() == numbers(200_000));
}

/// A disk that fills up while a command writes: what was begun is not left there.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_could_not_be_written_are_removed() {
    let agent = Agent::builder().config("retention_count = 1").after("ulimit -f 20").start();
    let machine = machine(&agent).await;
    let state = agent.directory().join("state");
    let id = ended(&machine, "trap '' XFSZ; seq 1 100000; exit 3").await;
    let reported = replayed(&machine, &id).await;
    assert_eq!(reported.exited().exit_code(), 3);
    assert_eq!(reported.exited().stdout.dropped_bytes, missing(&reported));
    for _ in 0..2 {
        run(&machine, Command::argv(["true"])).await.unwrap();
    }
    machine.attach(&id, Attach::start()).await.unwrap_err();
    until("its files are gone", async || files(&state).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_removed_is_a_gap() {
    let agent = Agent::start();
    let machine = machine(&agent).await;
    let id = ended(&machine, "seq 1 100000; exit 3").await;
    for file in files(&agent.directory().join("state")) {
        fs::remove_file(file).unwrap();
    }
    let reported = replayed(&machine, &id).await;
    assert_eq!((reported.gaps.len(), reported.exited().exit_code()), (1, 3));
    let mut rest = attach(&machine, &id, Attach::position(1000)).await;
    assert!(within(rest.next()).await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_directory_that_was_removed_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let agent = || Agent::builder().args(["--state-dir", state.to_str().unwrap()]).start();
    let mut first = agent();
    let machine_of_first = machine(&first).await;
    let gate = Gate::new();
    let text = format!("seq 1 100000; echo on; {}; seq 1 100000; exit 3", gate.wait());
    let mut running = start(&machine_of_first, detached(&text)).await;
    let id = running.id().clone();
    until_output(&mut running, "100000\non\n").await;
    drop(running);
    until("some of it is kept", async || files(&state).len() == 2).await;
    fs::remove_dir_all(&state).unwrap();

    let new = ended(&machine_of_first, "seq 1 100000").await;
    assert!(replayed(&machine_of_first, &new).await.text() == numbers(100_000));
    let made = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path());
    let [spool] = &made.filter(|path| path.is_dir()).collect::<Vec<_>>()[..] else { panic!("one directory is there") };
    for made in [&state, spool] {
        assert_eq!(fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
    }
    let _open = gate.open();
    has_ended(&machine_of_first, &id).await;
    let reported = replayed(&machine_of_first, &id).await;
    let all = format!("{}on\n{}", numbers(100_000), numbers(100_000));
    let [(0, lost)] = reported.gaps[..] else { panic!("{:?}", reported.gaps) };
    assert!(lost <= numbers(100_000).len() as u64 + 3, "what was written after that is kept: {lost}");
    assert!(reported.text() == all[usize::try_from(lost).unwrap()..]);
    assert_eq!(reported.exited().exit_code(), 3);

    let beside = agent();
    assert_eq!(directories(&state), 2, "it is not taken for a dead agent's");
    drop(beside);
    assert!(first.terminate().await.success());
    let next = agent();
    let machine_of_next = machine(&next).await;
    let reported_by_next = replayed(&machine_of_next, &id).await;
    assert!(reported_by_next.text() == reported.text() && reported_by_next.gaps == reported.gaps);
}

fn is_refused<T>(answer: &Result<T, ExecutorError>) -> bool {
    matches!(answer, Err(ExecutorError::Exhausted { retry_after: Some(_), .. }))
}

fn with_short_timeouts() -> AgentBuilder {
    Agent::builder().config("shutdown_grace = \"0s\"\nkill_grace = \"200ms\"")
}

/// How many threads of the agent there are for its state directory.
fn threads(agent: &Agent) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name == "state\n").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_does_not_answer_keeps_nobody() {
    if !is_root() {
        return;
    }
    let Some(agent) = Silent::try_start(with_short_timeouts()) else { return };
    let machine = machine(&agent).await;
    let before = ended(&machine, "seq 1 100000").await;
    let gate = Gate::new();
    let text = format!("echo ready; {}; seq 1 200000; exit 3", gate.wait());
    let writers = join_all((0..12).map(async |_| {
        let mut writer = start(&machine, detached(&text)).await;
        until_output(&mut writer, "ready\n").await;
        writer.id().clone()
    }))
    .await;
    let mut reporting =
        start(&machine, Command::shell("echo ready; exec sleep 300").report_working_directory(true)).await;
    until_output(&mut reporting, "ready\n").await;

    let silent = Silent::over(&agent, &agent.directory().join("state"));
    // more than may be started at once
    let new = join_all((0..100).map(|_| run(&machine, detached("echo ran"))));
    let _open = gate.open();
    let others = async {
        assert_eq!(run(&machine, Command::shell("echo ran")).await.unwrap().text(), "ran\n");
        let timed_out = run(&machine, Command::shell("sleep 300").timeout(Duration::from_millis(50))).await.unwrap();
        assert_eq!(timed_out.exited.cause, ExitCause::TimedOut);
        let killed = start(&machine, Command::shell("sleep 300")).await;
        machine.signal(killed.id(), Signal::KILL).await.unwrap();
        assert_eq!(collect(killed).await.unwrap().exited.cause, ExitCause::Signaled);
        machine.list(ListQuery::default()).await.unwrap();
        for writer in &writers {
            has_ended(&machine, writer).await;
        }
    };
    let (refused, ()) = within(async { tokio::join!(new, others) }).await;
    assert!(refused.iter().all(is_refused), "{refused:?}");
    let all = format!("ready\n{}", numbers(200_000));
    for writer in &writers {
        let reported = replayed(&machine, writer).await;
        let totals = reported.exited().stdout;
        assert_eq!((reported.exited().exit_code(), totals.bytes), (3, all.len() as u64));
        // its caller received the first line
        assert_eq!(
            (totals.dropped_bytes, missing(&reported)),
            (missing(&reported) - 6, (all.len() - reported.text().len()) as u64)
        );
        assert!(!reported.text().is_empty() && all.ends_with(&reported.text()));
    }
    assert_eq!(agent.log().matches("output is not kept from here on").count(), writers.len(), "once for each");
    let report = run(&machine, Command::shell("cd /").report_working_directory(true)).await;
    assert!(is_refused(&report), "{report:?}");
    // with its report on a disk whose threads are all stuck
    machine.signal(reporting.id(), Signal::KILL).await.unwrap();
    has_ended(&machine, reporting.id()).await;
    let killed = replayed(&machine, reporting.id()).await;
    assert_eq!((killed.exited().cause, &killed.exited().working_directory), (ExitCause::Signaled, &None));
    let unread = replayed(&machine, &before).await;
    assert!(unread.text().is_empty() && unread.exited.is_some());
    assert!(threads(&agent) <= 8, "{}", threads(&agent));

    silent.lift();
    until("there is a disk again", async || run(&machine, detached("echo ran")).await.is_ok()).await;
    for id in [before, ended(&machine, "seq 1 100000").await] {
        assert!(replayed(&machine, &id).await.text() == numbers(100_000));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_does_not_answer_does_not_keep_the_agent() {
    if !is_root() {
        return;
    }
    let Some(mut agent) = Silent::try_start(with_short_timeouts()) else { return };
    let machine = machine(&agent).await;
    ended(&machine, "seq 1 100000").await;
    start(&machine, detached("seq 1 100000; exec sleep 300")).await;
    let _silent = Silent::over(&agent, &agent.directory().join("state"));
    assert!(agent.terminate().await.success());
    assert!(agent.log().contains("the next agent will not know"), "{}", agent.log());
}
