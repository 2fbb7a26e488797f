//! Many executions and connections at once, and how soon they are gone.

use std::os::unix::process::CommandExt;
use std::process::{Command as Program, Stdio};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::{TryStreamExt, stream};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, set_child_subreaper, waitpgid};
use telexec_executor::{Command, Execution, Executor, ListQuery};
use telexec_tests::{Agent, Certs, MARK, Memory, Watch, bench_agent, marker, percentile, processes_with, until};

use crate::machine::{self, cpu_of, peak_mebibytes};
use crate::table::{Aim, Row, Table, Unit};
use crate::{Plan, Result};

const CALLS_PER_CONNECTION: usize = 500;
/// Starts at once.
const IN_FLIGHT: usize = 64;
/// Descriptors that an agent needs for each, and some of its own.
const FILES_OF_EACH: usize = 5;
/// How long it is watched while all sleep.
const IDLE: Duration = Duration::from_secs(5);

/// Fifty processes, half of them in sessions of their own, from the cancel until none is left.
pub(crate) async fn cancel(plan: &Plan, table: &mut Table) -> Result<()> {
    const TREE: [&str; 3] =
        ["bash", "-c", "for i in {1..24}; do setsid sleep 1000 & sleep 1000 & done; sleep 1000 & wait"];
    /// As many, all in one group, which one kill(2) reaches.
    const GROUP: [&str; 3] = ["bash", "-c", "for i in {1..49}; do sleep 1000 & done; wait"];
    // the orphans of the baseline are this process's own to reap
    set_child_subreaper(Pid::from_raw(1))?;
    let agent = bench_agent().start();
    let machine = agent.executor().await;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..plan.some(200) {
        let mark = marker();
        let [program, arguments @ ..] = GROUP;
        let mut group = Program::new(program);
        group.args(arguments).env(MARK, &mark).process_group(0).stdin(Stdio::null());
        let group = Pid::from_raw(i32::try_from(group.spawn()?.id())?).ok_or("no process id")?;
        let watch = grown(&mark).await;
        let begin = Instant::now();
        kill_process_group(group, Signal::KILL)?;
        watch.wait();
        times[0].push(begin.elapsed());
        while waitpgid(group, WaitOptions::empty()).is_ok() {}

        let mark = marker();
        let command = Command::argv(TREE).env(MARK, &mark).kill_grace(Duration::ZERO).build()?;
        let execution = machine.execute(command).await?;
        let watch = grown(&mark).await;
        let begin = Instant::now();
        drop(execution);
        // the client is another task of this thread
        let ended = tokio::task::spawn_blocking(move || {
            watch.wait();
            begin.elapsed()
        });
        times[1].push(ended.await?);
    }
    let [mut base, mut ours] = times;
    let [base, p50, p99] = [percentile(&mut base, 50), percentile(&mut ours, 50), percentile(&mut ours, 99)].map(ms);
    let row = Row::new("cancel of 50 processes until none is left", Unit::Milliseconds, p50);
    let mut row = row.beside("kill(2) of a group", base).aim(Aim::P99AtMost(20.0));
    row.p99 = Some(p99);
    row.peak = Some(peak_mebibytes(agent.pid()));
    table.add(row);
    Ok(())
}

/// Once all of its processes run what they are to run.
async fn grown(mark: &str) -> Watch {
    let mut processes = Vec::new();
    until("all processes run", async || {
        processes = processes_with(mark);
        (processes.len(), processes.iter().filter(|process| process.name == "sleep").count()) == (50, 49)
    })
    .await;
    Watch::of(processes.iter().map(|process| process.pid))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Executions that run.
pub(crate) async fn held(plan: &Plan, table: &mut Table) -> Result<()> {
    let most = machine::file_limit() / FILES_OF_EACH;
    for count in [2000, 10_000] {
        if most < count {
            println!("  no more than {most} of {count}: the limit of descriptors is low here");
        }
        sleeping(plan, table, plan.some(count.min(most))).await?;
    }
    Ok(())
}

async fn sleeping(plan: &Plan, table: &mut Table, count: usize) -> Result<()> {
    let begin = Instant::now();
    let mut locals = Vec::new();
    for _ in 0..count {
        let mut sleep = Program::new("sleep");
        sleep.arg("1000").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        locals.push(sleep.spawn()?);
    }
    let local = begin.elapsed();
    for child in &mut locals {
        child.kill()?;
    }
    for child in &mut locals {
        child.wait()?;
    }
    drop(locals);

    let limit = format!("max_executions = {0}\nmax_executions_per_identity = {0}", count + 1);
    let agent = bench_agent().config(limit).start();
    let mut machines = Vec::new();
    for _ in 0..count.div_ceil(CALLS_PER_CONNECTION) {
        machines.push(agent.executor().await);
    }
    let before = Memory::of(agent.pid()).resident;
    let begin = Instant::now();
    let start = |i: usize| {
        let machine = machines.get(i / CALLS_PER_CONNECTION);
        async move {
            let command = Command::argv(["sleep", "1000"]).kill_grace(Duration::ZERO).build()?;
            let execution: Result<Execution> = Ok(machine.ok_or("no connection")?.execute(command).await?);
            execution
        }
    };
    let executions: Vec<_> = stream::iter(0..count).map(start).buffer_unordered(IN_FLIGHT).try_collect().await?;
    let started = begin.elapsed();
    let each = Memory::of(agent.pid()).resident.saturating_sub(before) as f64 / 1024.0 / count as f64;
    let idle = if plan.short { IDLE / 10 } else { IDLE };
    let cpu = cpu_of(agent.pid());
    tokio::time::sleep(idle).await;
    let busy = cpu_of(agent.pid()).saturating_sub(cpu).as_secs_f64() / idle.as_secs_f64() * 100.0;
    let begin = Instant::now();
    drop(executions);
    let machine = machines.first().ok_or("no connection")?;
    until("all have ended", async || {
        machine.list(ListQuery::default()).await.is_ok_and(|page| page.executions.is_empty())
    })
    .await;
    let ended = begin.elapsed();

    let row = Row::new(format!("{count} sleeping: started"), Unit::Milliseconds, ms(started));
    table.add(row.beside("std::process, one by one", ms(local)));
    let row = Row::new(format!("{count} sleeping: memory of each"), Unit::Kibibytes, each);
    table.add(Row { peak: Some(peak_mebibytes(agent.pid())), ..row.aim(Aim::AtMost(15.0)) });
    table.add(Row::new(format!("{count} sleeping: processor"), Unit::Percent, busy).aim(Aim::AtMost(0.05)));
    let row = Row::new(format!("{count} sleeping: cancelled"), Unit::Milliseconds, ms(ended));
    table.add(row.aim(Aim::AtMost(3000.0)));
    Ok(())
}

/// Connections that are idle.
pub(crate) async fn connected(plan: &Plan, table: &mut Table) -> Result<()> {
    let count = plan.some(1000);
    let certs = Certs::new();
    for (name, agent) in [("unix socket", bench_agent()), ("mTLS", bench_agent().mtls(&certs))] {
        let agent: Agent = agent.config(format!("max_connections = {}", 2 * count + 2)).start();
        // the first of them is no measure
        let mut connections = vec![agent.executor().await];
        let before = Memory::of(agent.pid()).resident;
        for _ in 0..count {
            connections.push(agent.executor().await);
        }
        let each = Memory::of(agent.pid()).resident.saturating_sub(before) as f64 / 1024.0 / count as f64;
        let row = Row::new(format!("{count} idle connections, {name}: each"), Unit::Kibibytes, each);
        table.add(Row { peak: Some(peak_mebibytes(agent.pid())), ..row });
    }
    Ok(())
}
