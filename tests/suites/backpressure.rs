//! Commands that write more than anyone reads.

use std::time::Duration;

use telexec_client::ConnectOptions;
use telexec_executor::{Command, Executor, ListQuery};
use telexec_proto::v1::{ExecuteRequest, GetExecutionRequest, execution_event::Event};
use telexec_tests::{Agent, MARK, Memory, Wire, marker, processes_with, run, until, within};

/// Starts a flood that is not read, and waits until the agent takes no more of it.
async fn flood(wire: &Wire, mark: &str) -> tonic::Streaming<telexec_proto::v1::ExecutionEvent> {
    let environment = [(MARK.to_owned(), mark.to_owned())].into();
    let request = ExecuteRequest { command: "exec yes".into(), environment, ..Default::default() };
    let mut stream = wire.executions().execute(request).await.unwrap().into_inner();
    let Some(Event::Started(started)) = stream.message().await.unwrap().unwrap().event else { panic!("no start") };
    let (mut position, mut looks) = (0, 0);
    until("the command is held up", async || {
        let request = GetExecutionRequest { execution_id: started.execution_id.clone() };
        let now = wire.executions().get_execution(request).await.unwrap().into_inner().execution.unwrap().position;
        looks = if now > 0 && now == position { looks + 1 } else { 0 };
        position = now;
        looks > 50
    })
    .await;
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_costs_bounded_memory_and_can_still_cancel() {
    let agent = Agent::start();
    let mark = marker();
    let before = Memory::of(agent.pid()).resident;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let wire = Wire::connect(&agent).await.unwrap();
        streams.push(flood(&wire, &mark).await);
    }
    let grown = Memory::of(agent.pid()).resident.saturating_sub(before);
    assert!(grown < 64 * 1024 * 1024, "by {grown} bytes for four floods");
    assert_eq!(processes_with(&mark).len(), 4);
    drop(streams);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// Each exhausts its own stream window, none that of the connection.
#[tokio::test(flavor = "multi_thread")]
async fn executions_that_are_not_read_hold_up_no_others() {
    let agent = Agent::start();
    let machine = agent.executor().await;
    let mark = marker();
    let mut unread = Vec::new();
    for _ in 0..24 {
        let command = Command::argv(["yes"]).env(MARK, &mark).kill_grace(Duration::ZERO).build().unwrap();
        unread.push(within(machine.execute(command)).await.unwrap());
    }
    let window = ConnectOptions::default().stream_window_bytes;
    let (mut written, mut looks) = (Vec::new(), 0);
    until("all are held up", async || {
        let page = within(machine.list(ListQuery::default())).await.unwrap();
        let positions: Vec<u64> = page.executions.iter().map(|execution| execution.position).collect();
        let all_wrote = positions.iter().all(|position| *position >= u64::from(window));
        looks = if all_wrote && positions == written { looks + 1 } else { 0 };
        written = positions;
        looks > 50
    })
    .await;
    within(run(&machine, Command::argv(["true"]))).await.unwrap();
    drop(unread);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}
