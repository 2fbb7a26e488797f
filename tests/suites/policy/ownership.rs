//! Executions of others, and who may reach them.

use futures_util::StreamExt;
use telexec_tests::{marker, within};
use telexec_tool::{Attach, Command, Event, ExecutionId, Executor, ExecutorError, ListQuery, OnDisconnect, Signal};

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
            Err(ExecutorError::Denied { rule, reason }) => answers.push((rule, reason)),
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
