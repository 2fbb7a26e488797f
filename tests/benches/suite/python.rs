//! Programs in Python: the package `telexec` beside the Rust client, and E2B's SDK by way of `telexec-e2b` beside the same
//! SDK with a server that runs nothing.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use telexec_client::RemoteFiles;
use telexec_executor::{Command, Executor, FilePiece, FileRange, FileTarget, Files, WriteOptions};
use telexec_tests::{Certs, bench_agent, program};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::Mutex;

use crate::contest::{Contestant, contest, timed};
use crate::latency::{finish, there};
use crate::rate::{median, per_second};
use crate::table::{Aim, Row, Table, Unit};
use crate::{Plan, Result};

const ARGV: [&str; 1] = ["/bin/true"];
const LOGIN: [&str; 4] = ["/bin/bash", "-l", "-c", "true"];
const AT_ONCE: usize = 500;
const ROUNDS: usize = 3;
const FILE_BYTES: usize = 100_000_000;
const PIECE_BYTES: usize = 64 * 1024;

/// A script that does what a line says, and answers with the seconds that it took. Ends with its standard input: when dropped, or
/// with this process.
struct Driver {
    _script: Child,
    pipes: Mutex<(ChildStdin, Lines<BufReader<ChildStdout>>)>,
}

impl Driver {
    /// `None`, and a note: the variable names no Python.
    fn start(variable: &str, script: &str, arguments: &[&str]) -> Result<Option<Self>> {
        let Some(python) = std::env::var_os(variable) else {
            println!("skipped: {script} ({variable} names no Python)");
            return Ok(None);
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no workspace")?;
        let mut command = tokio::process::Command::new(python);
        command.arg(root.join(script)).args(arguments).env("PYTHONSAFEPATH", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("PYTHONPATH", root.join("integrations/e2b/tests"));
        let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = script.stdin.take().ok_or("no standard input")?;
        let stdout = BufReader::new(script.stdout.take().ok_or("no standard output")?).lines();
        Ok(Some(Self { _script: script, pipes: Mutex::new((stdin, stdout)) }))
    }

    async fn ask(&self, what: &str) -> Result<Duration> {
        let mut pipes = self.pipes.lock().await;
        pipes.0.write_all(format!("{what}\n").as_bytes()).await?;
        let answer = pipes.1.next_line().await?.ok_or("the script has ended")?;
        Ok(Duration::from_secs_f64(answer.parse()?))
    }
}

/// The package `telexec`.
pub(crate) async fn package(plan: &Plan, table: &mut Table) -> Result<()> {
    let certs = Certs::new();
    let agent = bench_agent().mtls(&certs).start();
    let [cert, key, ca] =
        [&certs.client.cert, &certs.client.key, &certs.ca.cert()].map(|path| path.display().to_string());
    let script = "client/python/benches/driver.py";
    let Some(python) = Driver::start("TELEXEC_PYTHON", script, &[agent.uri(), &cert, &key, &ca])? else {
        return Ok(());
    };
    let machine = agent.executor().await;
    let contestants = vec![
        Contestant::new("/bin/true: Rust client, mTLS", || timed(there(&machine, &ARGV))),
        Contestant::new("/bin/true: Python, mTLS", || python.ask("run")).agent(agent.pid()),
    ];
    let [rust, from_python] = &contest(plan, table, 300, contestants).await?[..] else { return Ok(()) };
    table
        .add(Row::new("added by Python", Unit::Microseconds, from_python.median - rust.median).aim(Aim::AtMost(250.0)));

    let count = plan.some(AT_ONCE);
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        rates[0].push(per_second(count, count, || there(&machine, &ARGV)).await?);
        rates[1].push(count as f64 / python.ask(&format!("gather {count}")).await?.as_secs_f64());
    }
    let [rust, from_python] = rates.each_mut().map(|rates| median(rates));
    table.add(Row::new(format!("{count} at once: Rust client"), Unit::PerSecond, rust));
    table.add(Row::new(format!("{count} at once: asyncio"), Unit::PerSecond, from_python).beside("Rust client", rust));
    files(plan, table, &agent.connect().await.files(), &python).await
}

/// A file of 100 MB, as one value in memory.
async fn files(plan: &Plan, table: &mut Table, rust: &RemoteFiles, python: &Driver) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("file").display().to_string();
    let file = FileTarget::new(path.as_str());
    let (write_line, read_line) = (format!("write {path} {FILE_BYTES}"), format!("read {path}"));
    let data = Bytes::from(vec![0; FILE_BYTES]);
    let contestants = vec![
        Contestant::new("write 100 MB: Rust client, mTLS", || timed(write(rust, &file, data.clone()))),
        Contestant::new("write 100 MB: Python, mTLS", || python.ask(&write_line)),
    ];
    contest(plan, table, 5, contestants).await?;
    let contestants = vec![
        Contestant::new("read 100 MB: Rust client, mTLS", || timed(read(rust, &file))),
        Contestant::new("read 100 MB: Python, mTLS", || python.ask(&read_line)),
    ];
    contest(plan, table, 5, contestants).await?;
    Ok(())
}

async fn write(files: &RemoteFiles, file: &FileTarget, data: Bytes) -> Result<()> {
    let rest = |mut data: Bytes| {
        let piece = data.split_to(data.len().min(PIECE_BYTES));
        std::future::ready((!piece.is_empty()).then(|| (Ok(FilePiece::Data(piece)), data)))
    };
    files.write(file.clone(), WriteOptions::default(), stream::unfold(data, rest).boxed()).await?;
    Ok(())
}

async fn read(files: &RemoteFiles, file: &FileTarget) -> Result<()> {
    let mut content = files.read(file.clone(), FileRange::default()).await?;
    let mut data = Vec::new();
    while let Some(piece) = content.pieces.next().await {
        if let FilePiece::Data(piece) = piece? {
            data.extend_from_slice(&piece);
        }
    }
    Ok(())
}

/// With a home as that of a sandbox: none of the files there that a login shell reads.
async fn log_in(machine: &dyn Executor) -> Result<()> {
    let command = Command::argv(LOGIN).env("HOME", "/nonexistent").build()?;
    finish(machine, command).await
}

/// E2B's SDK.
pub(crate) async fn e2b(plan: &Plan, table: &mut Table) -> Result<()> {
    let agent = bench_agent().start();
    let (script, gateway) = ("integrations/e2b/tests/bench.py", program("telexec-e2b").display().to_string());
    let Some(fake) = Driver::start("E2B_PYTHON", script, &["fake"])? else { return Ok(()) };
    let Some(gateway) = Driver::start("E2B_PYTHON", script, &["gateway", &gateway, agent.uri()])? else {
        return Ok(());
    };
    let machine = agent.executor().await;
    let contestants = vec![
        Contestant::new("bash -l -c true: Rust client", || timed(log_in(&machine))),
        Contestant::new("commands.run(\"true\"): a fake server", || fake.ask("run")),
        Contestant::new("commands.run(\"true\"): telexec-e2b", || gateway.ask("run")).agent(agent.pid()),
    ];
    let [direct, fake, gateway] = &contest(plan, table, 300, contestants).await?[..] else { return Ok(()) };
    let added = Row::new("added by telexec-e2b and the agent", Unit::Microseconds, gateway.median - fake.median);
    table.add(added.beside("bash -l -c true: Rust client", direct.median).aim(Aim::RatioAtMost(2.0)));
    Ok(())
}
