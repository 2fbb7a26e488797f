//! One agent under a full load of everything, for a long time, and what it holds afterwards:
//! `cargo build --release && cargo bench -p telexec-tests --bench soak`.
//!
//! It fails if anything went wrong, or if the agent holds more, or less, than before: descriptors, threads, children,
//! control groups, processes. Nothing else of telexec may run on the machine meanwhile. From the environment:
//!
//! - `TELEXEC_SOAK_MINUTES` (10): may be a fraction
//! - `TELEXEC_SOAK_CLIENTS` (8): each does one thing after the other
//! - `TELEXEC_SOAK_SEED`: of an earlier run, for the same choices
//! - `TELEXEC_BENCH_CONTAINMENT`: the agent's
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail so")]

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures_util::{FutureExt, StreamExt};
use telexec_client::RemoteExecutor;
use telexec_executor::{
    Command, CommandBuilder, Descendants, Event, ExecutionId, ExecutionState, Executor, ExecutorError, ExitCause,
    OutputStream, Signal,
};
use telexec_proto::v1::{ExecuteRequest, execution_event};
use telexec_tests::{
    Agent, Holdings, MARK, Memory, Wire, bench_agent, marker, processes_with, run, settled, until, until_output, within,
};
use tokio::runtime::Builder;

/// All that a client does, in about equal shares.
const DEEDS: [&str; 13] = [
    "short command",
    "last line",
    "all of an output",
    "abandoned flood",
    "input",
    "cancel",
    "cancelled start",
    "timeout",
    "survivors that end",
    "survivors killed",
    "descendants ended",
    "failed start",
    "signal",
];
/// The same for calls that share a connection which breaks.
const BROKEN: &str = "broken connection";
/// After this many deeds a client connects anew.
const DEEDS_PER_CONNECTION: u64 = 50;
/// For processes that are seen just after the end was reported.
const LAST_LOOK: Duration = Duration::from_secs(1);

const TREES: [&str; 6] = [
    "echo ready; sleep 300",
    "sleep 300 & sleep 300 & echo ready; wait",
    "setsid sleep 300 & echo ready; sleep 300",
    "(setsid sh -c 'sleep 300 &' &); echo ready; sleep 300",
    "nohup sleep 300 >/dev/null 2>&1 & setsid setsid sleep 300 & echo ready; sleep 300",
    "trap '' TERM; echo ready; while :; do sleep 300; done",
];

/// Reproducible chance: splitmix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn milliseconds(&mut self, limit: u64) -> Duration {
        Duration::from_micros(self.below(limit * 1000))
    }

    fn tree(&mut self) -> &'static str {
        TREES[self.below(TREES.len() as u64) as usize]
    }
}

/// What all clients share.
struct Soak {
    agent: Agent,
    /// Every mark begins with it.
    mark: String,
    end: Instant,
    executions: AtomicU64,
    /// Executions whose processes were still seen just after their end was reported.
    late: AtomicU64,
    /// How often each deed was done, and how often it went wrong.
    deeds: Mutex<BTreeMap<&'static str, (u64, u64)>>,
}

/// One deed of a client.
struct Deed<'a> {
    soak: &'a Soak,
    machine: &'a RemoteExecutor,
    chance: &'a mut Chance,
    mark: String,
}

fn main() -> ExitCode {
    let minutes: f64 = option("MINUTES", 10.0);
    let clients: u64 = option("CLIENTS", 8);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed: u64 = option("SEED", now.as_secs());
    println!("soak for {minutes} minutes, {clients} clients, seed {seed}");

    let mut soak = Soak {
        agent: bench_agent().env("TELEXECD_LOG_LEVEL", "warn").start(),
        mark: marker(),
        end: Instant::now(),
        executions: AtomicU64::new(0),
        late: AtomicU64::new(0),
        deeds: Mutex::default(),
    };
    // the first of everything is part of no balance: it may make what is kept
    load(&soak, clients, seed);
    let before = settle(&soak);
    let warm_up = soak.executions.swap(0, Ordering::Relaxed);
    println!("warmed up with {warm_up} executions");

    soak.end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let begin = Instant::now();
    load(&soak, clients, seed.wrapping_add(clients));
    let time = begin.elapsed();
    let after = settle(&soak);
    report(soak, time, before, after)
}

fn option<T: FromStr>(name: &str, default: T) -> T {
    let name = format!("TELEXEC_SOAK_{name}");
    std::env::var(&name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// All clients until the end of the time, each in a thread of its own; every deed at least once.
fn load(soak: &Soak, clients: u64, seed: u64) {
    std::thread::scope(|scope| {
        for client in 0..clients {
            scope.spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(client_of(soak, client, Chance(seed.wrapping_add(client))));
            });
        }
        scope.spawn(|| {
            while Instant::now() + Duration::from_secs(60) < soak.end {
                std::thread::sleep(Duration::from_secs(60));
                let errors: u64 = soak.deeds.lock().unwrap().values().map(|(_, errors)| errors).sum();
                let resident = Memory::of(soak.agent.pid()).resident / 1024 / 1024;
                println!("{} executions, {errors} errors, {resident} MiB", soak.executions.load(Ordering::Relaxed));
            }
        });
    });
}

async fn client_of(soak: &Soak, client: u64, mut chance: Chance) {
    let mut machine = soak.agent.executor().await;
    let mut done = 0;
    while done <= DEEDS.len() as u64 || Instant::now() < soak.end {
        if done % DEEDS_PER_CONNECTION == DEEDS_PER_CONNECTION - 1 {
            machine = soak.agent.executor().await;
        }
        let name = match done {
            0..13 => DEEDS[done as usize],
            13 => BROKEN,
            _ => *DEEDS.iter().chain([&BROKEN]).nth(chance.below(DEEDS.len() as u64 + 1) as usize).unwrap(),
        };
        // of one length, so that none begins with another
        let mark = format!("{}-{client:04}-{done:012}", soak.mark);
        let deed = Deed { soak, machine: &machine, chance: &mut chance, mark };
        let went_wrong = AssertUnwindSafe(deed.be_done(name)).catch_unwind().await.is_err();
        let mut deeds = soak.deeds.lock().unwrap();
        let (times, errors) = deeds.entry(name).or_default();
        *times += 1;
        if went_wrong {
            *errors += 1;
            eprintln!("went wrong: {name}");
        }
        done += 1;
    }
}

/// What is held while nothing runs.
#[derive(Clone, Copy, PartialEq)]
struct Balance {
    agent: Holdings,
    /// With any of our marks.
    processes: usize,
}

impl Balance {
    fn of(soak: &Soak) -> Self {
        Self { agent: Holdings::of(soak.agent.pid()), processes: processes_with(&soak.mark).len() }
    }

    fn columns(self) -> [(&'static str, usize); 5] {
        let Holdings { descriptors, threads, children, cgroups } = self.agent;
        [
            ("descriptors", descriptors),
            ("threads", threads),
            ("children", children),
            ("control groups", cgroups),
            ("processes", self.processes),
        ]
    }
}

/// Waits until nothing changes any more, if that comes.
fn settle(soak: &Soak) -> (Balance, Memory) {
    (settled(|| Balance::of(soak)), Memory::of(soak.agent.pid()))
}

/// Prints everything, and ends the agent.
fn report(mut soak: Soak, time: Duration, before: (Balance, Memory), after: (Balance, Memory)) -> ExitCode {
    println!("\n{:<22} {:>9} {:>9}", "", "before", "after");
    for ((name, before), (_, after)) in before.0.columns().iter().zip(after.0.columns()) {
        println!("{name:<22} {before:>9} {after:>9} {}", if *before == after { "" } else { "DIFFERS" });
    }
    let kibibytes = |memory: Memory| (memory.resident / 1024, memory.anonymous / 1024);
    let (before_memory, after_memory) = (kibibytes(before.1), kibibytes(after.1));
    println!("{:<22} {:>9} {:>9}", "resident, KiB", before_memory.0, after_memory.0);
    println!("{:<22} {:>9} {:>9}", "anonymous, KiB", before_memory.1, after_memory.1);

    println!("\n{:<22} {:>9} {:>9}", "", "done", "errors");
    let deeds = soak.deeds.lock().unwrap();
    for (name, (times, errors)) in &*deeds {
        println!("{name:<22} {times:>9} {errors:>9}");
    }
    let errors: u64 = deeds.values().map(|(_, errors)| errors).sum();
    drop(deeds);
    let executions = soak.executions.load(Ordering::Relaxed);
    let rate = executions as f64 / time.as_secs_f64();
    println!("\n{executions} executions in {} s, {rate:.1} a second, {errors} errors", time.as_secs());
    println!("{} had a process that was still seen just after its end was reported", soak.late.load(Ordering::Relaxed));

    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let status = runtime.block_on(soak.agent.terminate());
    let log = soak.agent.log();
    let warnings: Vec<&str> = log.lines().filter(|line| !line.starts_with("listening on")).collect();
    println!("the agent ended with {status}, after {} lines of warnings", warnings.len());
    for line in warnings.iter().rev().take(10).rev() {
        println!("  {line}");
    }
    let left = processes_with(&soak.mark).len();
    match before.0 == after.0 && errors == 0 && left == 0 && status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

impl Deed<'_> {
    async fn be_done(self, name: &str) {
        match name {
            "short command" => self.short_command().await,
            "last line" => self.last_line().await,
            "all of an output" => self.all_of_an_output().await,
            "abandoned flood" => self.abandoned_flood().await,
            "input" => self.input().await,
            "cancel" => self.cancel().await,
            "cancelled start" => self.cancelled_start().await,
            "timeout" => self.timeout().await,
            "survivors that end" => self.survivors_that_end().await,
            "survivors killed" => self.survivors_killed().await,
            "descendants ended" => self.descendants_ended().await,
            "failed start" => self.failed_start().await,
            "signal" => self.signal().await,
            _ => self.broken_connection().await,
        }
    }

    fn marked(&self, command: CommandBuilder) -> CommandBuilder {
        self.soak.executions.fetch_add(1, Ordering::Relaxed);
        command.env(MARK, &self.mark)
    }

    fn shell(&self, text: impl Into<String>) -> CommandBuilder {
        self.marked(Command::shell(text))
    }

    /// Once the end was reported, no process is left.
    async fn nothing_left(&self) {
        if processes_with(&self.mark).is_empty() {
            return;
        }
        self.soak.late.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(LAST_LOOK).await;
        assert_eq!(processes_with(&self.mark), [], "{LAST_LOOK:?} after the end was reported");
    }

    async fn has_exited(&self, id: &ExecutionId) {
        until("it has exited", async || self.machine.get(id).await.unwrap().state == ExecutionState::Exited).await;
        self.nothing_left().await;
    }

    async fn short_command(self) {
        let code = self.chance.below(256);
        let text = format!("echo out {0}; echo err {0} >&2; exit {code}", self.mark);
        let outcome = run(self.machine, self.shell(text).shell("sh")).await.unwrap();
        assert_eq!(outcome.text(), format!("out {}\n", self.mark));
        assert_eq!(outcome.stderr, format!("err {}\n", self.mark).into_bytes());
        assert_eq!(outcome.exited.exit_code(), i32::try_from(code).unwrap());
        self.nothing_left().await;
    }

    async fn last_line(self) {
        let count = self.chance.below(3000);
        let text = format!("seq 1 {count}; echo {} >&2; exit 3", self.mark);
        let outcome = run(self.machine, self.shell(text).shell("sh")).await.unwrap();
        assert_eq!(outcome.stderr, format!("{}\n", self.mark).into_bytes());
        assert_eq!(outcome.text(), (1..=count).map(|i| format!("{i}\n")).collect::<String>());
    }

    async fn all_of_an_output(self) {
        let count = self.chance.below(8_000_000) as usize;
        let text = format!("head -c {count} /dev/zero & head -c {count} /dev/zero | tr '\\0' x >&2; wait");
        let outcome = run(self.machine, self.shell(text)).await.unwrap();
        assert!(outcome.stdout == vec![0; count] && outcome.stderr == vec![b'x'; count], "{count} bytes");
    }

    async fn abandoned_flood(self) {
        let grace = self.chance.milliseconds(20);
        let command = self.marked(Command::argv(["yes"])).kill_grace(grace).build().unwrap();
        let mut execution = within(self.machine.execute(command)).await.unwrap();
        for _ in 0..self.chance.below(30) {
            within(execution.next()).await.unwrap().unwrap();
        }
        tokio::time::sleep(self.chance.milliseconds(200)).await;
        let id = execution.id().clone();
        drop(execution);
        self.has_exited(&id).await;
    }

    async fn input(self) {
        let bytes: Vec<u8> = (0..self.chance.below(300_000)).map(|i| (i * i % 251) as u8).collect();
        let outcome = run(self.machine, self.marked(Command::argv(["cat"])).stdin(bytes.clone())).await.unwrap();
        assert!(outcome.stdout == bytes, "{} of {} bytes", outcome.stdout.len(), bytes.len());
    }

    async fn cancel(self) {
        let (tree, grace) = (self.chance.tree(), self.chance.milliseconds(50));
        let command = self.shell(tree).kill_grace(grace).build().unwrap();
        let mut execution = within(self.machine.execute(command)).await.unwrap();
        if self.chance.below(2) == 0 {
            until_output(&mut execution, "ready\n").await;
        }
        tokio::time::sleep(self.chance.milliseconds(30)).await;
        let id = execution.id().clone();
        drop(execution);
        self.has_exited(&id).await;
    }

    async fn cancelled_start(self) {
        let (tree, pause) = (self.chance.tree(), self.chance.milliseconds(5));
        let command = self.shell(tree).kill_grace(Duration::ZERO).build().unwrap();
        let _ = tokio::time::timeout(pause, self.machine.execute(command)).await;
        // whether it was started is not known, so nothing is asserted of it: only nothing may remain
        until("nothing is left", async || processes_with(&self.mark).is_empty()).await;
    }

    async fn timeout(self) {
        let (tree, timeout) = (self.chance.tree(), self.chance.milliseconds(200));
        let command = self.shell(tree).timeout(timeout).kill_grace(self.chance.milliseconds(50));
        let outcome = run(self.machine, command).await.unwrap();
        assert_eq!((outcome.exited.cause, outcome.exited.surviving_processes), (ExitCause::TimedOut, 0));
        self.nothing_left().await;
    }

    async fn survivors_that_end(self) {
        let outcome = run(self.machine, self.shell("sleep 0.2 & setsid sleep 0.1 & echo done")).await.unwrap();
        assert_eq!((outcome.text(), outcome.exited.cause), ("done\n", ExitCause::Exited(0)));
        self.has_exited(&outcome.started.id).await;
    }

    async fn survivors_killed(self) {
        let text = "trap '' TERM; setsid sleep 300 & nohup sleep 300 >/dev/null 2>&1 & echo done; exit 3";
        let outcome = run(self.machine, self.shell(text)).await.unwrap();
        assert_eq!((outcome.text(), outcome.exited.cause), ("done\n", ExitCause::Exited(3)));
        assert_eq!(outcome.exited.surviving_processes, 2);
        // one in the middle of its execve(2) shows no mark
        until("both live", async || processes_with(&self.mark).len() == 2).await;
        self.machine.signal(&outcome.started.id, Signal::KILL).await.unwrap();
        self.has_exited(&outcome.started.id).await;
    }

    async fn descendants_ended(self) {
        let grace = self.chance.milliseconds(50);
        let text = "setsid sleep 300 & (setsid sh -c 'sleep 300 &' &); echo done; exit 3";
        let command = self.shell(text).descendants(Descendants::Kill).kill_grace(grace);
        let outcome = run(self.machine, command).await.unwrap();
        assert_eq!((outcome.text(), outcome.exited.cause), ("done\n", ExitCause::Exited(3)));
        assert_eq!(outcome.exited.surviving_processes, 0);
        self.nothing_left().await;
    }

    async fn failed_start(self) {
        let command = match self.chance.below(3) {
            0 => Command::argv(["/nonexistent/program"]),
            1 => Command::argv(["/etc/passwd"]),
            _ => Command::argv(["true"]).working_directory("/nonexistent"),
        };
        let refused = run(self.machine, self.marked(command)).await;
        assert!(matches!(refused, Err(ExecutorError::Spawn(_))), "{refused:?}");
    }

    async fn signal(self) {
        let text = "trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.01; done";
        let mut execution = within(self.machine.execute(self.shell(text).build().unwrap())).await.unwrap();
        until_output(&mut execution, "ready\n").await;
        self.machine.signal(execution.id(), Signal::from_number(10).unwrap()).await.unwrap();
        until_output(&mut execution, "caught\n").await;
        // the shell may remark on what became of its child
        let exited = loop {
            match within(execution.next()).await.unwrap().unwrap() {
                Event::Output(output) => assert_eq!(output.stream, OutputStream::Stderr),
                Event::Exited(exited) => break exited,
                other => panic!("after the last line: {other:?}"),
            }
        };
        assert_eq!(exited.cause, ExitCause::Exited(9));
        self.nothing_left().await;
    }

    async fn broken_connection(self) {
        let wire = Wire::connect(&self.soak.agent).await.unwrap();
        let mut calls = Vec::new();
        for _ in 0..=self.chance.below(4) {
            self.soak.executions.fetch_add(1, Ordering::Relaxed);
            let request = ExecuteRequest {
                command: self.chance.tree().into(),
                environment: [(MARK.to_owned(), self.mark.clone())].into(),
                kill_grace: Some(self.chance.milliseconds(50).try_into().unwrap()),
                ..Default::default()
            };
            let mut events = within(wire.executions().execute(request)).await.unwrap().into_inner();
            let first = within(events.message()).await.unwrap().unwrap().event;
            let Some(execution_event::Event::Started(started)) = first else { panic!("first: {first:?}") };
            calls.push((started.execution_id.parse().unwrap(), events));
        }
        tokio::time::sleep(self.chance.milliseconds(30)).await;
        wire.cut();
        for (id, _events) in calls {
            until("it has exited", async || self.machine.get(&id).await.unwrap().state == ExecutionState::Exited).await;
        }
        self.nothing_left().await;
    }
}
