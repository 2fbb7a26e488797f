//! What the engine takes to end and to start processes, and what it holds meanwhile:
//! `cargo build --release && cargo bench -p telexec-tests --bench engine`.
//!
//! Every time stands beside its baseline, measured in the same run and taking turns with it. Arguments: which of
//! `cancel`, `many`, `flood` and `spawn` (default: all). From the environment:
//!
//! - `TELEXEC_BENCH_ROUNDS` (300): of `cancel`; `spawn` does four times as many
//! - `TELEXEC_BENCH_EXECUTIONS` (2000): at once, in `many`
//! - `TELEXEC_BENCH_FLOOD_SECONDS` (5)
//! - `TELEXEC_BENCH_CONTAINMENT` (the agent's default): for the agents; the engine in this process has its own default

use std::os::unix::process::CommandExt;
use std::process::{Command as Program, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, set_child_subreaper, waitpgid};
use telexec_tests::{MARK, Memory, Watch, bench_agent, marker, percentile, processes_with, until};
use telexec_tool::local::{LocalConfig, LocalExecutor, Reaper};
use telexec_tool::{Command, CommandBuilder, Event, Execution, Executor, ListQuery};
use tokio::runtime::{Builder, Runtime};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Rounds in a row in one place, so that each is as warm as it would be in use.
const BLOCK: usize = 25;
/// The first rounds of a block are not counted.
const WARM_UP: usize = 3;
/// Starts at once, and calls on one connection.
const IN_FLIGHT: usize = 64;
const CALLS_PER_CONNECTION: usize = 500;
/// What the client lets an agent send on one stream before it is read.
const STREAM_WINDOW_BYTES: u64 = 4 * 1024 * 1024;
const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// Processes to be ended.
struct Tree {
    name: &'static str,
    argv: &'static [&'static str],
    /// The same number of processes, all in one group, which one kill(2) reaches.
    group: &'static [&'static str],
    processes: usize,
    sleeps: usize,
}

const TREES: [Tree; 2] = [
    Tree { name: "1 process", argv: &["sleep", "1000"], group: &["sleep", "1000"], processes: 1, sleeps: 1 },
    Tree {
        name: "50 processes",
        argv: &["bash", "-c", "for i in {1..24}; do setsid sleep 1000 & sleep 1000 & done; sleep 1000 & wait"],
        group: &["bash", "-c", "for i in {1..49}; do sleep 1000 & done; wait"],
        processes: 50,
        sleeps: 49,
    },
];

fn main() -> Result<()> {
    // the orphans of a baseline are this process's own to reap
    set_child_subreaper(Pid::from_raw(1))?;
    let named: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let asked = |name: &str| named.is_empty() || named.iter().any(|other| other == name);
    let rounds = option("ROUNDS", 300)?;
    if asked("cancel") {
        cancel(rounds)?;
    }
    if asked("many") {
        many(option("EXECUTIONS", 2000)?)?;
    }
    if asked("flood") {
        flood(Duration::from_secs(option("FLOOD_SECONDS", 5)?))?;
    }
    if asked("spawn") {
        spawn(rounds * 4)?;
    }
    Ok(())
}

fn option<T: FromStr<Err: std::error::Error + 'static>>(name: &str, default: T) -> Result<T> {
    Ok(std::env::var(format!("TELEXEC_BENCH_{name}")).map_or(Ok(default), |text| text.parse())?)
}

/// What is measured has a thread of its own, as it has in an agent: this one may block.
fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

fn title(text: &str) {
    println!("\n{text}\n  {:<54} {:>9} {:>9} {:>7} {:>7}", "", "p50", "p99", "ratio", "p99");
}

/// Prints the rows; the first is the baseline.
fn print(rows: &mut [(String, Vec<Duration>)]) {
    let mut base = None;
    for (name, times) in rows {
        let (p50, p99) = (percentile(times, 50), percentile(times, 99));
        let (base50, base99) = *base.get_or_insert((p50, p99));
        let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
        let (ratio50, ratio99) = (ratio(p50, base50), ratio(p99, base99));
        println!("  {name:<54} {:>6} us {:>6} us {ratio50:>6.2}x {ratio99:>6.2}x", p50.as_micros(), p99.as_micros());
    }
}

// --- cancel: from dropping the execution until none of its processes is left

fn cancel(rounds: usize) -> Result<()> {
    let (runtime, reaper) = (runtime()?, Reaper::new()?);
    let agent = bench_agent().start();
    let remote: Box<dyn Executor> = Box::new(runtime.block_on(agent.executor()));
    let engine: Box<dyn Executor> = Box::new(runtime.block_on(async { LocalExecutor::new(LocalConfig::default()) })?);
    title(&format!("from cancel until no process is left, no grace, {rounds} rounds; baseline: kill(-group)"));
    for tree in &TREES {
        let mut rows = vec![
            (format!("{}: kill(-group)", tree.name), Vec::new()),
            (format!("{}: engine, in this process", tree.name), Vec::new()),
            (format!("{}: Execute, unix socket", tree.name), Vec::new()),
        ];
        for _ in 0..rounds.div_ceil(BLOCK) {
            for ((_, times), executor) in rows.iter_mut().zip([None, Some(&*engine), Some(&*remote)]) {
                for round in 0..BLOCK + WARM_UP {
                    let time = match executor {
                        None => kill_group(&runtime, tree)?,
                        Some(executor) => cancel_tree(&runtime, executor, tree)?,
                    };
                    // what the engine in this process leaves to its host: it would be looked at in each round
                    while !reaper.reap()? {}
                    times.extend((round >= WARM_UP).then_some(time));
                }
            }
        }
        print(&mut rows);
    }
    Ok(())
}

fn cancel_tree(runtime: &Runtime, executor: &dyn Executor, tree: &Tree) -> Result<Duration> {
    let mark = marker();
    let command = Command::argv(tree.argv.iter().copied()).env(MARK, &mark).kill_grace(Duration::ZERO).build()?;
    let execution = runtime.block_on(executor.execute(command))?;
    let watch = grown(runtime, tree, &mark);
    let begin = Instant::now();
    drop(execution);
    watch.wait();
    let time = begin.elapsed();
    match processes_with(&mark)[..] {
        [] => Ok(time),
        ref left => Err(format!("left after the end: {left:?}").into()),
    }
}

fn kill_group(runtime: &Runtime, tree: &Tree) -> Result<Duration> {
    let mark = marker();
    let mut program = here(tree.group)?;
    let child = program.env(MARK, &mark).process_group(0).stdin(Stdio::null()).spawn()?;
    let group = Pid::from_raw(i32::try_from(child.id())?).ok_or("no process id")?;
    let watch = grown(runtime, tree, &mark);
    let begin = Instant::now();
    kill_process_group(group, Signal::KILL)?;
    watch.wait();
    let time = begin.elapsed();
    while waitpgid(group, WaitOptions::empty()).is_ok() {}
    Ok(time)
}

/// Waits until all processes of the tree run what they are to run.
fn grown(runtime: &Runtime, tree: &Tree, mark: &str) -> Watch {
    let mut processes = Vec::new();
    runtime.block_on(until("all processes run", async || {
        processes = processes_with(mark);
        let sleeps = processes.iter().filter(|process| process.name == "sleep").count();
        (processes.len(), sleeps) == (tree.processes, tree.sleeps)
    }));
    Watch::of(processes.iter().map(|process| process.pid))
}

/// A program of this process, with pipes as the engine has them.
fn here(argv: &[&str]) -> Result<Program> {
    let mut program = Program::new(argv.first().ok_or("no program")?);
    program.args(argv.get(1..).unwrap_or_default());
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(program)
}

// --- many: executions at once

fn many(count: usize) -> Result<()> {
    let runtime = runtime()?;
    let names = ["std::process", "Execute, unix socket"];
    let mut starts = names.map(|name| (format!("start all: {name}"), Vec::new()));
    let mut ends = names.map(|name| (format!("cancel all: {name}"), Vec::new()));
    let mut memory = Vec::new();
    for _ in 0..3 {
        for (i, (started, ended)) in [start_here(count)?, start_there(&runtime, count, &mut memory)?].iter().enumerate()
        {
            starts.get_mut(i).ok_or("no row")?.1.push(*started);
            ends.get_mut(i).ok_or("no row")?.1.push(*ended);
        }
    }
    title(&format!("{count} times `sleep` at once, {IN_FLIGHT} starts in flight, 3 rounds (p99: the slowest)"));
    print(&mut starts);
    print(&mut ends);
    println!("\nmemory of the agent, in KiB: before, with {count} executions, after; for each execution");
    for [before, during, after] in memory {
        print_memory("resident", [before, during, after].map(|memory| memory.resident), count);
        print_memory("of these anonymous", [before, during, after].map(|memory| memory.anonymous), count);
    }
    Ok(())
}

fn print_memory(name: &str, bytes: [u64; 3], count: usize) {
    let [before, during, after] = bytes.map(|bytes| bytes / 1024);
    let each = during.saturating_sub(before) as f64 / count as f64;
    println!("  {name:<28} {before:>9} {during:>9} {after:>9} {each:>9.2}");
}

fn start_here(count: usize) -> Result<(Duration, Duration)> {
    let begin = Instant::now();
    let children = (0..count).map(|_| Ok(here(&["sleep", "1000"])?.spawn()?)).collect::<Result<Vec<_>>>()?;
    let started = begin.elapsed();
    let mut children = children;
    let pids = children.iter().map(|child| i32::try_from(child.id())).collect::<std::result::Result<Vec<_>, _>>()?;
    let watch = Watch::of(pids);
    let begin = Instant::now();
    for child in &mut children {
        child.kill()?;
    }
    watch.wait();
    let ended = begin.elapsed();
    for mut child in children {
        child.wait()?;
    }
    Ok((started, ended))
}

fn start_there(runtime: &Runtime, count: usize, memory: &mut Vec<[Memory; 3]>) -> Result<(Duration, Duration)> {
    let agent = bench_agent().start();
    let mut executors = Vec::new();
    for _ in 0..count.div_ceil(CALLS_PER_CONNECTION) {
        executors.push(runtime.block_on(agent.executor()));
    }
    let start = |i: usize| {
        let executor = executors.get(i / CALLS_PER_CONNECTION);
        async move {
            let command = Command::argv(["sleep", "1000"]).kill_grace(Duration::ZERO).build()?;
            let execution: Result<Execution> = Ok(executor.ok_or("no connection")?.execute(command).await?);
            execution
        }
    };
    let before = Memory::of(agent.pid());
    let begin = Instant::now();
    let starts = stream::iter(0..count).map(start).buffer_unordered(IN_FLIGHT);
    let executions: Vec<Execution> = runtime.block_on(starts.try_collect())?;
    let started = begin.elapsed();
    let during = Memory::of(agent.pid());
    let pids = executions.iter().map(|execution| i32::try_from(execution.started().pid));
    let watch = Watch::of(pids.collect::<std::result::Result<Vec<_>, _>>()?);
    if watch.count() != count {
        return Err(format!("{} of {count} run", watch.count()).into());
    }
    let begin = Instant::now();
    drop(executions);
    watch.wait();
    let ended = begin.elapsed();
    let executor = executors.first().ok_or("no connection")?;
    runtime.block_on(until("all have exited", async || {
        executor.list(ListQuery::default()).await.is_ok_and(|page| page.executions.is_empty())
    }));
    memory.push([before, during, Memory::of(agent.pid())]);
    Ok((started, ended))
}

// --- flood: readers that stop

fn flood(time: Duration) -> Result<()> {
    println!("\nmemory of the agent in MiB, {time:?} after its readers stopped reading; the window of each is 4 MiB");
    println!("  {:<28} {:>9} {:>9} {:>9} {:>12}", "", "before", "after", "the most", "grown/window");
    for floods in [1, 8] {
        let runtime = runtime()?;
        let agent = bench_agent().start();
        let executor = runtime.block_on(agent.executor());
        let before = Memory::of(agent.pid()).resident;
        let mut unread = Vec::new();
        for _ in 0..floods {
            let command = Command::argv(["yes"]).kill_grace(Duration::ZERO).build()?;
            let mut execution = runtime.block_on(executor.execute(command))?;
            while !matches!(runtime.block_on(execution.next()).ok_or("no output")??, Event::Output(_)) {}
            unread.push(execution);
        }
        let (begin, mut most, mut after) = (Instant::now(), 0, 0);
        while begin.elapsed() < time {
            after = Memory::of(agent.pid()).resident;
            most = most.max(after);
            std::thread::sleep(Duration::from_millis(20));
        }
        let [before, after, most] = [before, after, most].map(|bytes| bytes as f64 / MEBIBYTE);
        let windows = f64::from(floods) * STREAM_WINDOW_BYTES as f64 / MEBIBYTE;
        let name = format!("{floods} x yes");
        println!("  {name:<28} {before:>9.1} {after:>9.1} {most:>9.1} {:>11.2}x", (most - before) / windows);
    }
    Ok(())
}

// --- spawn: from the request until it runs, and until it has ended

fn spawn(rounds: usize) -> Result<()> {
    // one thread, as in an agent of one worker thread, but for the engine's own
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let engine = runtime.block_on(async { LocalExecutor::new(LocalConfig::default()) })?;
    title(&format!("spawn in this process, {rounds} rounds; baseline: std::process with pipes (posix_spawn)"));
    for argv in [&["/bin/true"][..], &["/bin/bash", "-c", "true"]] {
        let names = ["std::process", "std::process, env_clear", "engine"];
        let text = argv.join(" ");
        let mut started = names.map(|name| (format!("{text} has started: {name}"), Vec::new()));
        let mut ended = names.map(|name| (format!("{text} has ended: {name}"), Vec::new()));
        for _ in 0..rounds.div_ceil(BLOCK) {
            for (i, (started, ended)) in started.iter_mut().zip(&mut ended).enumerate() {
                for round in 0..BLOCK + WARM_UP {
                    let (start, end) = match i {
                        0 => spawn_here(here(argv)?)?,
                        1 => spawn_here(cleared(argv)?)?,
                        _ => runtime.block_on(spawn_there(&engine, Command::argv(argv.iter().copied())))?,
                    };
                    started.1.extend((round >= WARM_UP).then_some(start));
                    ended.1.extend((round >= WARM_UP).then_some(end));
                }
            }
        }
        print(&mut started);
        print(&mut ended);
    }
    Ok(())
}

fn cleared(argv: &[&str]) -> Result<Program> {
    let mut program = here(argv)?;
    program.env_clear();
    Ok(program)
}

fn spawn_here(mut program: Program) -> Result<(Duration, Duration)> {
    let begin = Instant::now();
    let mut child = program.spawn()?;
    let started = begin.elapsed();
    child.wait()?;
    Ok((started, begin.elapsed()))
}

async fn spawn_there(engine: &LocalExecutor, command: CommandBuilder) -> Result<(Duration, Duration)> {
    let begin = Instant::now();
    let mut execution = engine.execute(command.build()?).await?;
    let started = begin.elapsed();
    while let Some(event) = execution.next().await {
        event?;
    }
    Ok((started, begin.elapsed()))
}
