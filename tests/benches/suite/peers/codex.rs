//! codex's exec server: JSON-RPC over WebSocket, without encryption.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command as Program, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::future::LocalBoxFuture;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_websockets::{ClientBuilder, Message, WebSocketStream};

use super::Peer;
use super::processes::version;
use crate::Result;

/// The binary that the environment variable `CODEX` names.
pub(super) fn start() -> Result<impl Peer> {
    let program = std::env::var("CODEX").map_err(|_| "CODEX does not name the binary")?;
    let version = version(&program, "--version")?;
    let home = tempfile::tempdir()?;
    let mut codex = Program::new(&program);
    codex.args(["exec-server", "--listen", "ws://127.0.0.1:0"]).env("CODEX_HOME", home.path());
    let mut server = codex.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut stdout = BufReader::new(server.stdout.take().ok_or("no standard output")?);
    let mut url = String::new();
    stdout.read_line(&mut url)?;
    Ok(Codex { version, url: url.trim_end().to_owned(), idle: Mutex::default(), server, _stdout: stdout, _home: home })
}

/// The server, and connections to it. Dropping it ends the server.
struct Codex {
    version: String,
    url: String,
    /// Each runs one command at a time.
    idle: Mutex<Vec<Connection>>,
    server: Child,
    /// Open, for what it may still print.
    _stdout: BufReader<ChildStdout>,
    _home: TempDir,
}

struct Connection {
    socket: WebSocketStream<TcpStream>,
    requests: u64,
}

impl Codex {
    async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(self.url.trim_start_matches("ws://")).await?;
        stream.set_nodelay(true)?;
        let (socket, _) = ClientBuilder::new().uri(&self.url)?.connect_on(stream).await?;
        let mut connection = Connection { socket, requests: 0 };
        connection.call("initialize", json!({ "clientName": "telexec-bench" })).await?;
        connection.send(json!({ "method": "initialized", "params": {} })).await?;
        Ok(connection)
    }

    /// One that is open, or a new one.
    async fn connection(&self) -> Result<Connection> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(connection) => Ok(connection),
            None => self.connect().await,
        }
    }

    fn put_back(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

impl Connection {
    async fn send(&mut self, message: Value) -> Result<()> {
        Ok(self.socket.send(Message::text(message.to_string())).await?)
    }

    async fn receive(&mut self) -> Result<Value> {
        while let Some(message) = self.socket.next().await {
            // others are pings
            if let Some(text) = message?.as_text() {
                return Ok(serde_json::from_str(text)?);
            }
        }
        Err("it closed the connection".into())
    }

    /// Until it is answered.
    async fn call(&mut self, method: &str, params: Value) -> Result<()> {
        self.requests += 1;
        let id = self.requests;
        self.send(json!({ "id": id, "method": method, "params": params })).await?;
        loop {
            let message = self.receive().await?;
            if message.get("id").and_then(Value::as_u64) == Some(id) {
                return match message.get("error") {
                    Some(error) => Err(format!("{method}: {error}").into()),
                    None => Ok(()),
                };
            }
        }
    }

    /// The name of the process.
    async fn start(&mut self, argv: &[&str]) -> Result<String> {
        let name = format!("bench-{}", self.requests);
        let params = json!({
            "processId": name,
            "argv": argv,
            "cwd": "file:///",
            "env": { "PATH": "/usr/bin:/bin" },
            "tty": false,
            "pipeStdin": false,
            "arg0": null,
        });
        self.call("process/start", params).await?;
        Ok(name)
    }

    /// How many bytes it printed.
    async fn run(&mut self, argv: &[&str]) -> Result<u64> {
        let name = self.start(argv).await?;
        self.until_closed(&name).await
    }

    async fn until_closed(&mut self, name: &str) -> Result<u64> {
        let mut bytes = 0;
        loop {
            let message = self.receive().await?;
            let Some(params) = message.get("params").filter(|params| params["processId"] == name) else { continue };
            match message.get("method").and_then(Value::as_str) {
                Some("process/output") => {
                    let chunk = params["chunk"].as_str().ok_or("output without a chunk")?;
                    bytes += BASE64_STANDARD.decode(chunk)?.len() as u64;
                }
                Some("process/closed") => return Ok(bytes),
                _ => {}
            }
        }
    }
}

impl Peer for Codex {
    fn name(&self) -> &'static str {
        "codex exec-server"
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn run<'a>(&'a self, argv: &'a [&'a str]) -> LocalBoxFuture<'a, Result<u64>> {
        Box::pin(async {
            let mut connection = self.connection().await?;
            let bytes = connection.run(argv).await?;
            self.put_back(connection);
            Ok(bytes)
        })
    }

    fn run_anew<'a>(&'a self, argv: &'a [&'a str]) -> LocalBoxFuture<'a, Result<u64>> {
        Box::pin(async { self.connect().await?.run(argv).await })
    }

    fn until_started(&self) -> Option<LocalBoxFuture<'_, Result<Duration>>> {
        Some(Box::pin(async {
            let mut connection = self.connection().await?;
            let begin = Instant::now();
            let name = connection.start(&["sleep", "1000"]).await?;
            let time = begin.elapsed();
            connection.send(json!({ "id": 0, "method": "process/terminate", "params": { "processId": name } })).await?;
            connection.until_closed(&name).await?;
            self.put_back(connection);
            Ok(time)
        }))
    }
}

impl Drop for Codex {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
