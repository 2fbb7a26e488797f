//! Requests that come again: with the same id, or for what runs already.

use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use telexec_executor::{
    Attach, Command, CommandBuilder, DuplicatePolicy, ExecutionId, ExecutionState, ExecutorError, ExitCause,
    OnDisconnect, TerminalSize,
};
use telexec_tests::{Gate, MARK, directory, is_root, lines, marker, processes_with, replay, run, until, until_output};

use super::{Machine, attach, start};

fn id() -> ExecutionId {
    marker().parse().unwrap()
}

async fn a_repeat_after_the_end_tells_the_same(machine: Machine) {
    let id = id();
    let command = || Command::shell("seq 1 30000; echo err >&2; exit 3").execution_id(id.clone());
    let first = run(&machine, command()).await.unwrap();
    let second = run(&machine, command()).await.unwrap();
    assert!(first.stdout == second.stdout && first.stderr == second.stderr);
    assert_eq!((first.started, first.exited), (second.started, second.exited));
}

async fn a_repeat_follows_what_runs_from_its_beginning(machine: Machine) {
    let (id, gate) = (id(), Gate::new());
    let command = || Command::shell(format!("echo before; {}; echo after", gate.wait())).execution_id(id.clone());
    let mut first = start(&machine, command()).await;
    until_output(&mut first, "before\n").await;
    let second = start(&machine, command()).await;
    let _open = gate.open();
    assert_eq!(replay(second, 0).await.text(), "before\nafter\n");
    until_output(&mut first, "after\n").await;
}

/// It is counted anew for each call.
async fn a_deadline_is_no_part_of_the_request(machine: Machine) {
    let id = id();
    for minutes in [1, 2] {
        let deadline = Instant::now() + Duration::from_secs(60 * minutes);
        let command = Command::shell("echo once").execution_id(id.clone()).deadline(deadline);
        assert_eq!(run(&machine, command).await.unwrap().text(), "once\n");
    }
}

async fn any_other_difference_is_another_request(machine: Machine) {
    let id = id();
    let command = || Command::shell("true").execution_id(id.clone());
    run(&machine, command()).await.unwrap();
    let size = TerminalSize::new(80, 24).unwrap();
    let others: [CommandBuilder; 13] = [
        Command::shell("true ").execution_id(id.clone()),
        Command::argv(["true"]).execution_id(id.clone()),
        command().shell("sh"),
        command().login(true),
        command().working_directory("/"),
        command().env("A", "B"),
        command().stdin("x"),
        command().accepts_input(true),
        command().terminal(size),
        command().timeout(Duration::from_secs(60)),
        command().on_disconnect(OnDisconnect::Detach),
        command().yield_after(Duration::from_secs(60)),
        command().labels([("a".to_owned(), "b".to_owned())]),
    ];
    for other in others {
        let answer = run(&machine, other.clone()).await;
        assert!(matches!(&answer, Err(ExecutorError::AlreadyExists(taken)) if *taken == id), "{other:?}: {answer:?}");
    }
}

async fn it_goes_on_while_one_of_its_calls_is_left(machine: Machine) {
    let (id, gate) = (id(), Gate::new());
    let command = || Command::shell(format!("echo ready; {}; exit 3", gate.wait())).execution_id(id.clone());
    let mut first = start(&machine, command()).await;
    until_output(&mut first, "ready\n").await;
    let second = start(&machine, command()).await;
    drop(first);
    // the agent has long noticed it when this has run
    run(&machine, Command::argv(["sleep", "0.1"])).await.unwrap();
    let _open = gate.open();
    assert_eq!(replay(second, 0).await.exited().cause, ExitCause::Exited(3));
}

async fn it_ends_with_the_last_of_its_calls(machine: Machine) {
    let (id, mark) = (id(), marker());
    let command = || Command::shell("echo ready; sleep 300").execution_id(id.clone()).env(MARK, &mark);
    let mut first = start(&machine, command()).await;
    until_output(&mut first, "ready\n").await;
    let second = start(&machine, command()).await;
    let follower = attach(&machine, &id, Attach::start()).await;
    drop((first, second));
    let reported = replay(follower, 0).await;
    assert_eq!((reported.exited().cause, reported.text()), (ExitCause::Cancelled, "ready\n".to_owned()));
    assert_eq!(processes_with(&mark), []);
}

async fn a_start_that_its_caller_gives_up_goes_on_for_the_repeat(machine: Machine) {
    for _ in 0..50 {
        let command = Command::shell("echo ran").execution_id(id()).build().unwrap();
        let mut first = machine.execute(command.clone());
        if futures_util::poll!(&mut first).is_ready() {
            // on a busy machine others may be faster than one poll
            continue;
        }
        let mut second = machine.execute(command);
        let second = match futures_util::poll!(&mut second) {
            Poll::Ready(second) => second,
            Poll::Pending => {
                drop(first);
                second.await
            }
        };
        let reported = replay(second.unwrap(), 0).await;
        assert_eq!((reported.exited().cause, reported.text()), (ExitCause::Exited(0), "ran\n".to_owned()));
    }
}

fn reused(text: &str) -> CommandBuilder {
    Command::shell(text).duplicate_policy(DuplicatePolicy::ReuseRunning)
}

async fn what_runs_already_is_reported_instead_of_started(machine: Machine) {
    let mark = marker();
    let command = || reused("echo ready; sleep 300").env(MARK, &mark);
    let mut execution = start(&machine, command()).await;
    until_output(&mut execution, "ready\n").await;
    // not its environment, nor its labels
    for again in [command(), command().env("A", "B"), command().labels([("a".to_owned(), "b".to_owned())])] {
        match run(&machine, again).await {
            Err(ExecutorError::AlreadyRunning(info)) => {
                assert_eq!((&info.id, info.pid), (execution.id(), execution.started().pid));
                assert_eq!((info.state, info.exited, info.position), (ExecutionState::Running, None, 6));
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn what_is_not_the_same_is_started(machine: Machine) {
    let gate = Gate::new();
    let text = format!("echo ran; {}", gate.wait());
    let mut execution = start(&machine, reused(&text)).await;
    until_output(&mut execution, "ran\n").await;
    let mut others = vec![
        reused(&format!("{text} ")),
        Command::argv(["bash", "-c", &text]).duplicate_policy(DuplicatePolicy::ReuseRunning),
        reused(&text).shell("sh"),
        reused(&text).login(true),
        reused(&text).working_directory("/usr"),
        reused(&text).terminal(TerminalSize::new(80, 24).unwrap()),
        Command::shell(&text),
    ];
    if is_root() {
        others.push(reused(&text).user("nobody"));
    }
    for other in others {
        until_output(&mut start(&machine, other.clone()).await, "ran").await;
    }
}

async fn what_has_ended_is_started_anew(machine: Machine) {
    for _ in 0..20 {
        run(&machine, reused("true")).await.unwrap();
    }
}

async fn of_many_at_once_one_runs(machine: Machine) {
    let (gate, directory) = (Gate::new(), directory());
    let trace = directory.path().join("trace");
    let text = format!("echo ran >> {}; {}", trace.display(), gate.wait());
    let starts = join_all((0..20).map(|_| machine.execute(reused(&text).build().unwrap()))).await;
    let (started, reported): (Vec<_>, Vec<_>) = starts.into_iter().partition(Result::is_ok);
    let [Ok(started)] = &started[..] else { panic!("{started:?}") };
    for reported in reported {
        assert!(
            matches!(&reported, Err(ExecutorError::AlreadyRunning(info)) if info.id == *started.id()),
            "{reported:?}"
        );
    }
    until("it runs", async || !lines(&trace).is_empty()).await;
    assert_eq!(lines(&trace), ["ran"]);
}

telexec_tests::everywhere! {
    a_repeat_after_the_end_tells_the_same,
    a_repeat_follows_what_runs_from_its_beginning,
    a_deadline_is_no_part_of_the_request,
    any_other_difference_is_another_request,
    it_goes_on_while_one_of_its_calls_is_left,
    it_ends_with_the_last_of_its_calls,
    what_runs_already_is_reported_instead_of_started,
    what_is_not_the_same_is_started,
    what_has_ended_is_started_anew,
    of_many_at_once_one_runs,
}

// on the wire it is not known when the calls arrive
mod here {
    use super::a_start_that_its_caller_gives_up_goes_on_for_the_repeat;
    telexec_tests::at_place!(local: a_start_that_its_caller_gives_up_goes_on_for_the_repeat);
}
