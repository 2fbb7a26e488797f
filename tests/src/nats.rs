//! A NATS server that all tests of this process share, and `telexec-nats` beside an agent.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use telexec_nats_client::{Nats, NatsAgent, NatsExecutor, NatsTarget, Options, Settings};
use tempfile::TempDir;

use crate::{Agent, program, until};

/// Ends with its standard input: with the tests, however they end.
const SERVE: &str = r#""$@" >"$0/log" 2>&1 & server=$!; cat; kill -9 $server; wait; rm -r "$0""#;

/// The program, which `tests/run` installs; `None`: it is not there.
pub fn nats_server() -> Option<PathBuf> {
    std::env::var_os("NATS_PYTHON").map(|python| PathBuf::from(python).with_file_name("nats-server"))
}

/// The host and port of the shared server.
///
/// # Panics
/// It does not start.
async fn shared_server() -> Option<String> {
    static SERVER: OnceLock<Option<(Child, PathBuf)>> = OnceLock::new();
    let started = SERVER.get_or_init(|| {
        let server = nats_server()?;
        let directory = TempDir::new().unwrap().keep();
        let mut command = Command::new("sh");
        command.args(["-c", SERVE]).arg(&directory).arg(server).args(["-js", "-sd"]).arg(&directory);
        command.args(["-a", "127.0.0.1", "-p", "-1", "--ports_file_dir"]).arg(&directory);
        Some((command.stdin(Stdio::piped()).spawn().unwrap(), directory))
    });
    let (_, directory) = started.as_ref()?;
    let mut address = None;
    until("the NATS server listens", async || {
        address = listening(directory);
        address.is_some()
    })
    .await;
    address
}

/// What its file of ports says.
fn listening(directory: &Path) -> Option<String> {
    let mut files = directory.read_dir().ok()?.flatten().map(|entry| entry.path());
    let ports = files.find(|path| path.extension().is_some_and(|extension| extension == "ports"))?;
    let ports: serde_json::Value = serde_json::from_slice(&std::fs::read(ports).ok()?).ok()?;
    ports["nats"][0].as_str()?.strip_prefix("nats://").map(str::to_owned)
}

/// `telexec-nats` beside an agent, and a connection by way of it; the program ends when this is dropped.
pub struct ByNats {
    bridge: Child,
    agent: NatsAgent,
}

impl ByNats {
    /// `None`: there is no NATS server.
    ///
    /// # Panics
    /// The agent cannot be reached.
    pub async fn connect(agent: &Agent) -> Option<Self> {
        let server = shared_server().await?;
        let name = format!("agent-{}", agent.pid());
        let target: NatsTarget = format!("nats://{server}/{name}").parse().unwrap();
        let mut command = Command::new(program("telexec-nats"));
        command.args(["--url", &target.url(), "--target", agent.uri(), "--name", &name]);
        let bridge = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let nats = Nats::connect(&target.url(), &Settings::default(), None, Duration::from_secs(10)).await.unwrap();
        let nats = Arc::new(nats);
        let mut connected = None;
        until("telexec-nats answers", async || {
            connected = NatsAgent::connect(Arc::clone(&nats), &target, Options::default()).await.ok();
            connected.is_some()
        })
        .await;
        connected.map(|agent| Self { bridge, agent })
    }
}

impl ByNats {
    /// The agent's machine.
    pub fn executor(&self) -> NatsExecutor {
        self.agent.executor()
    }
}

impl Drop for ByNats {
    fn drop(&mut self) {
        let _ = self.bridge.kill();
        let _ = self.bridge.wait();
    }
}
