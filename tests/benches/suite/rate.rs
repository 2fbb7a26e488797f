//! How many short commands a second, with so many in flight.

use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use telexec_executor::Executor;
use telexec_tests::{Certs, bench_agent};

use crate::latency::{here, there};
use crate::machine::{cpu_of, own_cpu, peak_mebibytes};
use crate::table::{Aim, Row, Table, Unit};
use crate::{Plan, Result};

const ROUNDS: usize = 3;
const ARGV: [&str; 1] = ["/bin/true"];

/// `/bin/true`: the local loop, and one agent over one connection.
pub(crate) async fn rate(plan: &Plan, table: &mut Table) -> Result<()> {
    let certs = Certs::new();
    let agents = [
        ("unix socket", bench_agent().start()),
        ("unix socket, keeper", bench_agent().kept().start()),
        ("mTLS", bench_agent().mtls(&certs).start()),
    ];
    for in_flight in [1, 8, 64] {
        let count = plan.some(1200).max(in_flight);
        let mut locals = Vec::new();
        let mut remotes = [const { Vec::new() }; 3];
        let mut cpu = [[0.0; 2]; 3];
        for _ in 0..ROUNDS {
            locals.push(per_second(count, in_flight, || here(&ARGV)).await?);
            for ((rates, cpu), (_, agent)) in remotes.iter_mut().zip(&mut cpu).zip(&agents) {
                let machine = agent.executor().await;
                let machine: &dyn Executor = &machine;
                let before = [cpu_of(agent.serving_pid()), own_cpu()];
                rates.push(per_second(count, in_flight, || there(machine, &ARGV)).await?);
                let after = [cpu_of(agent.serving_pid()), own_cpu()];
                for (cpu, (before, after)) in cpu.iter_mut().zip(before.into_iter().zip(after)) {
                    *cpu += after.saturating_sub(before).as_secs_f64() * 1e6 / (count * ROUNDS) as f64;
                }
            }
        }
        let local = median(&mut locals);
        table.add(Row::new(format!("{in_flight} in flight: tokio::process"), Unit::PerSecond, local));
        for ((rates, cpu), (name, agent)) in remotes.iter_mut().zip(cpu).zip(&agents) {
            let row = Row::new(format!("{in_flight} in flight: {name}"), Unit::PerSecond, median(rates));
            let mut row = row.beside("tokio::process", local);
            row.aim = (in_flight > 1 && *name == "mTLS").then_some(Aim::RatioAtLeast(0.80));
            row.cpu = Some(cpu);
            row.peak = Some(peak_mebibytes(agent.serving_pid()));
            table.add(row);
        }
    }
    Ok(())
}

/// As many deeds, with so many in flight.
pub(crate) async fn per_second<F>(count: usize, in_flight: usize, deed: impl Fn() -> F) -> Result<f64>
where
    F: Future<Output = Result<()>>,
{
    let begin = Instant::now();
    let () = stream::iter(0..count).map(|_| deed()).buffer_unordered(in_flight).try_collect().await?;
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
