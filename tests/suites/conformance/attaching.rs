//! Following what someone else has started.

use futures_util::StreamExt;
use futures_util::future::join_all;
use telexec_executor::{
    Attach, Command, Event, Execution, ExecutionState, ExecutorError, ExitCause, OnDisconnect, OutputStream, Signal,
};
use telexec_tests::{Gate, MARK, collect, marker, processes_with, replay, run, until, until_output};

use super::{Machine, attach, start};

const KILL: Attach =
    Attach { position: 0, on_disconnect: OnDisconnect::Kill, disconnect_grace: std::time::Duration::ZERO };

async fn a_follower_gets_what_the_caller_gets(machine: Machine) {
    let gate = Gate::new();
    let text = format!("echo a; echo b >&2; {}; echo c; exit 3", gate.wait());
    let execution = start(&machine, Command::shell(text)).await;
    let early = attach(&machine, execution.id(), Attach::start()).await;
    let _open = gate.open();
    let (own, early) = tokio::join!(replay(execution, 0), replay(early, 0));
    let late = replay(attach(&machine, &own.started.id, Attach::start()).await, 0).await;
    assert_eq!(own.exited().exit_code(), 3);
    for other in [early, late] {
        assert_eq!((&other.started, &other.exited), (&own.started, &own.exited));
        assert_eq!(other.from(0), own.from(0));
    }
}

/// Of chunks of five bytes, the last one of another stream.
async fn any_position_gives_what_follows_it(machine: Machine) {
    let gate = Gate::new();
    let text = format!("printf 01234; {}; printf 56789 >&2; exit 3", gate.wait());
    let mut execution = start(&machine, Command::shell(text)).await;
    until_output(&mut execution, "01234").await;
    let id = execution.id().clone();
    let mut early = Vec::new();
    for position in 0..=5 {
        early.push((position, attach(&machine, &id, Attach::position(position)).await));
    }
    let beyond = machine.attach(&id, Attach::position(6)).await.unwrap_err();
    assert!(matches!(beyond, ExecutorError::OutOfRange { end: 5, .. }), "{beyond:?}");
    let _open = gate.open();
    read_slowly(execution, 0).await;
    let (stdout, stderr) = (b"01234", b"56789");
    for position in 0..=10 {
        early.push((position, attach(&machine, &id, Attach::position(position)).await));
    }
    for (position, follower) in early {
        let reported = replay(follower, position).await;
        let position = usize::try_from(position).unwrap();
        assert_eq!(reported.bytes(OutputStream::Stdout), stdout[position.min(5)..]);
        assert_eq!(reported.bytes(OutputStream::Stderr), stderr[position.saturating_sub(5)..]);
        assert_eq!((reported.exited().exit_code(), reported.gaps), (3, vec![]));
    }
    for position in [11, u64::MAX] {
        let beyond = machine.attach(&id, Attach::position(position)).await.unwrap_err();
        assert!(matches!(beyond, ExecutorError::OutOfRange { end: 10, .. }), "{beyond:?}");
    }
}

async fn what_lingers_can_be_followed_to_its_exit(machine: Machine) {
    let mark = marker();
    let command = Command::shell("sleep 300 >/dev/null 2>&1 & echo out; exit 3").env(MARK, &mark);
    let own = run(&machine, command).await.unwrap();
    let id = &own.started.id;
    assert_eq!(machine.get(id).await.unwrap().state, ExecutionState::Lingering);
    let reported = collect(attach(&machine, id, KILL).await).await.unwrap();
    assert_eq!((reported.text(), &reported.exited), ("out\n", &own.exited));
    assert_eq!(processes_with(&mark).len(), 1, "the end of a follower ends nothing that was asked to stay");
    machine.signal(id, Signal::KILL).await.unwrap();
    until("it has ended", async || machine.get(id).await.unwrap().state == ExecutionState::Exited).await;
}

async fn nobody_follows_what_is_not_there(machine: Machine) {
    let id = marker().parse().unwrap();
    let error = machine.attach(&id, Attach::start()).await.unwrap_err();
    assert!(matches!(&error, ExecutorError::NotFound(unknown) if *unknown == id), "{error:?}");
}

/// Reads to the end, and lets others go first so often before each event.
async fn read_slowly(mut execution: Execution, pauses: usize) -> Vec<u8> {
    let mut reported = Vec::new();
    while let Some(event) = execution.next().await {
        for _ in 0..pauses {
            tokio::task::yield_now().await;
        }
        match event.unwrap() {
            Event::Output(output) => reported.extend_from_slice(&output.data),
            Event::Started(_) | Event::Exited(_) => {}
            other => panic!("{other:?}"),
        }
    }
    reported
}

async fn readers_of_any_speed_get_all(machine: Machine) {
    let command = Command::shell("seq 1 300000").on_disconnect(OnDisconnect::Detach);
    let execution = start(&machine, command).await;
    let id = execution.id().clone();
    let unread = attach(&machine, &id, Attach::start()).await;
    let mut readers = Vec::new();
    for pauses in [0, 0, 1, 10, 100, 1000] {
        readers.push(read_slowly(attach(&machine, &id, Attach::start()).await, pauses));
    }
    drop(execution);
    let all: String = (1..=300_000).map(|i| format!("{i}\n")).collect();
    for reported in join_all(readers).await {
        assert!(reported == all.as_bytes(), "{} of {} bytes", reported.len(), all.len());
    }
    assert!(read_slowly(unread, 0).await == all.as_bytes());
}

async fn a_follower_that_does_not_read_holds_up_nobody(machine: Machine) {
    let gate = Gate::new();
    let text = format!("{}; head -c 20000000 /dev/zero; exit 3", gate.wait());
    let execution = start(&machine, Command::shell(text)).await;
    let _unread = attach(&machine, execution.id(), Attach::start()).await;
    let _open = gate.open();
    let own = collect(execution).await.unwrap();
    assert_eq!((own.stdout.len(), own.exited.exit_code()), (20_000_000, 3));
}

async fn a_follower_that_asks_for_it_ends_it_by_going(machine: Machine) {
    let mark = marker();
    let command = Command::shell("echo ready; sleep 300").env(MARK, &mark);
    let mut execution = start(&machine, command).await;
    until_output(&mut execution, "ready\n").await;
    let other = attach(&machine, execution.id(), Attach::start()).await;
    drop(attach(&machine, execution.id(), KILL).await);
    let reported = replay(other, 0).await;
    assert_eq!((reported.exited().cause, processes_with(&mark)), (ExitCause::Cancelled, vec![]));
}

async fn what_was_promoted_is_ended_by_a_follower_that_asks_for_it(machine: Machine) {
    let command = Command::argv(["sleep", "300"]).yield_after(std::time::Duration::ZERO);
    let execution = start(&machine, command).await;
    let id = execution.id().clone();
    assert_eq!(replay(execution, 0).await.exited, None);
    let other = attach(&machine, &id, Attach::start()).await;
    drop(attach(&machine, &id, KILL).await);
    assert_eq!(replay(other, 0).await.exited().cause, ExitCause::Cancelled);
}

async fn a_follower_goes_and_nothing_happens(machine: Machine) {
    let gate = Gate::new();
    let execution = start(&machine, Command::shell(format!("echo ready; {}; exit 3", gate.wait()))).await;
    for _ in 0..10 {
        until_output(&mut attach(&machine, execution.id(), Attach::start()).await, "ready\n").await;
    }
    let _open = gate.open();
    assert_eq!(collect(execution).await.unwrap().exited.exit_code(), 3);
}

async fn followers_get_the_end_when_the_caller_went(machine: Machine) {
    let mut execution = start(&machine, Command::shell("echo ready; sleep 300")).await;
    until_output(&mut execution, "ready\n").await;
    let follower = attach(&machine, execution.id(), Attach::start()).await;
    drop(execution);
    let reported = replay(follower, 0).await;
    assert_eq!((reported.exited().cause, reported.text()), (ExitCause::Cancelled, "ready\n".to_owned()));
}

/// Of a command that is not to go to the background little is kept.
async fn who_comes_late_gets_a_gap_for_what_is_missing(machine: Machine) {
    let gate = Gate::new();
    let text = format!("seq 1 200000; echo last; {}; echo done", gate.wait());
    let mut execution = start(&machine, Command::shell(text)).await;
    until_output(&mut execution, "last\n").await;
    let all: String = (1..=200_000).map(|i| format!("{i}\n")).chain(["last\ndone\n".to_owned()]).collect();
    let early = attach(&machine, execution.id(), Attach::start()).await;
    let _open = gate.open();
    let id = execution.id().clone();
    read_slowly(execution, 0).await;
    let late = attach(&machine, &id, Attach::start()).await;
    for follower in [early, late] {
        let reported = replay(follower, 0).await;
        let [(0, resumed)] = reported.gaps[..] else { panic!("{:?}", reported.gaps) };
        assert!(reported.text() == all[usize::try_from(resumed).unwrap()..]);
        assert!(reported.text().len() >= 4096, "{} bytes", reported.text().len());
        assert_eq!(reported.exited().stdout.dropped_bytes, 0, "the caller has got all");
    }
    // the end is kept: no gap
    let position = all.len() as u64 - 4096;
    let reported = replay(attach(&machine, &id, Attach::position(position)).await, position).await;
    assert!(reported.gaps.is_empty() && reported.text() == all[all.len() - 4096..]);
}

async fn of_many_at_once_none_is_forgotten(machine: Machine) {
    let gate = Gate::new();
    let execution = start(&machine, Command::shell(format!("{}; echo now; exit 3", gate.wait()))).await;
    let followers = join_all((0..50).map(|_| attach(&machine, execution.id(), Attach::start()))).await;
    let _open = gate.open();
    for reported in join_all(followers.into_iter().map(|follower| replay(follower, 0))).await {
        assert_eq!((reported.text(), reported.exited().exit_code()), ("now\n".to_owned(), 3));
    }
    until("it is over", async || machine.get(execution.id()).await.unwrap().state == ExecutionState::Exited).await;
}

telexec_tests::everywhere! {
    a_follower_gets_what_the_caller_gets,
    any_position_gives_what_follows_it,
    what_lingers_can_be_followed_to_its_exit,
    nobody_follows_what_is_not_there,
    readers_of_any_speed_get_all,
    a_follower_that_does_not_read_holds_up_nobody,
    a_follower_that_asks_for_it_ends_it_by_going,
    what_was_promoted_is_ended_by_a_follower_that_asks_for_it,
    a_follower_goes_and_nothing_happens,
    followers_get_the_end_when_the_caller_went,
    who_comes_late_gets_a_gap_for_what_is_missing,
    of_many_at_once_none_is_forgotten,
}
