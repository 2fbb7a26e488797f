//! Very many executions in the background, and who follows them.

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use telexec_proto::v1::{AttachRequest, ExecuteRequest, ListExecutionsRequest, execution_event::Event};
use telexec_tests::{Agent, Gate, Holdings, Memory, Wire, follow, until, within};

const EXECUTIONS: usize = 1000;
const READERS: usize = 100;
/// More than is kept in memory of any: what comes late is read from the disk.
const LINES: u32 = 20_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_in_the_background_and_a_hundred_readers_are_within_bounds() {
    let agent = Agent::builder().config("retention_count = 2000").start();
    let wire = Wire::connect(&agent).await.unwrap();
    let gate = Gate::new();
    let text = format!("{}; seq 1 {LINES}; exit 3", gate.wait());
    let before = Memory::of(agent.pid()).resident;
    let start = async |_| {
        let request = ExecuteRequest {
            command: text.clone(),
            shell: "sh".into(),
            yield_after: Some(prost_types::Duration::default()),
            ..Default::default()
        };
        let followed = follow(within(wire.executions().execute(request)).await.unwrap().into_inner()).await;
        match &followed.events.iter().map(|event| event.event.as_ref()).collect::<Vec<_>>()[..] {
            [Some(Event::Started(started)), Some(Event::Promoted(_))] => started.execution_id.clone(),
            _ => panic!("{followed:?}"),
        }
    };
    let ids: Vec<String> = stream::iter(0..EXECUTIONS).map(start).buffer_unordered(20).collect().await;
    let with_all = Memory::of(agent.pid()).resident.saturating_sub(before);
    assert!(with_all < 64 << 20, "{with_all} bytes for {EXECUTIONS} that wait");

    let attach = async |execution_id: &str| {
        let request = AttachRequest { execution_id: execution_id.into(), ..Default::default() };
        within(wire.executions().attach(request)).await.unwrap().into_inner()
    };
    // a connection of its own, whose windows it may fill
    let other = Wire::connect(&agent).await.unwrap();
    let unread = AttachRequest { execution_id: ids[0].clone(), ..Default::default() };
    let _unread = within(other.executions().attach(unread)).await.unwrap();
    let readers = join_all(ids.iter().take(READERS - 1).map(|id| attach(id))).await;
    let _open = gate.open();
    let lines: String = (1..=LINES).map(|i| format!("{i}\n")).collect();
    for followed in join_all(readers.into_iter().map(follow)).await {
        assert!(followed.stdout() == lines.as_bytes(), "{} of {} bytes", followed.stdout().len(), lines.len());
        assert_eq!(followed.exited().unwrap().exit_code, 3);
    }
    until("all have ended", async || {
        let list = within(wire.executions().list_executions(ListExecutionsRequest::default())).await.unwrap();
        list.into_inner().executions.is_empty()
    })
    .await;
    let late = attach(&ids[EXECUTIONS - 1]).await;
    assert!(follow(late).await.stdout() == lines.as_bytes());

    let grown = Memory::of(agent.pid()).resident.saturating_sub(before);
    assert!(grown < 192 << 20, "by {grown} bytes");
    until("nothing is held of what has ended", async || {
        let held = Holdings::of(agent.pid());
        held.children == 0 && held.descriptors < 100
    })
    .await;
}
