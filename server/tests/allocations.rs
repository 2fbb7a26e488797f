//! How often an agent and its client allocate for one short command: a measure of their work that a busy machine does not change.

use std::alloc::System;

use futures_util::StreamExt;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use telexec_client::{Agent, ConnectOptions, RemoteExecutor};
use telexec_executor::{Command, Event, Executor, ExecutorError};
use telexec_server::{Config, Ending, Listeners, serve};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ROUNDS: usize = 200;
/// 3 % more than there were when this was last changed. Lower it with them.
const MAX_ALLOCATIONS: usize = 248;

async fn run(executor: &RemoteExecutor, count: usize) -> Result<(), ExecutorError> {
    for _ in 0..count {
        let mut execution = executor.execute(Command::argv(["/bin/true"]).build()?).await?;
        let mut last = None;
        while let Some(event) = execution.next().await {
            last = Some(event?);
        }
        assert!(matches!(last, Some(Event::Exited(_))), "{last:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_short_command_takes_no_more_allocations_than_it_did() {
    let directory = tempfile::tempdir().unwrap();
    let uri = format!("unix://{}/agent.sock", directory.path().display());
    let config = Config { listen: vec![uri.parse().unwrap()], ..Config::default() };
    let listeners = Listeners::bind(&config).await.unwrap();
    tokio::spawn(async move { serve(config, listeners, std::future::pending::<Ending>()).await.unwrap() });
    let agent = Agent::connect(&uri.parse().unwrap(), ConnectOptions::default()).await.unwrap();
    let executor = agent.executor();
    // what is kept for the next ones is there then
    run(&executor, 50).await.unwrap();
    let region = Region::new(ALLOCATOR);
    run(&executor, ROUNDS).await.unwrap();
    let stats = region.change();
    let (allocations, bytes) = ((stats.allocations + stats.reallocations) / ROUNDS, stats.bytes_allocated / ROUNDS);
    println!("{allocations} allocations, {bytes} bytes");
    assert!(allocations <= MAX_ALLOCATIONS, "{allocations} allocations for each command, more than {MAX_ALLOCATIONS}");
}
