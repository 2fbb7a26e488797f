//! How fast output goes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{ChildStdout, Command as Program, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use rustix::pipe::fcntl_setpipe_size;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use telexec_client::RemoteExecutor;
use telexec_executor::{Attach, Command, Event, Execution, Executor, OnDisconnect};
use telexec_tests::{Agent, Certs, Sshd, bench_agent};

use crate::machine::{cpu_of, own_cpu, peak_mebibytes};
use crate::rate::median;
use crate::table::{Aim, Baseline, Row, Table, Unit};
use crate::{Plan, Result};

const MEBIBYTE: u64 = 1024 * 1024;
/// As the agent reads and enlarges pipes.
const CHUNK_BYTES: usize = 64 * 1024;
const PIPE_BYTES: usize = 256 * 1024;
/// What is kept of an execution in the background, unless configured.
const REPLAYED: u64 = 63 * MEBIBYTE;
const PARALLEL: u64 = 8;

/// One way of carrying the bytes of `head -c N /dev/zero` to this process.
struct Way {
    name: &'static str,
    /// The way that it is compared with.
    base: Option<&'static str>,
    aim: Option<f64>,
    agent: Option<i32>,
    speeds: Vec<f64>,
    cpu: [f64; 2],
}

impl Way {
    fn new(name: &'static str) -> Self {
        Self { name, base: None, aim: None, agent: None, speeds: Vec::new(), cpu: [0.0; 2] }
    }

    fn of(self, agent: &Agent) -> Self {
        Self { agent: Some(agent.pid()), ..self }
    }

    fn beside(self, base: &'static str, aim: impl Into<Option<f64>>) -> Self {
        Self { base: Some(base), aim: aim.into(), ..self }
    }

    fn cpu_now(&self) -> [f64; 2] {
        [self.agent.map(cpu_of).unwrap_or_default(), own_cpu()].map(|time| time.as_secs_f64())
    }

    async fn go(&mut self, bytes: u64, carry: impl Future<Output = Result<u64>>) -> Result<()> {
        let (before, begin) = (self.cpu_now(), Instant::now());
        let carried = carry.await?;
        let time = begin.elapsed().as_secs_f64();
        if carried != bytes {
            return Err(format!("{}: {carried} bytes of {bytes}", self.name).into());
        }
        let mebibytes = bytes as f64 / MEBIBYTE as f64;
        self.speeds.push(mebibytes / time);
        let after = self.cpu_now();
        for (sum, (before, after)) in self.cpu.iter_mut().zip(before.into_iter().zip(after)) {
            *sum += (after - before) * 1e6 / mebibytes;
        }
        Ok(())
    }

    fn row(&self, ways: &[Self]) -> Row {
        let speed = median(&mut self.speeds.clone());
        let mut row = Row::new(self.name, Unit::MebibytesPerSecond, speed);
        if let Some(base) = ways.iter().find(|way| Some(way.name) == self.base) {
            let mut ratios: Vec<f64> = self.speeds.iter().zip(&base.speeds).map(|(a, b)| a / b).collect();
            let value = median(&mut base.speeds.clone());
            row.baseline = Some(Baseline { name: base.name.to_owned(), value, ratio: median(&mut ratios) });
        }
        row.aim = self.aim.map(Aim::RatioAtLeast);
        // of each MiB
        row.cpu = self.agent.map(|_| self.cpu.map(|sum| sum / self.speeds.len() as f64));
        row.peak = self.agent.map(peak_mebibytes);
        row
    }
}

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
        Way::new("mTLS, and ssh").of(&mtls).beside("ssh, aes128-gcm", 2.0),
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
    for way in &ways {
        table.add(way.row(&ways));
    }
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

fn read_all(mut from: impl Read) -> Result<u64> {
    let (mut buffer, mut bytes) = (vec![0; CHUNK_BYTES], 0);
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(bytes),
            read => bytes += read as u64,
        }
    }
}

fn relay(mut from: impl Read, mut to: impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match from.read(&mut buffer)? {
            0 => return to.flush(),
            read => to.write_all(buffer.get(..read).unwrap_or_default())?,
        }
    }
}

fn relay_unix(bytes: u64) -> Result<u64> {
    let (here, there) = UnixStream::pair()?;
    let pipe = source(bytes)?;
    thread::scope(|scope| {
        scope.spawn(|| relay(pipe, there));
        read_all(here)
    })
}

fn connected() -> Result<[std::net::TcpStream; 2]> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let here = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (there, _) = listener.accept()?;
    there.set_nodelay(true)?;
    Ok([here, there])
}

fn relay_tcp(bytes: u64) -> Result<u64> {
    let [here, there] = connected()?;
    let pipe = source(bytes)?;
    thread::scope(|scope| {
        scope.spawn(|| relay(pipe, there));
        read_all(here)
    })
}

fn relay_tls(bytes: u64, certs: &Certs) -> Result<u64> {
    let chain = CertificateDer::pem_file_iter(&certs.agent.cert)?.collect::<std::result::Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(&certs.agent.key)?;
    let server = rustls::ServerConfig::builder_with_provider(certs.config(None).crypto_provider().clone())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    let client = rustls::ClientConnection::new(certs.config(None), ServerName::try_from("localhost")?)?;
    let server = rustls::ServerConnection::new(Arc::new(server))?;
    let [here, there] = connected()?;
    let pipe = source(bytes)?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = rustls::StreamOwned::new(server, there);
            relay(pipe, &mut stream)?;
            stream.conn.send_close_notify();
            stream.flush()
        });
        read_all(rustls::StreamOwned::new(client, here))
    })
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

async fn read_execution(mut execution: Execution) -> Result<u64> {
    let mut bytes = 0;
    while let Some(event) = execution.next().await {
        if let Event::Output(output) = event? {
            bytes += output.data.len() as u64;
        }
    }
    Ok(bytes)
}
