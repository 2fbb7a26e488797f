//! Short commands by way of a NATS server, beside calls of the same agent.

use telexec_executor::Executor;
use telexec_tests::{ByNats, bench_agent};

use crate::contest::{Contestant, contest, timed};
use crate::latency::there;
use crate::rate::{median, per_second};
use crate::table::{Row, Table, Unit};
use crate::{Plan, Result};

const ARGV: [&str; 1] = ["/bin/true"];
const ROUNDS: usize = 3;
const IN_FLIGHT: usize = 64;

/// How long one takes, and how many a second.
pub(crate) async fn nats(plan: &Plan, table: &mut Table) -> Result<()> {
    let agent = bench_agent().start();
    let Some(by_nats) = ByNats::connect(&agent).await else {
        println!("skipped: nats (NATS_PYTHON names no Python with a nats-server beside it)");
        return Ok(());
    };
    let (direct, by_nats) = (agent.executor().await, by_nats.executor());
    let contestants = vec![
        Contestant::new("/bin/true: unix socket", || timed(there(&direct, &ARGV))),
        Contestant::new("/bin/true: by NATS", || timed(there(&by_nats, &ARGV))),
    ];
    contest(plan, table, 100, contestants).await?;
    let count = plan.some(1200).max(IN_FLIGHT);
    let machines: [&dyn Executor; 2] = [&direct, &by_nats];
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (machine, rates) in machines.iter().zip(&mut rates) {
            rates.push(per_second(count, IN_FLIGHT, || there(*machine, &ARGV)).await?);
        }
    }
    let [direct, by_nats] = rates.each_mut().map(|rates| median(rates));
    let row = |name: &str, rate| Row::new(format!("{IN_FLIGHT} in flight: {name}"), Unit::PerSecond, rate);
    table.add(row("unix socket", direct));
    table.add(row("by NATS", by_nats).beside("unix socket", direct));
    Ok(())
}
