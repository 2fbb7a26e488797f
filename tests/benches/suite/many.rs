//! Many streams at once, of one connection.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::select_all;
use telexec_client::RemoteExecutor;
use telexec_executor::{Command, Event, Executor};
use telexec_tests::{Certs, bench_agent};

use crate::rate::median;
use crate::stream::relay_tls;
use crate::table::{Aim, Row, Table, Unit};
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
        let rates = carried(&machine, time).await?;
        sums.push(rates.iter().sum::<f64>());
        slowest.push(rates.iter().copied().fold(f64::INFINITY, f64::min));
        fastest.push(rates.iter().copied().fold(0.0, f64::max));
    }
    let [relay, sum, slowest, fastest] = [relays, sums, slowest, fastest].map(|mut rates| median(&mut rates));
    let row = |name: &str, rate| Row::new(format!("{STREAMS} streams, mTLS: {name}"), Unit::MebibytesPerSecond, rate);
    table.add(row("sum", sum).beside("relay, TLS", relay).aim(Aim::RatioAtLeast(0.8)));
    table.add(row("slowest", slowest).beside("the fastest", fastest).aim(Aim::RatioAtLeast(0.8)));
    Ok(())
}

/// MiB a second of each stream, for so long from when all have begun.
async fn carried(machine: &RemoteExecutor, time: Duration) -> Result<Vec<f64>> {
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let command = Command::argv(["cat", "/dev/zero"]).kill_grace(Duration::ZERO).build()?;
        let events = machine.execute(command).await?;
        streams.push(events.map(move |event| (number, event)));
    }
    let mut all = select_all(streams);
    let (mut counts, mut silent, mut begin) = ([0_u64; STREAMS], STREAMS, None);
    while begin.is_none_or(|begin: Instant| begin.elapsed() < time) {
        let (number, event) = all.next().await.ok_or("all have ended")?;
        let Event::Output(output) = event? else { continue };
        let count = counts.get_mut(number).ok_or("no such stream")?;
        silent -= usize::from(*count == 0 && begin.is_none());
        *count += output.data.len() as u64;
        if silent == 0 && begin.is_none() {
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
