//! Commands that run on without their caller.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use telexec_executor::{
    Attach, Command, CommandBuilder, Event, Execution, ExecutionId, ExitCause, OnDisconnect, OutputStream,
};
use telexec_tests::{Gate, MARK, collect, marker, processes_with, replay, until, until_output, within};

use super::{Machine, attach, start};

const SHORT: Duration = Duration::from_millis(200);
/// A shell may take long to start on a busy machine.
const AMPLE: Duration = Duration::from_secs(2);
const ENDLESS: Duration = Duration::from_secs(300);

/// Starts a command that goes to the background at once, reads that it does, and lets go of it.
async fn promoted(machine: &Machine, command: CommandBuilder) -> ExecutionId {
    let execution = start(machine, command.yield_after(Duration::ZERO)).await;
    let id = execution.id().clone();
    assert_eq!(replay(execution, 0).await.exited, None);
    id
}

async fn detached(machine: &Machine, command: CommandBuilder) -> Execution {
    start(machine, command.on_disconnect(OnDisconnect::Detach)).await
}

async fn a_command_goes_to_the_background_after_its_output_so_far(machine: Machine) {
    let gate = Gate::new();
    let text = format!("echo before; echo err >&2; {}; echo after; exit 3", gate.wait());
    let execution = start(&machine, Command::shell(text).yield_after(AMPLE)).await;
    let id = execution.id().clone();
    let reported = replay(execution, 0).await;
    assert_eq!(
        (reported.text(), reported.bytes(OutputStream::Stderr), reported.exited),
        ("before\n".into(), b"err\n".into(), None)
    );
    let _open = gate.open();
    let all = collect(attach(&machine, &id, Attach::start()).await).await.unwrap();
    assert_eq!((all.text(), &all.stderr[..], all.exited.exit_code()), ("before\nafter\n", &b"err\n"[..], 3));
}

async fn without_a_delay_it_goes_to_the_background_at_once(machine: Machine) {
    let gate = Gate::new();
    let command = Command::shell(format!("{}; exit 3", gate.wait())).yield_after(Duration::ZERO);
    let events: Vec<_> = within(start(&machine, command).await.collect::<Vec<_>>()).await;
    let [Ok(Event::Started(started)), Ok(Event::Promoted)] = &events[..] else { panic!("{events:?}") };
    let _open = gate.open();
    let all = collect(attach(&machine, &started.id, Attach::start()).await).await.unwrap();
    assert_eq!((&all.started, all.exited.exit_code()), (started, 3));
}

async fn a_command_that_ends_before_its_delay_exits(machine: Machine) {
    let command = Command::shell("echo done; exit 3").yield_after(ENDLESS);
    let outcome = collect(start(&machine, command).await).await.unwrap();
    assert_eq!((outcome.text(), outcome.exited.exit_code()), ("done\n", 3));
}

async fn a_timeout_ends_it_in_the_background(machine: Machine) {
    let mark = marker();
    let command = Command::shell("echo before; sleep 300").timeout(AMPLE).kill_grace(SHORT).env(MARK, &mark);
    let id = promoted(&machine, command).await;
    let reported = replay(attach(&machine, &id, Attach::start()).await, 0).await;
    assert_eq!((reported.exited().cause, reported.text()), (ExitCause::TimedOut, "before\n".into()));
    assert_eq!(processes_with(&mark), []);
}

async fn a_deadline_does_not_end_it_in_the_background(machine: Machine) {
    let deadline = Instant::now() + AMPLE;
    let id = promoted(&machine, Command::shell("sleep 3; exit 3").deadline(deadline)).await;
    let reported = replay(attach(&machine, &id, Attach::start()).await, 0).await;
    assert_eq!(reported.exited().cause, ExitCause::Exited(3));
}

/// The call is over before the command has gone to the background, but not before it has started.
async fn who_goes_before_it_goes_to_the_background_ends_it(machine: Machine) {
    let mark = marker();
    drop(start(&machine, Command::argv(["sleep", "300"]).yield_after(ENDLESS).env(MARK, &mark)).await);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

async fn it_writes_on_without_a_reader(machine: Machine) {
    let gate = Gate::new();
    let text = format!("echo before; {}; seq 1 50000; seq 1 50000 >&2; exit 3", gate.wait());
    let mut execution = detached(&machine, Command::shell(text)).await;
    let id = execution.id().clone();
    until_output(&mut execution, "before\n").await;
    drop(execution);
    let _open = gate.open();
    let all = collect(attach(&machine, &id, Attach::start()).await).await.unwrap();
    let lines: String = (1..=50_000).map(|i| format!("{i}\n")).collect();
    assert!(all.text() == format!("before\n{lines}") && all.stderr == lines.as_bytes());
    assert_eq!(all.exited.exit_code(), 3);
}

/// Neither its caller nor a follower reads a byte of it.
async fn a_flood_that_nobody_reads_ends(machine: Machine) {
    let command = Command::shell("head -c 5000000 /dev/zero; head -c 5000000 /dev/zero >&2; exit 3");
    let id = promoted(&machine, command).await;
    let _follower = attach(&machine, &id, Attach::start()).await;
    until("it has exited", async || machine.get(&id).await.unwrap().exited.is_some()).await;
    let all = collect(attach(&machine, &id, Attach::start()).await).await.unwrap();
    assert!(all.stdout == vec![0; 5_000_000] && all.stderr == vec![0; 5_000_000]);
    assert_eq!((all.exited.exit_code(), all.exited.stdout.dropped_bytes), (3, 0));
}

async fn a_deadline_ends_what_was_detached(machine: Machine) {
    let mark = marker();
    let command = Command::argv(["sleep", "300"]).deadline(Instant::now() + AMPLE).kill_grace(SHORT);
    let execution = detached(&machine, command.env(MARK, &mark)).await;
    let id = execution.id().clone();
    drop(execution);
    let reported = replay(attach(&machine, &id, Attach::start()).await, 0).await;
    assert_eq!((reported.exited().cause, processes_with(&mark)), (ExitCause::DeadlineExceeded, vec![]));
}

async fn a_timeout_ends_what_was_detached(machine: Machine) {
    let mark = marker();
    let command = Command::argv(["sleep", "300"]).timeout(AMPLE).kill_grace(SHORT).env(MARK, &mark);
    let execution = detached(&machine, command).await;
    let id = execution.id().clone();
    drop(execution);
    let reported = replay(attach(&machine, &id, Attach::start()).await, 0).await;
    assert_eq!((reported.exited().cause, processes_with(&mark)), (ExitCause::TimedOut, vec![]));
}

telexec_tests::everywhere! {
    a_command_goes_to_the_background_after_its_output_so_far,
    without_a_delay_it_goes_to_the_background_at_once,
    a_command_that_ends_before_its_delay_exits,
    a_timeout_ends_it_in_the_background,
    a_deadline_does_not_end_it_in_the_background,
    who_goes_before_it_goes_to_the_background_ends_it,
    it_writes_on_without_a_reader,
    a_flood_that_nobody_reads_ends,
    a_deadline_ends_what_was_detached,
    a_timeout_ends_what_was_detached,
}

telexec_tests::contained! {
    a_timeout_ends_it_in_the_background,
    it_writes_on_without_a_reader,
    a_timeout_ends_what_was_detached,
}
