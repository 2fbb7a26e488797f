//! What one caller gets while another wants all of the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use telexec_client::RemoteExecutor;
use telexec_executor::{Command, Event, Executor, Input};
use telexec_tests::{Agent, Certs, Leaf, Pair, bench_agent, percentile};
use tokio::runtime::Builder;

use crate::latency::there;
use crate::table::{Row, Table, Unit};
use crate::{Plan, Result};

const ARGV: [&str; 1] = ["/bin/true"];
/// The size of one write of input.
const INPUT_BYTES: usize = 1024 * 1024;

/// `/bin/true` of one caller alone and beside 64 of another, and the part of all commands and bytes that one gets who wants fewer.
pub(crate) async fn shares(plan: &Plan, table: &mut Table) -> Result<()> {
    for (name, builder) in [("mTLS", bench_agent()), ("mTLS, keeper", bench_agent().kept())] {
        let certs = Certs::new();
        let agent = Arc::new(builder.mtls(&certs).start());
        let [alice, bob] = ["alice", "bob"].map(|name| certs.ca.issue(Leaf::client(name)));
        let machine = agent.connect_as(&bob).await.executor();
        let [alone, alone_99] = delays(plan, &machine).await?;
        let mut row = Row::new(format!("true alone: {name}"), Unit::Microseconds, alone);
        row.p99 = Some(alone_99);
        table.add(row);
        for (what, kind, in_flight) in [("64", Kind::Commands, 64), ("50 streams", Kind::Output, 50)] {
            let flood = Load::new(&agent, &alice, kind, in_flight);
            let [beside, beside_99] = delays(plan, &machine).await?;
            flood.end();
            let row = Row::new(format!("beside {what} of another: {name}"), Unit::Microseconds, beside);
            let mut row = row.beside("true alone", alone);
            row.p99 = Some(beside_99);
            table.add(row);
        }
        for (what, kind, [of_alice, of_bob]) in [
            ("commands, 8 beside 64", Kind::Commands, [64, 8]),
            ("output, 1 stream beside 50", Kind::Output, [50, 1]),
            ("input, 4 streams beside 50", Kind::Input, [50, 4]),
        ] {
            let loads = [(&alice, of_alice), (&bob, of_bob)].map(|(pair, count)| Load::new(&agent, pair, kind, count));
            tokio::time::sleep(Duration::from_secs(if plan.short { 1 } else { 8 })).await;
            let [all, own] = loads.each_ref().map(Load::done);
            loads.into_iter().for_each(Load::end);
            let percent = 100.0 * own as f64 / (all + own) as f64;
            table.add(Row::new(format!("part of all {what}: {name}"), Unit::Percent, percent));
        }
    }
    Ok(())
}

/// How long a command takes, in microseconds: the median, and what 99 % stay below.
async fn delays(plan: &Plan, machine: &RemoteExecutor) -> Result<[f64; 2]> {
    let mut delays = Vec::new();
    for _ in 0..plan.some(400) {
        let begin = Instant::now();
        there(machine, &ARGV).await?;
        delays.push(begin.elapsed());
    }
    Ok([50, 99].map(|percent| percentile(&mut delays, percent).as_secs_f64() * 1e6))
}

#[derive(Clone, Copy)]
enum Kind {
    Commands,
    Output,
    Input,
}

/// A caller in a thread of its own, with so much in flight.
struct Load {
    ends: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Load {
    fn new(agent: &Arc<Agent>, pair: &Pair, kind: Kind, in_flight: usize) -> Self {
        let (ends, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (agent, pair, ended, count) = (Arc::clone(agent), pair.clone(), Arc::clone(&ends), Arc::clone(&done));
        let thread = thread::spawn(move || {
            let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                let machine = agent.connect_as(&pair).await.executor();
                join_all((0..in_flight).map(|_| load(&machine, kind, &ended, &count))).await;
            });
        });
        Self { ends, done, thread }
    }

    /// How much it has done until now.
    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

async fn load(machine: &RemoteExecutor, kind: Kind, ends: &AtomicBool, done: &AtomicU64) {
    while !ends.load(Ordering::Relaxed) {
        match kind {
            Kind::Commands => {
                let ran = there(machine, &ARGV).await;
                done.fetch_add(u64::from(ran.is_ok()), Ordering::Relaxed);
            }
            Kind::Output => {
                let Ok(command) = Command::argv(["cat", "/dev/zero"]).build() else { return };
                let Ok(mut execution) = machine.execute(command).await else { return };
                while !ends.load(Ordering::Relaxed) {
                    let Some(Ok(event)) = execution.next().await else { return };
                    if let Event::Output(output) = event {
                        done.fetch_add(output.data.len() as u64, Ordering::Relaxed);
                    }
                }
            }
            Kind::Input => {
                let discard = Command::shell("cat > /dev/null").accepts_input(true).build();
                let Ok(command) = discard else { return };
                let Ok(execution) = machine.execute(command).await else { return };
                let data = Bytes::from_static(&[0; INPUT_BYTES]);
                while !ends.load(Ordering::Relaxed) {
                    let written = machine.write_input(execution.id(), Input { data: data.clone(), ..Input::default() });
                    if written.await.is_err() {
                        return;
                    }
                    done.fetch_add(INPUT_BYTES as u64, Ordering::Relaxed);
                }
            }
        }
    }
}
