//! Other programs that run commands elsewhere, each by its usual client; codex's server by a client of its protocol.
//!
//! Measured are those that are installed: Debian's openssh-server, dropbear-bin, docker.io with busybox-static, and codex of
//! npm's `@openai/codex`, which the environment variable `CODEX` names.

mod codex;
mod docker;
mod dropbear;
mod processes;

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use telexec_client::{ConnectOptions, RemoteExecutor};
use telexec_executor::{Command, Executor};
use telexec_tests::{Certs, Sshd, bench_agent, program};

use crate::contest::{Contestant, contest, timed};
use crate::latency::{connect, until_started};
use crate::process::telexec_exec;
use crate::rate::{median, per_second};
use crate::stream::read_execution;
use crate::table::{Row, Table, Unit};
use crate::way::{MEBIBYTE, Way};
use crate::{Plan, Result};
use processes::{Processes, version};

const IN_FLIGHT: usize = 8;
const ROUNDS: usize = 3;
/// Of dd, which coreutils and busybox have alike.
const BLOCKS_PER_MEBIBYTE: u64 = 16;
const TRUE: [&str; 1] = ["true"];

/// A client and the server that it talks to; dropping it ends the server.
trait Peer {
    fn name(&self) -> &'static str;

    fn version(&self) -> &str;

    /// Runs a command to its end, by a connection that is open already if the client keeps one; how many bytes it printed.
    fn run<'a>(&'a self, argv: &'a [&'a str]) -> LocalBoxFuture<'a, Result<u64>>;

    /// The same over a new connection.
    fn run_anew<'a>(&'a self, argv: &'a [&'a str]) -> LocalBoxFuture<'a, Result<u64>>;

    /// Time until the client knows that a command runs, which is ended then. `None`: the protocol does not report it.
    fn until_started(&self) -> Option<LocalBoxFuture<'_, Result<Duration>>> {
        None
    }
}

/// A short command, warm and over a new connection; how many of them a second; and one stream.
pub(crate) async fn peers(plan: &Plan, table: &mut Table) -> Result<()> {
    let (certs, missing) = (Certs::new(), Sshd::missing(&[]));
    let sshd = missing.is_none().then(|| Sshd::start(1)).transpose()?;
    let sshd = || sshd.as_ref().ok_or_else(|| missing.clone().unwrap_or_default().into());
    let agent = bench_agent().mtls(&certs).start();
    let options = ConnectOptions { tls: Some(certs.options(&certs.client)), ..ConnectOptions::default() };
    let library = Library { machine: agent.executor().await, uri: agent.uri().to_owned(), options };
    let version = version(program("telexec"), "--version")?;
    let exec = Processes::new("telexec exec, new mTLS", version, || telexec_exec(&agent, &certs));
    let mut peers: Vec<Box<dyn Peer + '_>> = vec![Box::new(library), Box::new(exec)];
    let found: [(&str, Result<Box<dyn Peer + '_>>); 4] = [
        ("OpenSSH", sshd().and_then(|sshd| Ok(Box::new(processes::openssh(sshd)?) as _))),
        ("Dropbear", sshd().and_then(|sshd| Ok(Box::new(dropbear::start(sshd)?) as _))),
        ("docker exec", docker::start().map(|docker| Box::new(docker) as _)),
        ("codex exec-server", codex::start().map(|codex| Box::new(codex) as _)),
    ];
    for (name, peer) in found {
        match peer {
            Ok(peer) => peers.push(peer),
            Err(why) => println!("  not compared with {name}: {why}"),
        }
    }
    for peer in &peers {
        println!("  {}: {}", peer.name(), peer.version());
    }
    short(plan, table, &peers).await?;
    rates(plan, table, &peers).await?;
    streams(plan, table, &peers).await
}

async fn short(plan: &Plan, table: &mut Table, peers: &[Box<dyn Peer + '_>]) -> Result<()> {
    let named = |what: &str, peer: &dyn Peer| format!("{what}: {}", peer.name());
    let warm = peers.iter().map(|peer| Contestant::new(named("true", &**peer), || timed(peer.run(&TRUE))));
    contest(plan, table, 50, warm.collect()).await?;
    let anew = peers.iter().map(|peer| Contestant::new(named("new", &**peer), || timed(peer.run_anew(&TRUE))));
    contest(plan, table, 25, anew.collect()).await?;
    let reporting = peers.iter().filter(|peer| peer.until_started().is_some());
    let started = reporting.map(|peer| {
        Contestant::new(named("until started", &**peer), || async {
            peer.until_started().ok_or("starts are not reported")?.await
        })
    });
    contest(plan, table, 50, started.collect()).await?;
    Ok(())
}

async fn rates(plan: &Plan, table: &mut Table, peers: &[Box<dyn Peer + '_>]) -> Result<()> {
    let mut rates = vec![Vec::new(); peers.len()];
    let count = plan.some(200).max(IN_FLIGHT);
    // the first round opens connections, of those that need one for each command
    for round in 0..=ROUNDS {
        for (peer, rates) in peers.iter().zip(&mut rates) {
            let rate = per_second(count, IN_FLIGHT, || async { peer.run(&TRUE).await.map(drop) });
            match rate.await {
                Ok(_) if round == 0 => {}
                Ok(rate) => rates.push(rate),
                // Dropbear does not always send an exit status
                Err(why) => println!("  {IN_FLIGHT} in flight: {} failed: {why}", peer.name()),
            }
        }
    }
    let mut base = None;
    for (peer, rates) in peers.iter().zip(&mut rates).filter(|(_, rates)| rates.len() == ROUNDS) {
        let name = format!("{IN_FLIGHT} in flight: {}", peer.name());
        let rate = median(rates);
        let row = Row::new(name.clone(), Unit::PerSecond, rate);
        table.add(match &base {
            Some((name, rate)) => row.beside(name, *rate),
            None => row,
        });
        base.get_or_insert((name, rate));
    }
    Ok(())
}

async fn streams(plan: &Plan, table: &mut Table, peers: &[Box<dyn Peer + '_>]) -> Result<()> {
    let mebibytes = plan.some(500) as u64;
    let (bytes, count) = (mebibytes * MEBIBYTE, format!("count={}", mebibytes * BLOCKS_PER_MEBIBYTE));
    let mut ways: Vec<_> = peers.iter().map(|peer| Way::new(peer.name())).collect();
    if let Some((base, others)) = ways.split_first_mut() {
        others.iter_mut().for_each(|way| way.base = Some(base.name));
    }
    for _ in 0..ROUNDS {
        for (peer, way) in peers.iter().zip(&mut ways) {
            way.go(bytes, peer.run(&["dd", "if=/dev/zero", "bs=64k", &count, "status=none"])).await?;
        }
    }
    Way::add_all(&ways, table);
    Ok(())
}

/// telexec's own library, over mTLS.
struct Library {
    machine: RemoteExecutor,
    uri: String,
    options: ConnectOptions,
}

impl Peer for Library {
    fn name(&self) -> &'static str {
        "client library, mTLS"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn run<'a>(&'a self, argv: &'a [&'a str]) -> LocalBoxFuture<'a, Result<u64>> {
        Box::pin(run(&self.machine, argv))
    }

    fn run_anew<'a>(&'a self, argv: &'a [&'a str]) -> LocalBoxFuture<'a, Result<u64>> {
        Box::pin(async { run(&connect(&self.uri, self.options.clone()).await?, argv).await })
    }

    fn until_started(&self) -> Option<LocalBoxFuture<'_, Result<Duration>>> {
        Some(Box::pin(until_started(&self.machine, &["sleep", "1000"])))
    }
}

async fn run(machine: &RemoteExecutor, argv: &[&str]) -> Result<u64> {
    read_execution(machine.execute(Command::argv(argv.iter().copied()).build()?).await?).await
}
