//! One agent under load while the machine fails it, for a long time:
//! `cargo build --release && cargo bench -p telexec-tests --bench faults`, as root.
//!
//! Every few seconds something is taken away: descriptors, threads and processes, room on the disk, the reader of the log;
//! or there are processes that do not answer; and commands are killed for want of memory. Meanwhile a refusal is an answer;
//! a wrong result, a process that is left or a call that hangs is a failure. At the
//! end everything is there again, the agent serves, and holds what it held before. From the environment:
//!
//! - `TELEXEC_SOAK_MINUTES` (10): may be a fraction
//! - `TELEXEC_SOAK_CLIENTS` (6): each does one thing after the other
//! - `TELEXEC_SOAK_SEED`: of an earlier run, for the same choices
//! - `TELEXEC_BENCH_CONTAINMENT`: the agent's
//! - `TELEXEC_SOAK_KEEPER=on`: the agent has a keeper. Then it is killed, too, or hands over to another one
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail so")]

mod deed;

use std::collections::BTreeMap;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, ExitCode};
use std::str::FromStr;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use futures_util::{FutureExt, StreamExt};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use telexec_client::RemoteExecutor;
use telexec_executor::{
    Attach, Command, CommandBuilder, Event, Execution, ExecutionId, ExecutionState, Executor, ExecutorError, ExitCause,
    Exited, OnDisconnect, ResourceLimits, Signal,
};
use telexec_tests::{
    Agent, Holdings, MARK, Memory, Outcome, StuckProcess, bench_agent, children, marker, processes_with, run, settled,
    until, within,
};
use tokio::runtime::Builder;

use self::deed::Deed;

/// What a client does.
const DEEDS: [&str; 7] = ["exit code", "output", "cancel", "timeout", "background", "signal", "memory"];
/// What is taken away.
const FAULTS: [Fault; 5] = [Fault::Descriptors, Fault::Processes, Fault::Disk, Fault::LogReader, Fault::StuckProcesses];
/// The same, more often, of an agent that has a keeper.
const WITH_KEEPER: [Fault; 4] = [Fault::Crash, Fault::Crash, Fault::Upgrade, Fault::KeeperDescriptors];
/// An agent that takes another's place waits so long for the callers of what that has left: see `Resume::give_up_after`.
const DISCONNECT_GRACE: Duration = Duration::from_secs(40);
/// So many ended executions are remembered.
const REMEMBERED: usize = 20;
/// Room for the state of the agent.
const DISK_MEBIBYTES: u32 = 16;
const TREE: &str = "trap '' TERM; setsid sleep 300 & sleep 300 & while :; do sleep 300; done";

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// RLIMIT_NOFILE is what it has open.
    Descriptors,
    /// pids.max is what it has: neither a thread nor a process can be made.
    Processes,
    /// The file system of its state directory is full.
    Disk,
    /// Its standard error is not read.
    LogReader,
    /// There are processes whose environment cannot be read.
    StuckProcesses,
    /// The agent is killed.
    Crash,
    /// It hands over.
    Upgrade,
    /// RLIMIT_NOFILE of the keeper is what it has open.
    KeeperDescriptors,
}

/// A cgroup of version 1, with the agent in it.
struct Group(PathBuf);

impl Group {
    fn new(controller: &str, name: &str) -> Self {
        let path = Path::new("/sys/fs/cgroup").join(controller).join(name);
        fs::create_dir(&path).expect("root, and the controllers of cgroup version 1");
        Self(path)
    }

    /// The line of a shell that goes into it.
    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.0.display())
    }

    fn read(&self, name: &str) -> u64 {
        fs::read_to_string(self.0.join(name)).unwrap().trim().parse().unwrap()
    }

    /// The system may refuse a limit below what is used.
    fn limit(&self, name: &str, limit: &str) -> bool {
        fs::write(self.0.join(name), limit).is_ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A small file system in memory.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let size = format!("size={DISK_MEBIBYTES}m,mode=700");
        let mount = ["-t", "tmpfs", "-o", &size, "telexec-faults"];
        assert!(Program::new("mount").args(mount).arg(directory.path()).status().unwrap().success());
        Self(directory)
    }

    fn fill(&self) {
        let zeros = vec![0; 1024 * 1024];
        let mut file = fs::File::create(self.0.path().join("filler")).unwrap();
        while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.0.path().join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Program::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// What all clients share.
struct Soak {
    agent: Agent,
    kept: bool,
    disk: Disk,
    pids: Group,
    /// Every mark begins with it.
    mark: String,
    end: Mutex<Instant>,
    /// Of each deed: how often it was done, refused, and went wrong.
    deeds: Mutex<BTreeMap<&'static str, [u64; 3]>>,
    faults: Mutex<BTreeMap<String, u64>>,
}

fn main() -> ExitCode {
    let minutes: f64 = option("MINUTES", 10.0);
    let clients: u64 = option("CLIENTS", 6);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed: u64 = option("SEED", now.as_secs());
    println!("faults for {minutes} minutes, {clients} clients, seed {seed}");

    let (disk, pids) = (Disk::new(), Group::new("pids", &format!("telexec-faults-{}", std::process::id())));
    let state = disk.0.path().join("state");
    let kept = std::env::var("TELEXEC_SOAK_KEEPER").is_ok_and(|switch| switch == "on");
    let agent = if kept { bench_agent().kept() } else { bench_agent() };
    let agent = agent
        .config(format!("retention_count = {REMEMBERED}"))
        .args(["--state-dir", state.to_str().unwrap()])
        .through(["unshare", "--mount"])
        .after(&pids.enter())
        .start();
    let soak = Soak {
        agent,
        kept,
        disk,
        pids,
        mark: marker(),
        end: Mutex::new(Instant::now() + Duration::from_secs(10)),
        deeds: Mutex::default(),
        faults: Mutex::default(),
    };
    // the first of everything is part of no balance: it may make what is kept
    load(&soak, clients, seed, false);
    let before = settle(&soak);
    *soak.end.lock().unwrap() = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    load(&soak, clients, seed.wrapping_add(clients), true);
    let mut after = settle(&soak);
    let begin = Instant::now();
    while after.0 != before.0 && begin.elapsed() < DISCONNECT_GRACE {
        std::thread::sleep(Duration::from_secs(1));
        after.0 = Holdings::of(soak.agent.pid());
    }
    report(soak, before, after)
}

fn option<T: FromStr>(name: &str, default: T) -> T {
    let name = format!("TELEXEC_SOAK_{name}");
    std::env::var(&name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// All clients until the end of the time, each in a thread of its own, and the faults in another one.
fn load(soak: &Soak, clients: u64, seed: u64, with_faults: bool) {
    let connected = Barrier::new(clients as usize + 1);
    let connected = &connected;
    std::thread::scope(|scope| {
        for client in 0..clients {
            scope.spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                let machine = runtime.block_on(soak.agent.executor());
                connected.wait();
                runtime.block_on(client_of(soak, machine, client, Rng::with_seed(seed.wrapping_add(client))));
            });
        }
        connected.wait();
        if with_faults {
            scope.spawn(move || fail(soak, Rng::with_seed(seed.wrapping_add(clients))));
        }
    });
}

fn is_over(soak: &Soak) -> bool {
    Instant::now() >= *soak.end.lock().unwrap()
}

/// One fault after the other, with a pause between.
fn fail(soak: &Soak, mut chance: Rng) {
    let mut said = Instant::now();
    while !is_over(soak) {
        let fault = match soak.kept && chance.bool() {
            true => *chance.choice(&WITH_KEEPER).unwrap(),
            false => *chance.choice(&FAULTS).unwrap(),
        };
        let time = Duration::from_millis(chance.u64(200..3000));
        fail_once(soak, fault, time, &mut chance);
        *soak.faults.lock().unwrap().entry(format!("{fault:?}")).or_default() += 1;
        std::thread::sleep(Duration::from_millis(chance.u64(0..2000)));
        if said.elapsed() > Duration::from_secs(60) {
            said = Instant::now();
            let sum =
                soak.deeds.lock().unwrap().values().fold([0; 3], |sum, deed| std::array::from_fn(|i| sum[i] + deed[i]));
            let resident = Memory::of(soak.agent.pid()).resident / 1024 / 1024;
            println!("{} done, {} refused, {} wrong, {resident} MiB", sum[0], sum[1], sum[2]);
        }
    }
}

/// Its hard RLIMIT_NOFILE, from proc_pid_limits(5).
fn hard_limit(pid: i32) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The agent's process, which may be its keeper's child.
fn serving(soak: &Soak) -> i32 {
    let is_agent = |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("telexecd"));
    if !soak.kept {
        return soak.agent.pid();
    }
    loop {
        match children(soak.agent.pid()).into_iter().map(|process| process.pid).find(|pid| is_agent(*pid)) {
            Some(pid) => return pid,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Takes the room for more from it.
fn few_descriptors(pid: i32, time: Duration, chance: &mut Rng) {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
    let less = Rlimit { current: Some(open + chance.u64(0..4)), maximum: Some(hard_limit(pid)) };
    let usual = prlimit(Pid::from_raw(pid), Resource::Nofile, less).unwrap();
    std::thread::sleep(time);
    // it may have been ended for it
    let _ = prlimit(Pid::from_raw(pid), Resource::Nofile, usual);
}

/// Waits for another agent to serve.
fn replace(soak: &Soak, signal: rustix::process::Signal) {
    let (before, served) = (serving(soak), || soak.agent.reported("listening on").0);
    let already = served();
    rustix::process::kill_process(Pid::from_raw(before).unwrap(), signal).unwrap();
    let begin = Instant::now();
    while served() == already {
        assert!(begin.elapsed() < Duration::from_secs(120), "no agent serves after {signal:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn fail_once(soak: &Soak, fault: Fault, time: Duration, chance: &mut Rng) {
    match fault {
        Fault::Descriptors => few_descriptors(serving(soak), time, chance),
        Fault::KeeperDescriptors => few_descriptors(soak.agent.pid(), time, chance),
        Fault::Crash => replace(soak, rustix::process::Signal::KILL),
        Fault::Upgrade => replace(soak, rustix::process::Signal::USR2),
        Fault::Processes => {
            soak.pids.limit("pids.max", &(soak.pids.read("pids.current") + chance.u64(0..3)).to_string());
            std::thread::sleep(time);
            assert!(soak.pids.limit("pids.max", "max"));
        }
        Fault::Disk => {
            soak.disk.fill();
            std::thread::sleep(time);
            soak.disk.empty();
        }
        Fault::LogReader => {
            let _unread = soak.agent.hold_log();
            std::thread::sleep(time);
        }
        Fault::StuckProcesses => {
            let _stuck: Vec<_> = (0..chance.u8(1..4)).map(|_| StuckProcess::new(&soak.agent)).collect();
            std::thread::sleep(time);
        }
    }
}

async fn client_of(soak: &Soak, mut machine: RemoteExecutor, client: u64, mut chance: Rng) {
    for done in 0_u64.. {
        if is_over(soak) {
            return;
        }
        let name = *chance.choice(&DEEDS).unwrap();
        // of one length, so that none begins with another
        let mark = format!("{}-{client:04}-{done:012}", soak.mark);
        let deed = Deed { machine: &machine, kept: soak.kept, chance: &mut chance, mark: mark.clone() };
        let outcome = AssertUnwindSafe(deed.be_done(name)).catch_unwind().await;
        let column = match outcome {
            Ok(Ok(())) => 0,
            Ok(Err(ExecutorError::Exhausted { .. } | ExecutorError::Unsupported { .. })) => 1,
            Ok(Err(ExecutorError::Spawn(error))) if error.is_exhausted() => 1,
            // another agent has taken its place
            Ok(Err(ExecutorError::Unreachable { .. } | ExecutorError::Lost { .. } | ExecutorError::ShuttingDown))
            | Ok(Err(ExecutorError::NotFound(_)))
                if soak.kept =>
            {
                1
            }
            Ok(Err(error)) => {
                eprintln!("{name}: {error}: {error:?}");
                2
            }
            Err(_) => 2,
        };
        if column == 2 {
            // whatever it was, the next one begins anew; another agent may just be starting
            machine = loop {
                match AssertUnwindSafe(soak.agent.executor()).catch_unwind().await {
                    Err(_) if soak.kept => tokio::time::sleep(Duration::from_millis(100)).await,
                    made => break made.unwrap(),
                }
            };
        }
        if column == 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        soak.deeds.lock().unwrap().entry(name).or_default()[column] += 1;
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
    }
}

/// Waits until nothing changes any more, if that comes.
fn settle(soak: &Soak) -> (Holdings, Memory) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    // for those that are remembered descriptors may be held
    runtime.block_on(async {
        let machine = soak.agent.executor().await;
        for _ in 0..REMEMBERED {
            run(&machine, Command::argv(["true"])).await.unwrap();
        }
    });
    (settled(|| Holdings::of(soak.agent.pid())), Memory::of(soak.agent.pid()))
}

/// What its descriptors are, see proc_pid_fd(5).
fn open_files(pid: i32) -> Vec<PathBuf> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    files.filter_map(|file| fs::read_link(file.unwrap().path()).ok()).collect()
}

/// Prints everything, and ends the agent.
fn report(mut soak: Soak, before: (Holdings, Memory), after: (Holdings, Memory)) -> ExitCode {
    println!("before: {:?}, {} KiB", before.0, before.1.resident / 1024);
    println!("after:  {:?}, {} KiB, at most {} KiB", after.0, after.1.resident / 1024, after.1.peak / 1024);
    if before.0.descriptors != after.0.descriptors {
        println!("open:   {:?}", open_files(soak.agent.pid()));
    }
    println!("faults: {:?}", soak.faults.lock().unwrap());
    println!("{:<12} {:>9} {:>9} {:>9}", "", "done", "refused", "wrong");
    let mut wrong = 0;
    for (name, [done, refused, failed]) in &*soak.deeds.lock().unwrap() {
        println!("{name:<12} {done:>9} {refused:>9} {failed:>9}");
        wrong += failed;
    }
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let served = runtime.block_on(async { run(&soak.agent.executor().await, Command::shell("exit 7")).await.unwrap() });
    let status = runtime.block_on(soak.agent.terminate());
    let left = processes_with(&soak.mark).len();
    println!("then it served ({}), and ended with {status}; {left} processes are left", served.exited.exit_code());
    match before.0 == after.0 && wrong == 0 && left == 0 && status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
