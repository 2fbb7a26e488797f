//! Connections to and from the network of an agent's machine: `telexec forward`, `telexec connect`, and
//! `ForwardService`.

mod as_user;
mod bytes;
mod ends;
mod faults;
mod listening;
mod programs;
mod ruled;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use telexec_client::{Dial, Endpoint};
use telexec_tests::{Agent, Certs, program, within};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;

/// An agent behind mTLS, and the flags that `telexec` calls it with.
struct Site {
    agent: Agent,
    certs: Certs,
}

impl Site {
    fn start(config: &str) -> Self {
        let certs = Certs::new();
        let agent = Agent::builder().mtls(&certs).config(config).start();
        Self { agent, certs }
    }

    fn telexec(&self, subcommand: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program("telexec"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TELEXEC_")) {
            command.env_remove(name);
        }
        let (pair, ca) = (&self.certs.client, self.certs.ca.cert());
        command.env("TELEXEC_CONFIG", "/dev/null").arg(subcommand);
        command.arg("--cert").arg(&pair.cert).arg("--key").arg(&pair.key).arg("--ca").arg(ca);
        command.arg(self.agent.address()).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// `telexec forward`, once everything listens.
    async fn forward(&self, args: &[&str]) -> Forward {
        let mut child = self.telexec("forward", args).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = Vec::new();
        for _ in args.iter().filter(|arg| arg.starts_with('-')) {
            let mut line = String::new();
            within(stdout.read_line(&mut line)).await.unwrap();
            assert!(line.ends_with('\n'), "{line:?}: {:?}", said(child).await);
            lines.push(line.trim_end().to_owned());
        }
        Forward { child, lines, _stdout: stdout }
    }
}

/// A running `telexec forward`.
struct Forward {
    child: Child,
    /// Such as `-L 127.0.0.1:4711 -> 127.0.0.1:80`.
    lines: Vec<String>,
    _stdout: BufReader<ChildStdout>,
}

impl Forward {
    /// Where the socket of a flag listens.
    fn at(&self, flag: usize) -> &str {
        self.lines[flag].split(' ').nth(1).unwrap()
    }

    async fn dial(&self, flag: usize) -> TcpStream {
        within(TcpStream::connect(self.at(flag))).await.unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().expect("it runs")).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }
}

/// The exit code and standard error of a program that ends.
async fn said(child: Child) -> (i32, String) {
    let output = within(child.wait_with_output()).await.unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8(output.stderr).unwrap())
}

/// Something that listens on a loopback port, and does this with each connection; ended when dropped.
struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    async fn start<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream));
            }
        });
        Self { address, task }
    }

    /// Sends back what it receives, as it comes.
    async fn echo() -> Self {
        Self::start(|mut stream| async move {
            let (mut reader, mut writer) = stream.split();
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        })
        .await
    }

    /// Answers only once all was received, with its length.
    async fn count() -> Self {
        Self::start(|mut stream| async move {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            stream.write_all(all.len().to_string().as_bytes()).await.unwrap();
        })
        .await
    }

    fn endpoint(&self) -> Endpoint {
        tcp(&self.address.to_string())
    }

    fn dial(&self) -> Dial {
        self.endpoint().into()
    }

    /// A flag's value that leads here from any port.
    fn on_any_port(&self) -> String {
        format!("0:{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn tcp(address: &str) -> Endpoint {
    let (host, port) = address.rsplit_once(':').unwrap();
    Endpoint::Tcp { host: host.to_owned(), port: port.parse().unwrap() }
}

/// Sends this, closes that direction, and reads the rest.
async fn exchange(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin, data: &[u8]) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(&mut stream);
    let send = async {
        writer.write_all(data).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let mut answer = Vec::new();
    within(async { tokio::join!(send, async { reader.read_to_end(&mut answer).await.unwrap() }) }).await;
    answer
}

/// A port that nothing listens on.
async fn unused() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// Closes it such that the other side sees a reset.
fn reset(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
}

/// Connects, and waits until that breaks; a reset may come before the connection is told of.
async fn refused(address: &str) -> std::io::ErrorKind {
    match within(TcpStream::connect(address)).await {
        Ok(mut stream) => broken(&mut stream).await,
        Err(error) => error.kind(),
    }
}

/// Reads until the connection breaks.
async fn broken(stream: &mut TcpStream) -> std::io::ErrorKind {
    let mut buffer = vec![0; 4096];
    loop {
        match within(stream.read(&mut buffer)).await {
            Ok(0) => panic!("it was closed, not reset"),
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

const SHORT: Duration = Duration::from_millis(50);
