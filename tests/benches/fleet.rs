//! Many hosts at once: `cargo build --release && cargo bench -p telexec-tests --bench fleet`.
//!
//! `true` on all of them over mTLS, where the hosts are the ports of one agent: cold with the program `telexec`, start,
//! connections and handshakes included; warm over connections that are there. The baselines are as many local spawns, one
//! after the other, and, for root and up to 200 hosts, clush and pdsh over ssh to as many addresses of one sshd (packages
//! openssh-server, clustershell and pdsh), over new connections and over those of ControlMaster. Argument: how many
//! hosts (default 200).

use std::fmt::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use telexec_client::{ConnectOptions, RemoteExecutor};
use telexec_executor::{Command, Event, Executor};
use telexec_tests::{Agent, Certs, Sshd, bench_agent, percentile, program};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ROUNDS: usize = 5;
const ROUNDS_OF_SSH: usize = 3;
/// As many as `telexec fleet` works on.
const FANOUT: usize = 64;
/// On two cores this takes clush half a minute; beyond it, sshd and the masters are thousands of processes.
const MOST_OF_SSH: usize = 200;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let hosts = arguments.next().map_or(Ok(200), |text| text.parse())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("{:>6} {:>12} {:>12} {:>12} {:>12}", "hosts", "spawns here", "warm", "cold", "its cpu");
    let ours = runtime.block_on(measure(hosts))?;
    compare(hosts, ours)
}

/// How long it took over connections that are there, and the program over new ones.
struct Ours {
    warm: Duration,
    cold: Duration,
}

async fn measure(hosts: usize) -> Result<Ours> {
    let certs = Certs::new();
    let mut agent = bench_agent().mtls(&certs);
    for _ in 1..hosts {
        agent = agent.listen("tcp://127.0.0.1:0");
    }
    let agent = agent.start();
    let executors = connect(&agent, &certs).await?;
    let (mut here, mut warm, mut cold, mut cpu) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        here.push(spawn_here(hosts)?);
        warm.push(on_all(&executors).await?);
        let before = used(&getrusage(UsageWho::RUSAGE_CHILDREN)?);
        cold.push(fleet(&agent, &certs)?);
        cpu.push(used(&getrusage(UsageWho::RUSAGE_CHILDREN)?).saturating_sub(before));
    }
    let [here, warm, cold, cpu] = [here, warm, cold, cpu].map(|mut times| percentile(&mut times, 50));
    let text = |time: Duration| format!("{} ms", time.as_millis());
    println!("{hosts:>6} {:>12} {:>12} {:>12} {:>12}", text(here), text(warm), text(cold), text(cpu));
    Ok(Ours { warm, cold })
}

/// The same with what others use, as multiples of ours.
fn compare(hosts: usize, ours: Ours) -> Result<()> {
    if hosts > MOST_OF_SSH {
        println!("not compared with ssh: more than {MOST_OF_SSH} hosts are too many for one sshd");
        return Ok(());
    }
    if let Some(why) = Sshd::missing(&["clush", "pdsh"]) {
        println!("not compared with ssh: {why}");
        return Ok(());
    }
    let sshd = Sshd::start(hosts)?;
    // opens the connections that stay
    over_ssh(&sshd, hosts, Tool::Clush, true)?;
    for tool in [Tool::Clush, Tool::Pdsh] {
        for (multiplexed, how) in [(true, "open connections"), (false, "new connections")] {
            let mut times = Vec::new();
            for _ in 0..ROUNDS_OF_SSH {
                times.push(over_ssh(&sshd, hosts, tool, multiplexed)?);
            }
            let time = percentile(&mut times, 50);
            let times_of = |ours: Duration| time.as_secs_f64() / ours.as_secs_f64();
            let (warm, cold) = (times_of(ours.warm), times_of(ours.cold));
            let (tool, time) = (format!("{tool:?}"), time.as_millis());
            println!("{tool:>6} over ssh, {how:<16} {time:>7} ms {warm:>6.1} x warm {cold:>6.1} x cold");
        }
    }
    Ok(())
}

/// A program that runs a command on many hosts by ssh.
#[derive(Clone, Copy, Debug)]
enum Tool {
    Clush,
    Pdsh,
}

/// `true` everywhere, over connections of its own or those that are there.
fn over_ssh(sshd: &Sshd, hosts: usize, tool: Tool, multiplexed: bool) -> Result<Duration> {
    let config = sshd.config(multiplexed);
    let mut command = match tool {
        Tool::Clush => std::process::Command::new("clush"),
        Tool::Pdsh => std::process::Command::new("pdsh"),
    };
    match tool {
        Tool::Clush => command.args(["-q", "-o"]).arg(format!("-F {}", config.display())),
        Tool::Pdsh => command.args(["-R", "ssh"]).env("PDSH_SSH_ARGS", format!("-F {} %h", config.display())),
    };
    command.args(["-S", "-f", &FANOUT.to_string(), "-w", &format!("127.0.1.[1-{hosts}]"), "true"]);
    // not with this user's settings
    command.env("HOME", config.with_file_name("home")).stdin(Stdio::null()).stdout(Stdio::null());
    let begin = Instant::now();
    match command.status()?.success() {
        true => Ok(begin.elapsed()),
        false => Err(format!("{tool:?} failed").into()),
    }
}

async fn connect(agent: &Agent, certs: &Certs) -> Result<Vec<RemoteExecutor>> {
    let options = ConnectOptions { tls: Some(certs.options(&certs.client)), ..ConnectOptions::default() };
    let connecting = agent.uris().iter().map(async |uri| {
        let agent = telexec_client::Agent::connect(&uri.parse()?, options.clone()).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(agent.executor())
    });
    stream::iter(connecting).buffered(FANOUT).try_collect().await
}

async fn on_all(executors: &[RemoteExecutor]) -> Result<Duration> {
    let begin = Instant::now();
    let running = executors.iter().map(async |executor| {
        let mut execution = executor.execute(Command::argv(["true"]).build()?).await?;
        while let Some(event) = execution.next().await {
            if let Event::Exited(exited) = event? {
                return if exited.exit_code() == 0 { Ok(()) } else { Err("true failed".into()) };
            }
        }
        Err::<(), Box<dyn std::error::Error + Send + Sync>>("no end".into())
    });
    let () = stream::iter(running).buffer_unordered(FANOUT).try_collect().await?;
    Ok(begin.elapsed())
}

fn spawn_here(count: usize) -> Result<Duration> {
    let begin = Instant::now();
    for _ in 0..count {
        std::process::Command::new("true").status()?;
    }
    Ok(begin.elapsed())
}

/// The program, with all hosts.
fn fleet(agent: &Agent, certs: &Certs) -> Result<Duration> {
    let mut hosts = String::new();
    for uri in agent.uris() {
        write!(hosts, "{uri},")?;
    }
    let mut command = std::process::Command::new(program("telexec"));
    command.arg("fleet").arg("-w").arg(hosts).arg("--cert").arg(&certs.client.cert).arg("--key").arg(&certs.client.key);
    command.arg("--ca").arg(certs.ca.cert()).args(["--", "true"]).env("TELEXEC_CONFIG", "/dev/null");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begin = Instant::now();
    match command.status()?.success() {
        true => Ok(begin.elapsed()),
        false => Err("telexec fleet failed".into()),
    }
}

fn used(usage: &Usage) -> Duration {
    let time = |time: nix::sys::time::TimeVal| {
        Duration::from_micros(u64::try_from(time.tv_sec() * 1_000_000 + time.tv_usec()).unwrap_or(0))
    };
    time(usage.user_time()) + time(usage.system_time())
}
