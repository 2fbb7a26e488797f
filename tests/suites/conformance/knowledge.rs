//! What is known of an execution while it runs and afterwards.

use futures_util::future::join_all;
use telexec_executor::{
    Command, CommandBuilder, ExecutionId, ExecutionState, ExecutorError, InvalidCommand, ListQuery, Program,
};
use telexec_tests::{Outcome, directory, lines, marker, run, until_output};

use super::Machine;

pub(super) async fn an_id_is_used_only_once(machine: Machine) {
    let id: ExecutionId = marker().parse().unwrap();
    let command = |text: &str| Command::shell(text).execution_id(id.clone());
    let mut execution = machine.execute(command("echo ready; sleep 300").build().unwrap()).await.unwrap();
    assert_eq!(*execution.id(), id);
    until_output(&mut execution, "ready\n").await;
    let again = run(&machine, command("echo another")).await;
    assert!(matches!(&again, Err(ExecutorError::AlreadyExists(taken)) if *taken == id), "{again:?}");
}

pub(super) async fn of_many_starts_with_one_id_one_runs(machine: Machine) {
    let directory = directory();
    let trace = directory.path().join("trace");
    let id: ExecutionId = marker().parse().unwrap();
    let text = format!("echo ran >> {}; echo out; echo err >&2; exit 3", trace.display());
    let outcomes = join_all((0..20).map(|_| run(&machine, Command::shell(&text).execution_id(id.clone())))).await;
    for outcome in outcomes {
        let Outcome { stdout, stderr, exited, .. } = outcome.unwrap();
        assert_eq!((&stdout[..], &stderr[..], exited.exit_code()), (&b"out\n"[..], &b"err\n"[..], 3));
    }
    assert_eq!(lines(&trace), ["ran"]);
}

pub(super) async fn a_running_command_is_described(machine: Machine) {
    let text = "echo ready; sleep 300; sleep 300";
    let label = ("suite".to_owned(), "knowledge é".to_owned());
    let command = Command::shell(text).shell("sh").login(true).working_directory("/usr").labels([label.clone()]);
    let mut execution = machine.execute(command.build().unwrap()).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    let info = machine.get(execution.id()).await.unwrap();
    assert_eq!(info.program, Program::Shell { text: text.into(), shell: Some("sh".into()), login: true });
    assert_eq!((&info.working_directory[..], info.labels.into_iter().next()), ("/usr", Some(label)));
    assert_eq!((info.state, info.exited, info.position), (ExecutionState::Running, None, 6));
    assert_eq!((info.pid, info.start_time), (execution.started().pid, execution.started().start_time));
    assert!((1..=2).contains(&info.processes) && !info.user.is_empty(), "{} {}", info.processes, info.user);
}

pub(super) async fn an_ended_command_is_remembered(machine: Machine) {
    let argv = ["printf".to_owned(), "12345".to_owned()];
    let outcome = run(&machine, Command::argv(argv.clone())).await.unwrap();
    let info = machine.get(&outcome.started.id).await.unwrap();
    assert_eq!((info.program, info.position), (Program::Argv(argv.into()), 5));
    assert_eq!((info.state, info.processes, info.exited), (ExecutionState::Exited, 0, Some(outcome.exited)));
}

pub(super) async fn nobody_knows_an_unknown_id(machine: Machine) {
    let id = marker().parse().unwrap();
    let error = machine.get(&id).await.unwrap_err();
    assert!(matches!(&error, ExecutorError::NotFound(unknown) if *unknown == id), "{error:?}");
}

fn labelled(text: &str, labels: [(&str, &str); 2]) -> CommandBuilder {
    Command::shell(text).labels(labels.map(|(key, value)| (key.to_owned(), value.to_owned())))
}

pub(super) async fn lists_are_filtered_by_labels_and_state(machine: Machine) {
    let ended = run(&machine, labelled("true", [("kind", "a"), ("n", "1")])).await.unwrap().started.id;
    let running = labelled("sleep 300", [("kind", "a"), ("n", "2")]).build().unwrap();
    let running = machine.execute(running).await.unwrap();
    let other = run(&machine, labelled("true", [("kind", "b"), ("n", "1")])).await.unwrap().started.id;
    let list = async |include_exited, labels: &[(&str, &str)]| -> Vec<String> {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let page = machine.list(ListQuery { include_exited, labels, ..Default::default() }).await.unwrap();
        page.executions.into_iter().map(|info| info.id.to_string()).collect()
    };
    let [ended, running, other] = [ended.as_str(), running.id().as_str(), other.as_str()];
    assert_eq!(list(false, &[]).await, [running]);
    assert_eq!(list(true, &[]).await, [ended, running, other]);
    assert_eq!(list(true, &[("kind", "a")]).await, [ended, running]);
    assert_eq!(list(true, &[("kind", "b"), ("n", "1")]).await, [other]);
    assert!(list(true, &[("kind", "b"), ("n", "2")]).await.is_empty());
}

pub(super) async fn lists_come_in_pages(machine: Machine) {
    let mut ids = Vec::new();
    for _ in 0..5 {
        let Outcome { started, .. } = run(&machine, Command::argv(["true"])).await.unwrap();
        ids.push(started.id);
    }
    let mut query = ListQuery { include_exited: true, page_size: 2, ..Default::default() };
    for expected in ids.chunks(2) {
        let page = machine.list(query.clone()).await.unwrap();
        assert_eq!(page.executions.iter().map(|info| info.id.clone()).collect::<Vec<_>>(), expected);
        assert_eq!(page.next_page_token.is_empty(), expected.len() < 2);
        query.page_token = page.next_page_token;
    }
}

pub(super) async fn a_foreign_page_token_is_refused(machine: Machine) {
    for token in ["another", "-1", "1;", "99999999999999999999999"] {
        let error = machine.list(ListQuery { page_token: token.into(), ..Default::default() }).await.unwrap_err();
        assert!(
            matches!(&error, ExecutorError::Invalid(InvalidCommand { field, .. }) if field == "page_token"),
            "{token}: {error:?}"
        );
    }
}
