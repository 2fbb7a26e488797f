//! Many small writes.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use rustix::time::{ClockId, clock_gettime};
use telexec_client::RemoteExecutor;
use telexec_executor::{Command, Event, Executor};
use telexec_tests::{Certs, bench_agent, percentile};
use tokio::io::AsyncReadExt;

use crate::rate::median;
use crate::table::{Aim, Row, Table, Unit};
use crate::{Plan, Result};

/// The arguments by which this program is asked to be the command that writes.
const FLOOD: &str = "--write-lines";
const TICK: &str = "--write-a-line-each-millisecond";
/// Each holds the time at which it was written, in nanoseconds.
const LINE_BYTES: usize = 20;
/// Allowed p99 latency beyond that of a pipe, in microseconds.
const ADDED_P99_US: f64 = 500.0;

/// Writes as many lines as the arguments say, each by itself; false: they say nothing of it.
pub(crate) fn is_asked_to_write() -> Result<bool> {
    let mut arguments = std::env::args().skip(1);
    let pause = match arguments.next().as_deref() {
        Some(FLOOD) => Duration::ZERO,
        Some(TICK) => Duration::from_millis(1),
        _ => return Ok(false),
    };
    let count: usize = arguments.next().ok_or("how many?")?.parse()?;
    let mut to = std::fs::File::from(rustix::io::dup(rustix::stdio::stdout())?);
    for _ in 0..count {
        to.write_all(format!("{:0width$}\n", now(), width = LINE_BYTES - 1).as_bytes())?;
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    Ok(true)
}

/// The clock that all processes share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn argv(what: &str, count: usize) -> Result<[String; 3]> {
    let this = std::env::current_exe()?.to_str().ok_or("this program's path is no text")?.to_owned();
    Ok([this, what.to_owned(), count.to_string()])
}

/// At full rate, and how late each of those is that come one by one.
pub(crate) async fn lines(plan: &Plan, table: &mut Table) -> Result<()> {
    let certs = Certs::new();
    let (unix, mtls) = (bench_agent().start(), bench_agent().mtls(&certs).start());
    let machines = [unix.executor().await, mtls.executor().await];
    let names = ["pipe", "unix socket", "mTLS"];

    let (count, mut rates) = (plan.some(1_000_000), [const { Vec::new() }; 3]);
    for _ in 0..3 {
        for ((i, name), rates) in names.iter().enumerate().zip(&mut rates) {
            let (begin, mut bytes) = (Instant::now(), 0);
            read(&argv(FLOOD, count)?, machine(&machines, i), |data| bytes += data.len()).await?;
            if bytes != count * LINE_BYTES {
                return Err(format!("{name}: {bytes} bytes").into());
            }
            rates.push(count as f64 / begin.elapsed().as_secs_f64());
        }
    }
    let [base, unix, mtls] = rates.map(|mut rates| median(&mut rates));
    table.add(Row::new("lines at full rate: pipe", Unit::PerSecond, base));
    table.add(Row::new("lines at full rate: unix socket", Unit::PerSecond, unix).beside("pipe", base));
    table.add(Row::new("lines at full rate: mTLS", Unit::PerSecond, mtls).beside("pipe", base));

    let (count, mut delays) = (plan.some(2000), [const { Vec::new() }; 3]);
    for _ in 0..2 {
        for (i, delays) in delays.iter_mut().enumerate() {
            let mut text = Vec::new();
            read(&argv(TICK, count)?, machine(&machines, i), |data| {
                let now = now();
                text.extend_from_slice(data);
                for line in text.chunks_exact(LINE_BYTES) {
                    let written = std::str::from_utf8(line).ok().and_then(|line| line.trim().parse().ok());
                    delays.extend(written.map(|written| Duration::from_nanos(now.saturating_sub(written))));
                }
                text.drain(..text.len() / LINE_BYTES * LINE_BYTES);
            })
            .await?;
        }
    }
    let mut base = None;
    for (name, delays) in names.iter().zip(&mut delays) {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let mut row =
            Row::new(format!("delay of a line each ms: {name}"), Unit::Microseconds, us(percentile(delays, 50)));
        let (value, p99) = (row.value, us(percentile(delays, 99)));
        row.p99 = Some(p99);
        table.add(match base {
            // what is added to the pipe's
            Some((base, base_p99)) => row.beside("pipe", base).aim(Aim::P99AtMost(base_p99 + ADDED_P99_US)),
            None => row,
        });
        base.get_or_insert((value, p99));
    }
    Ok(())
}

/// The first is none: this process's own pipe.
fn machine(machines: &[RemoteExecutor; 2], number: usize) -> Option<&RemoteExecutor> {
    number.checked_sub(1).and_then(|number| machines.get(number))
}

async fn read(argv: &[String; 3], machine: Option<&RemoteExecutor>, mut take: impl FnMut(&[u8])) -> Result<()> {
    if let Some(machine) = machine {
        let mut execution = machine.execute(Command::argv(argv).build()?).await?;
        while let Some(event) = execution.next().await {
            if let Event::Output(output) = event? {
                take(&output.data);
            }
        }
        return Ok(());
    }
    let [program, arguments @ ..] = argv;
    let mut command = tokio::process::Command::new(program);
    let mut child = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let (mut pipe, mut buffer) = (child.stdout.take().ok_or("no pipe")?, vec![0; 64 * 1024]);
    loop {
        match pipe.read(&mut buffer).await? {
            0 => break,
            read => take(buffer.get(..read).unwrap_or_default()),
        }
    }
    child.wait().await?;
    Ok(())
}
