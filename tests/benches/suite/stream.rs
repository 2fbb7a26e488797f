//! How fast output goes.

use std::os::unix::net::UnixStream;
use std::process::{ChildStdout, Command as Program, Stdio};
use std::thread;

use futures_util::{StreamExt, TryStreamExt, stream};
use rustix::pipe::fcntl_setpipe_size;
use telexec_client::RemoteExecutor;
use telexec_executor::{Attach, Command, Event, Execution, Executor, OnDisconnect};
use telexec_tests::{Certs, Sshd, bench_agent};

use crate::relay::{connected, over_tls, read_all, relay};
use crate::table::Table;
use crate::way::{MEBIBYTE, Way};
use crate::{Plan, Result};

/// As the agent enlarges pipes.
const PIPE_BYTES: usize = 256 * 1024;
/// What is kept of an execution in the background, unless configured.
const REPLAYED: u64 = 63 * MEBIBYTE;
const PARALLEL: u64 = 8;

/// One stream, eight of them, and a replay; the limit is a relay that reads the pipe, writes a socket and reads it.
pub(crate) async fn streams(plan: &Plan, table: &mut Table) -> Result<()> {
    let (certs, ssh) = (Certs::new(), Sshd::missing(&[]).is_none().then(|| Sshd::start(1)).transpose()?);
    let [unix, tcp, mtls] = [bench_agent(), bench_agent().tcp(), bench_agent().mtls(&certs)].map(|it| it.start());
    let machines = [unix.executor().await, tcp.executor().await, mtls.executor().await];
    let bytes = plan.some(2000) as u64 * MEBIBYTE;
    let mut ways = vec![
        Way::new("pipe"),
        Way::new("relay, unix socket").beside("pipe", None),
        Way::new("relay, TCP").beside("pipe", None),
        Way::new("relay, TLS").beside("pipe", None),
        Way::new("ssh, aes128-gcm").beside("relay, TLS", None),
        Way::new("unix socket").of(&unix).beside("relay, unix socket", 0.75),
        Way::new("TCP").of(&tcp).beside("relay, TCP", None),
        Way::new("mTLS").of(&mtls).beside("relay, TLS", 0.85),
        Way::new("mTLS, and ssh").of(&mtls).beside("ssh, aes128-gcm", 2.5),
        Way::new("8 streams, unix socket").of(&unix).beside("relay, unix socket", None),
        Way::new("8 streams, mTLS").of(&mtls).beside("relay, TLS", None),
        Way::new("replay of 63 MiB, unix socket").of(&unix).beside("relay, unix socket", None),
        Way::new("replay of 63 MiB, mTLS").of(&mtls).beside("relay, TLS", None),
    ];
    if ssh.is_none() {
        println!("  not compared with ssh: {}", Sshd::missing(&[]).unwrap_or_default());
        ways.retain(|way| !way.name.contains("ssh"));
    }
    let kept = [keep(&machines[0]).await?, keep(&machines[2]).await?];
    let [kept_unix, kept_mtls] = &kept;
    for _ in 0..if plan.short { 1 } else { 5 } {
        for way in &mut ways {
            match way.name {
                "pipe" => way.go(bytes, async { read_all(source(bytes)?) }).await?,
                "relay, unix socket" => way.go(bytes, async { relay_unix(bytes) }).await?,
                "relay, TCP" => way.go(bytes, async { relay_tcp(bytes) }).await?,
                "relay, TLS" => way.go(bytes, async { relay_tls(bytes, &certs) }).await?,
                "ssh, aes128-gcm" => way.go(bytes, async { over_ssh(bytes, ssh.as_ref()) }).await?,
                "unix socket" => way.go(bytes, execute(&machines[0], bytes)).await?,
                "TCP" => way.go(bytes, execute(&machines[1], bytes)).await?,
                "mTLS" | "mTLS, and ssh" => way.go(bytes, execute(&machines[2], bytes)).await?,
                "8 streams, unix socket" => way.go(bytes, in_parallel(&machines[0], bytes)).await?,
                "8 streams, mTLS" => way.go(bytes, in_parallel(&machines[2], bytes)).await?,
                "replay of 63 MiB, unix socket" => way.go(REPLAYED, replay(&machines[0], kept_unix)).await?,
                _ => way.go(REPLAYED, replay(&machines[2], kept_mtls)).await?,
            }
        }
    }
    Way::add_all(&ways, table);
    Ok(())
}

fn argv(bytes: u64) -> [String; 4] {
    ["head".to_owned(), "-c".to_owned(), bytes.to_string(), "/dev/zero".to_owned()]
}

/// The pipe of the same command here.
fn source(bytes: u64) -> Result<ChildStdout> {
    let [program, arguments @ ..] = argv(bytes);
    let mut child = Program::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let pipe = child.stdout.take().ok_or("no pipe")?;
    fcntl_setpipe_size(&pipe, PIPE_BYTES)?;
    // it ends by itself, and is waited for there
    thread::spawn(move || child.wait());
    Ok(pipe)
}

fn relay_unix(bytes: u64) -> Result<u64> {
    let (here, there) = UnixStream::pair()?;
    let pipe = source(bytes)?;
    thread::scope(|scope| {
        scope.spawn(|| relay(pipe, there));
        read_all(here)
    })
}

fn relay_tcp(bytes: u64) -> Result<u64> {
    let [here, there] = connected()?;
    let pipe = source(bytes)?;
    thread::scope(|scope| {
        scope.spawn(|| relay(pipe, there));
        read_all(here)
    })
}

/// One stream by TLS.
pub(crate) fn relay_tls(bytes: u64, certs: &Certs) -> Result<u64> {
    over_tls(certs, source(bytes)?, read_all)
}

fn over_ssh(bytes: u64, sshd: Option<&Sshd>) -> Result<u64> {
    let mut ssh = sshd.ok_or("no sshd")?.ssh(1, true);
    let mut child = ssh.args(argv(bytes)).stdout(Stdio::piped()).spawn()?;
    let read = read_all(child.stdout.take().ok_or("no pipe")?);
    child.wait()?;
    read
}

async fn execute(machine: &RemoteExecutor, bytes: u64) -> Result<u64> {
    read_execution(machine.execute(Command::argv(argv(bytes)).build()?).await?).await
}

async fn in_parallel(machine: &RemoteExecutor, bytes: u64) -> Result<u64> {
    let parts = (0..PARALLEL).map(|_| execute(machine, bytes / PARALLEL));
    let parts: Vec<u64> = stream::iter(parts).buffer_unordered(PARALLEL as usize).try_collect().await?;
    Ok(parts.iter().sum())
}

/// An execution that has ended, and whose output the agent keeps.
async fn keep(machine: &RemoteExecutor) -> Result<telexec_executor::ExecutionId> {
    let command = Command::argv(argv(REPLAYED)).on_disconnect(OnDisconnect::Detach).build()?;
    let execution = machine.execute(command).await?;
    let id = execution.id().clone();
    read_execution(execution).await?;
    Ok(id)
}

async fn replay(machine: &RemoteExecutor, id: &telexec_executor::ExecutionId) -> Result<u64> {
    read_execution(machine.attach(id, Attach::start()).await?).await
}

/// How many bytes it printed.
pub(crate) async fn read_execution(mut execution: Execution) -> Result<u64> {
    let mut bytes = 0;
    while let Some(event) = execution.next().await {
        if let Event::Output(output) = event? {
            bytes += output.data.len() as u64;
        }
    }
    Ok(bytes)
}
