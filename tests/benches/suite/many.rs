//! Many concurrent streams of one connection.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::select_all;
use telexec_client::{ConnectOptions, RemoteExecutor};
use telexec_executor::{Command, Event, Executor, ListQuery};
use telexec_tests::{Certs, bench_agent, until};

use crate::rate::median;
use crate::stream::relay_tls;
use crate::table::{Aim, Baseline, Row, Table, Unit};
use crate::way::MEBIBYTE;
use crate::{Plan, Result};

const STREAMS: usize = 200;
const ROUNDS: usize = 3;

/// What they carry together, beside one relay; and the slowest beside the fastest.
pub(crate) async fn streams(plan: &Plan, table: &mut Table) -> Result<()> {
    let certs = Certs::new();
    let agent = bench_agent().mtls(&certs).start();
    let machine = agent.executor().await;
    let bytes = plan.some(2000) as u64 * MEBIBYTE;
    let [mut relays, mut sums, mut slowest, mut fastest] = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        relay_tls(bytes, &certs)?;
        let time = begin.elapsed();
        relays.push(mebibytes(bytes) / time.as_secs_f64());
        let rates = rates(&machine, time).await?;
        sums.push(rates.iter().sum::<f64>());
        slowest.push(rates.iter().copied().fold(f64::INFINITY, f64::min));
        fastest.push(rates.iter().copied().fold(0.0, f64::max));
        until("all have ended", async || {
            machine.list(ListQuery::default()).await.is_ok_and(|page| page.executions.is_empty())
        })
        .await;
    }
    table.add(row("sum", sums, "relay, TLS", relays));
    table.add(row("slowest", slowest, "the fastest", fastest));
    Ok(())
}

/// The ratio is the median of those of the rounds.
fn row(name: &str, mut rates: Vec<f64>, base: &str, mut bases: Vec<f64>) -> Row {
    let mut ratios: Vec<f64> = rates.iter().zip(&bases).map(|(rate, base)| rate / base).collect();
    let name = format!("{STREAMS} streams, mTLS: {name}");
    let mut row = Row::new(name, Unit::MebibytesPerSecond, median(&mut rates)).aim(Aim::RatioAtLeast(0.8));
    row.baseline = Some(Baseline { name: base.to_owned(), value: median(&mut bases), ratio: median(&mut ratios) });
    row
}

/// MiB a second of each stream, for this time from when each has carried more than is buffered.
async fn rates(machine: &RemoteExecutor, time: Duration) -> Result<Vec<f64>> {
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let command = Command::argv(["cat", "/dev/zero"]).kill_grace(Duration::ZERO).build()?;
        let events = machine.execute(command).await?;
        streams.push(events.map(move |event| (number, event)));
    }
    let mut all = select_all(streams);
    let buffered = u64::from(ConnectOptions::default().stream_window_bytes);
    let (mut counts, mut waiting, mut begin) = ([0_u64; STREAMS], STREAMS, None);
    while begin.is_none_or(|begin: Instant| begin.elapsed() < time) {
        let (number, event) = all.next().await.ok_or("all have ended")?;
        let Event::Output(output) = event? else { continue };
        let count = counts.get_mut(number).ok_or("no such stream")?;
        let before = *count;
        *count += output.data.len() as u64;
        waiting -= usize::from(begin.is_none() && before <= buffered && *count > buffered);
        if waiting == 0 && begin.is_none() {
            counts = [0; STREAMS];
            begin = Some(Instant::now());
        }
    }
    let seconds = begin.map(|begin| begin.elapsed().as_secs_f64()).ok_or("they have not begun")?;
    Ok(counts.iter().map(|bytes| mebibytes(*bytes) / seconds).collect())
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MEBIBYTE as f64
}
