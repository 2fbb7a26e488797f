//! Executions of others, and who may reach them.

use futures_util::StreamExt;
use telexec_executor::{
    Attach, Command, Event, ExecutionId, Executor, ExecutorError, Input, ListQuery, OnDisconnect, Signal,
};
use telexec_tests::{Agent, Certs, directory, is_root, marker, program, replay, until, within};

use super::Ruled;

const POLICY: &str = r#"
permit(principal, action, resource);
@id("admin") @any_owner permit(principal in Role::"admin", action, resource);
// it reaches others for one thing only
@id("watcher") @any_owner permit(principal in Role::"watcher", action == Action::"Attach", resource);
@id("not-frozen") forbid(principal in Role::"frozen", action == Action::"SignalExecution", resource)
  when { resource.owner == principal };
"#;

const ROLES: &str = "[roles]\nadmin = [\"admin\"]\nwatcher = [\"watcher\"]\nfrozen = [\"frozen\"]";

async fn start(ruled: &Ruled, name: &str) -> ExecutionId {
    let id: ExecutionId = marker().parse().unwrap();
    let command = Command::shell("echo hello; sleep 300").execution_id(id.clone()).on_disconnect(OnDisconnect::Detach);
    let execution = ruled.to(name).await.executor().execute(command.build().unwrap()).await.unwrap();
    drop(execution);
    id
}

fn is_not_found<T: std::fmt::Debug>(answer: Result<T, ExecutorError>) -> bool {
    matches!(answer, Err(ExecutorError::NotFound(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn others_are_not_found_unless_a_rule_says_so() {
    let ruled = Ruled::start(POLICY, ROLES);
    let id = start(&ruled, "anna").await;
    let all = ListQuery::default;

    let other = ruled.to("other").await.executor();
    assert!(is_not_found(other.get(&id).await) && is_not_found(other.signal(&id, Signal::TERM).await));
    assert!(is_not_found(other.attach(&id, Attach::start()).await));
    assert!(other.list(all()).await.unwrap().executions.is_empty());

    let watcher = ruled.to("watcher").await.executor();
    let mut events = watcher.attach(&id, Attach::start()).await.unwrap();
    let output = async {
        while let Some(event) = events.next().await {
            if let Event::Output(output) = event.unwrap() {
                return output.data;
            }
        }
        panic!("no output");
    };
    assert_eq!(within(output).await, "hello\n");
    assert!(is_not_found(watcher.get(&id).await) && is_not_found(watcher.signal(&id, Signal::TERM).await));
    assert!(watcher.list(all()).await.unwrap().executions.is_empty());

    // by which it would be ended
    let binding = Attach { on_disconnect: OnDisconnect::Kill, ..Attach::start() };
    assert!(is_not_found(watcher.attach(&id, binding).await));

    let admin = ruled.to("admin").await.executor();
    assert_eq!(admin.get(&id).await.unwrap().identity, "anna");
    assert_eq!(admin.list(all()).await.unwrap().executions[0].id, id);
    admin.signal(&id, Signal::KILL).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_says_nothing_of_whether_it_is_there() {
    let ruled = Ruled::start(POLICY, ROLES);
    let (own, others) = (start(&ruled, "frozen").await, start(&ruled, "anna").await);
    let frozen = ruled.to("frozen").await.executor();
    let mut answers = Vec::new();
    for id in [own, others, marker().parse().unwrap()] {
        match frozen.signal(&id, Signal::TERM).await {
            Err(ExecutorError::Denied { rule, reason, nearest, missing }) => {
                answers.push((rule, reason, nearest, missing))
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answers[0].0.as_deref(), Some("not-frozen"));
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let admin = ruled.to("admin").await.executor();
    for execution in admin.list(ListQuery::default()).await.unwrap().executions {
        admin.signal(&execution.id, Signal::KILL).await.unwrap();
    }
}

/// As docs/OPERATING.md has it: `telexec ps` and `telexec kill` on the machine itself.
#[tokio::test(flavor = "multi_thread")]
async fn root_on_the_agents_own_socket_finds_and_ends_what_others_run() {
    if !is_root() {
        return;
    }
    let certs = Certs::new();
    let directory = directory();
    let socket = format!("unix://{}/agent.sock", directory.path().display());
    let agent = Agent::builder().mtls(&certs).listen(&socket).start();
    let id: ExecutionId = marker().parse().unwrap();
    let command = Command::shell("sleep 300").execution_id(id.clone()).on_disconnect(OnDisconnect::Detach);
    drop(agent.connect().await.executor().execute(command.build().unwrap()).await.unwrap());

    let said = async |args: &[&str]| {
        let mut command = tokio::process::Command::new(program("telexec"));
        let output = within(command.args(args).kill_on_drop(true).output()).await.unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(said(&["ps", "-q", &socket]).await, (0, format!("{id}\n")));
    // its output and its input are for its owner
    assert_eq!(said(&["attach", &socket, id.as_str()]).await.0, 125);
    assert_eq!(said(&["input", &socket, id.as_str(), "text"]).await.0, 125);
    assert_eq!(said(&["kill", "-s", "KILL", &socket, id.as_str()]).await.0, 0);
    until("it has ended", async || said(&["ps", "-q", &socket]).await.1.is_empty()).await;
    assert!(said(&["ps", "-q", "-a", &socket]).await.1.contains(id.as_str()));

    // whose they are is in a column of its own once that differs
    assert!(!said(&["ps", "-a", &socket]).await.1.contains("IDENTITY"));
    assert_eq!(said(&["exec", &socket, "--", "true"]).await.0, 0);
    let (_, table) = said(&["ps", "-a", &socket]).await;
    assert!(table.starts_with("ID ") && table.contains(" IDENTITY ") && table.contains(" unix:uid=0 "), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_its_identitys() {
    let ruled = Ruled::start(POLICY, ROLES);
    let id: ExecutionId = marker().parse().unwrap();
    let command = |text: &str| {
        let command = Command::shell(text).accepts_input(true).on_disconnect(OnDisconnect::Detach);
        command.execution_id(id.clone()).build().unwrap()
    };
    let executors = [ruled.to("anna").await.executor(), ruled.to("other").await.executor()];
    let texts = ["echo anna; exec cat", "echo other; exec cat"];
    let mut pids = Vec::new();
    for (executor, text) in executors.iter().zip(texts) {
        // the second is a repeat
        let started = [executor.execute(command(text)).await.unwrap(), executor.execute(command(text)).await.unwrap()];
        assert_eq!(started[0].started(), started[1].started());
        pids.push(started[0].started().pid);
        let another = executor.execute(command("echo another")).await;
        assert!(matches!(another, Err(ExecutorError::AlreadyExists(_))), "{another:?}");
    }
    for ((executor, pid), name) in executors.iter().zip(&pids).zip(["anna", "other"]) {
        let info = executor.get(&id).await.unwrap();
        assert_eq!((info.pid, info.identity.as_str()), (*pid, name));
        let close = Input { data: "typed\n".into(), close: true, offset: Some(0) };
        assert_eq!(executor.write_input(&id, close).await.unwrap(), 6);
        let reported = replay(executor.attach(&id, Attach::start()).await.unwrap(), 0).await;
        assert_eq!(reported.text(), format!("{name}\ntyped\n"));
        assert_eq!(executor.list(all()).await.unwrap().executions.len(), 1);
    }
    // who reaches both gets an error, until it has one of its own
    let admin = ruled.to("admin").await.executor();
    for answer in [admin.get(&id).await.map(drop), admin.attach(&id, Attach::start()).await.map(drop)] {
        let Err(ExecutorError::FailedPrecondition { reason }) = answer else { panic!("{answer:?}") };
        assert!(reason.contains("ambiguous"), "{reason}");
    }
    let owners = admin.list(all()).await.unwrap().executions.into_iter().map(|info| (info.id, info.identity));
    assert!(owners.eq([(id.clone(), "anna".to_owned()), (id.clone(), "other".to_owned())]));
    assert!(is_not_found(ruled.to("third").await.executor().get(&id).await));
    drop(admin.execute(command("exit 0")).await.unwrap());
    assert_eq!(admin.get(&id).await.unwrap().identity, "admin");
}

fn all() -> ListQuery {
    ListQuery { include_exited: true, ..ListQuery::default() }
}
