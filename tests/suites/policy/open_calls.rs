//! Calls that are open while the policy changes: what a new call would be refused, they may not continue.

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use rustix::process::Signal;
use serde_json::{Value, json};
use telexec_executor::{ExecutionInfo, ExecutionState, Executor, ExitCause, Input};
use telexec_proto::v1::execution_event::Event;
use telexec_proto::v1::interact_request::Request as Step;
use telexec_proto::v1::{
    AttachRequest, DisconnectPolicy, ExecuteRequest, ExecutionEvent, InteractRequest, WriteInputRequest,
};
use telexec_tests::{Agent, Certs, Pair, Wire, follow, lines, marker, processes_with, until, within};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::{Ruled, rule};

const LONG: prost_types::Duration = prost_types::Duration { seconds: 300, nanos: 0 };
const BEFORE: &str = r#"
@environment("*") permit(principal, action, resource);
@id("admin") @environment("*") @any_owner permit(principal == Identity::"admin", action, resource);
"#;
const AFTER: &str = r#"
@id("out") forbid(principal == Identity::"anna", action, resource);
"#;

/// The same policy, and anna is out.
fn replace(ruled: &Ruled) {
    std::fs::write(ruled.agent.policy(), format!("{BEFORE}{AFTER}")).unwrap();
    ruled.agent.signal(Signal::HUP);
}

async fn wire(ruled: &Ruled, name: &str) -> Wire {
    Wire::connect_tls(&ruled.agent, ruled.certs.config(Some(&ruled.pair(name)))).await.unwrap()
}

/// A command with this id, which its processes carry too.
fn request(id: &str, text: &str) -> ExecuteRequest {
    let environment = [(telexec_tests::MARK.to_owned(), id.to_owned())].into();
    ExecuteRequest {
        command: text.into(),
        execution_id: id.into(),
        environment,
        kill_grace: Some(prost_types::Duration::default()),
        accepts_input: true,
        ..Default::default()
    }
}

/// Reads until the command is there, or has written something.
async fn begun(stream: &mut Streaming<ExecutionEvent>) {
    within(stream.message()).await.unwrap().unwrap();
}

async fn end(stream: Streaming<ExecutionEvent>) -> Status {
    follow(stream).await.status
}

/// What an administrator sees of it.
async fn info(ruled: &Ruled, id: &str) -> ExecutionInfo {
    ruled.to("admin").await.executor().get(&id.parse().unwrap()).await.unwrap()
}

async fn is_cancelled(ruled: &Ruled, id: &str) {
    until("nothing of it is left", async || processes_with(id).is_empty()).await;
    until("its end is known", async || info(ruled, id).await.state == ExecutionState::Exited).await;
    assert_eq!(info(ruled, id).await.exited.unwrap().cause, ExitCause::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_started_something_are_ended_with_it() {
    let ruled = Ruled::start(BEFORE, "");
    let anna = wire(&ruled, "anna").await;
    let [plain, unread, run, other] = [(); 4].map(|()| marker());
    let mut stream = anna.executions().execute(request(&plain, "sleep 300")).await.unwrap().into_inner();
    begun(&mut stream).await;
    // its caller does not read: nothing that continues when it does may hold up the end
    let flood = wire(&ruled, "anna").await;
    let unread_stream = flood.executions().execute(request(&unread, "yes")).await.unwrap().into_inner();
    let mut calls = anna.executions();
    let collected = request(&run, "sleep 300");
    let collected = tokio::spawn(async move { calls.run(collected).await.map(drop) });
    until("it runs", async || !processes_with(&run).is_empty()).await;
    let bob = wire(&ruled, "bob").await;
    let mut others = bob.executions().execute(request(&other, "read x; echo $x")).await.unwrap().into_inner();
    begun(&mut others).await;

    replace(&ruled);
    assert_eq!(rule(&end(stream).await), "out");
    assert_eq!(rule(&within(collected).await.unwrap().unwrap_err()), "out");
    for id in [&plain, &unread, &run] {
        is_cancelled(&ruled, id).await;
    }
    assert_eq!(rule(&end(unread_stream).await), "out");
    // no one else is touched
    let data = "on\n".into();
    let input = WriteInputRequest { execution_id: other, data, ..Default::default() };
    bob.executions().write_input(input).await.unwrap();
    assert_eq!(follow(others).await.stdout(), b"on\n");
}

/// Anna's, which stays whoever reads it: it writes what it reads into a file.
async fn detached(ruled: &Ruled, anna: &Wire, id: &str) -> (mpsc::Sender<InteractRequest>, Streaming<ExecutionEvent>) {
    let file = ruled.agent.directory().join(id);
    let text = format!("while read -r line; do echo \"$line\" >> {}; done", file.display());
    let on_disconnect = DisconnectPolicy::Detach.into();
    let (steps, receiver) = mpsc::channel(4);
    steps.send(step(Step::Start(ExecuteRequest { on_disconnect, ..request(id, &text) }))).await.unwrap();
    let requests: BoxStream<'static, InteractRequest> = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|request| (request, receiver))
    })
    .boxed();
    let mut stream = within(anna.executions().interact(requests)).await.unwrap().into_inner();
    begun(&mut stream).await;
    (steps, stream)
}

fn step(step: Step) -> InteractRequest {
    InteractRequest { request: Some(step) }
}

#[tokio::test(flavor = "multi_thread")]
async fn input_stops_and_what_was_detached_stays() {
    let ruled = Ruled::start(BEFORE, "");
    let anna = wire(&ruled, "anna").await;
    let id = marker();
    let file = ruled.agent.directory().join(&id);
    let (steps, stream) = detached(&ruled, &anna, &id).await;
    steps.send(step(Step::Stdin("one\n".into()))).await.unwrap();
    until("it is read", async || lines(&file) == ["one"]).await;

    replace(&ruled);
    assert_eq!(rule(&end(stream).await), "out");
    let _ = steps.send(step(Step::Stdin("two\n".into()))).await;
    let admin = ruled.to("admin").await.executor();
    let execution = id.parse().unwrap();
    admin.write_input(&execution, Input { data: "three\n".into(), ..Default::default() }).await.unwrap();
    until("that is read", async || lines(&file).len() > 1).await;
    assert_eq!(lines(&file), ["one", "three"]);
    admin.signal(&execution, telexec_executor::Signal::KILL).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_follow_or_wait_are_ended_alone() {
    let ruled = Ruled::start(BEFORE, "");
    let anna = wire(&ruled, "anna").await;
    let [id, bound] = [(); 2].map(|()| marker());
    let (_steps, stream) = detached(&ruled, &anna, &id).await;
    drop(stream);
    let on_disconnect = DisconnectPolicy::Detach.into();
    let waiting = ExecuteRequest { on_disconnect, ..request(&bound, "sleep 300") };
    drop(anna.executions().execute(waiting).await.unwrap());

    let attach = |execution_id: &str| AttachRequest { execution_id: execution_id.into(), ..Default::default() };
    let mut follows = anna.executions().attach(attach(&id)).await.unwrap().into_inner();
    begun(&mut follows).await;
    let kills = AttachRequest { on_disconnect: DisconnectPolicy::Kill.into(), ..attach(&bound) };
    let mut kills = anna.executions().attach(kills).await.unwrap().into_inner();
    begun(&mut kills).await;
    // more than a pipe holds, and it is not read
    let input = WriteInputRequest { execution_id: bound.clone(), data: vec![0; 1 << 20].into(), ..Default::default() };
    let mut calls = anna.executions();
    let writes = tokio::spawn(async move { calls.write_input(input).await.map(drop) });

    replace(&ruled);
    assert_eq!(rule(&end(follows).await), "out");
    assert_eq!(rule(&end(kills).await), "out");
    assert_eq!(rule(&within(writes).await.unwrap().unwrap_err()), "out");
    is_cancelled(&ruled, &bound).await;
    assert_eq!(info(&ruled, &id).await.state, ExecutionState::Running);
    let admin = ruled.to("admin").await.executor();
    admin.signal(&id.parse().unwrap(), telexec_executor::Signal::KILL).await.unwrap();
}

/// Who may not reach others any more hears what a new call would.
#[tokio::test(flavor = "multi_thread")]
async fn who_followed_others_finds_them_no_more() {
    let ruled = Ruled::start(BEFORE, "");
    let bob = wire(&ruled, "bob").await;
    let id = marker();
    let mut own = bob.executions().execute(request(&id, "read x; echo $x")).await.unwrap().into_inner();
    begun(&mut own).await;
    let admin = wire(&ruled, "admin").await;
    let attach = AttachRequest { execution_id: id.clone(), ..Default::default() };
    let mut follows = admin.executions().attach(attach).await.unwrap().into_inner();
    begun(&mut follows).await;

    std::fs::write(ruled.agent.policy(), "@environment(\"*\") permit(principal, action, resource);").unwrap();
    ruled.agent.signal(Signal::HUP);
    assert_eq!(end(follows).await.code(), tonic::Code::NotFound);
    let input = WriteInputRequest { execution_id: id, data: "on\n".into(), ..Default::default() };
    bob.executions().write_input(input).await.unwrap();
    let followed = follow(own).await;
    assert!(matches!(followed.events.last().unwrap().event, Some(Event::Exited(_))), "{:?}", followed.status);
}

/// A command that waits long for anna, who has lost her connection: that is noticed when this returns.
async fn waiting(ruled: &Ruled, pair: &Pair) -> String {
    let anna = Wire::connect_tls(&ruled.agent, ruled.certs.config(Some(pair))).await.unwrap();
    let [id, unbound] = [(); 2].map(|()| marker());
    let mut calls = anna.executions();
    let mut waits = calls.execute(with_grace(&id)).await.unwrap().into_inner();
    begun(&mut waits).await;
    let mut ends = calls.execute(request(&unbound, "sleep 300")).await.unwrap().into_inner();
    begun(&mut ends).await;
    anna.cut();
    until("the loss is noticed", async || processes_with(&unbound).is_empty()).await;
    id
}

fn with_grace(id: &str) -> ExecuteRequest {
    ExecuteRequest { disconnect_grace: Some(LONG), ..request(id, "sleep 300") }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_lost_connection_is_ended_too() {
    let ruled = Ruled::start(BEFORE, "");
    let waits = waiting(&ruled, &ruled.pair("anna")).await;
    assert!(!processes_with(&waits).is_empty());
    replace(&ruled);
    is_cancelled(&ruled, &waits).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_revoked_caller_is_ended() {
    let certs = Certs::new();
    let crl = certs.ca.directory().join("crl.pem");
    std::fs::write(&crl, certs.ca.revocation_list(&[])).unwrap();
    let args = ["--client-crl", crl.to_str().unwrap()];
    let agent = Agent::builder().mtls(&certs).policy(BEFORE).args(args).start();
    let ruled = Ruled { agent, certs, _log: None };
    let pair = ruled.pair("anna");
    let waits = waiting(&ruled, &pair).await;
    assert!(!processes_with(&waits).is_empty());
    std::fs::write(&crl, ruled.certs.ca.revocation_list(&[&pair])).unwrap();
    ruled.agent.signal(Signal::HUP);
    is_cancelled(&ruled, &waits).await;
}

/// The start is not permitted any more, and to follow is.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_back_before_that_is_judged_by_the_new_call() {
    let ruled = Ruled::start(BEFORE, "");
    let pair = ruled.pair("anna");
    let [waits, back] = [waiting(&ruled, &pair).await, waiting(&ruled, &pair).await];
    let anna = wire(&ruled, "anna").await;
    let attach = AttachRequest {
        execution_id: back.clone(),
        on_disconnect: DisconnectPolicy::Kill.into(),
        disconnect_grace: Some(LONG),
        ..Default::default()
    };
    let mut follows = anna.executions().attach(attach).await.unwrap().into_inner();
    begun(&mut follows).await;

    let after = r#"forbid(principal == Identity::"anna", action in Action::"start", resource);"#;
    std::fs::write(ruled.agent.policy(), format!("{BEFORE}{after}")).unwrap();
    ruled.agent.signal(Signal::HUP);
    is_cancelled(&ruled, &waits).await;
    assert!(!processes_with(&back).is_empty());
    anna.cut();
    replace(&ruled);
    is_cancelled(&ruled, &back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_tells_of_each_once() {
    let log = tempfile::tempdir().unwrap();
    let file = log.path().join("audit/audit.log");
    let ruled = Ruled::start(BEFORE, &format!("[audit]\nfile = {file:?}"));
    let anna = wire(&ruled, "anna").await;
    let id = marker();
    let mut stream = anna.executions().execute(request(&id, "sleep 300")).await.unwrap().into_inner();
    begun(&mut stream).await;
    replace(&ruled);
    assert_eq!(rule(&end(stream).await), "out");
    is_cancelled(&ruled, &id).await;

    let records = || -> Vec<Value> {
        lines(&file)
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .filter(|record: &Value| record["execution_id"] == *id)
            .collect()
    };
    until("its end is recorded", async || records().iter().any(|record| record["event"] == "end")).await;
    let reported: Vec<_> = records().iter().filter(|record| record["event"] == "call").cloned().collect();
    let of_anna: Vec<_> = reported.iter().filter(|record| record["identity"] == "anna").collect();
    assert_eq!(of_anna.len(), 1, "{reported:?}");
    let [rpc, decision, rules, error] = ["rpc", "decision", "rules", "error"].map(|key| of_anna[0][key].clone());
    assert_eq!((rpc, decision, rules, error), (json!("Execute"), json!("deny"), json!(["out"]), json!("denied")));
}
