//! The clients in other languages that `client/examples` shows.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use telexec_tests::{Agent, Certs, Proxy, marker, processes_with, until, within};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// An agent on a Unix socket and one with mTLS, and the examples as a reader would have them.
struct Examples {
    unix: Agent,
    mtls: Agent,
    certs: Certs,
    /// What the Python example imports.
    stubs: TempDir,
}

impl Examples {
    async fn new() -> Self {
        let certs = Certs::new();
        let (unix, mtls) = (Agent::start(), Agent::builder().mtls(&certs).start());
        let stubs = tempfile::tempdir().unwrap();
        let mut protoc = Command::new(python());
        protoc.args(["-m", "grpc_tools.protoc", "-I"]).arg(workspace().join("proto"));
        protoc.arg(format!("--python_out={}", stubs.path().display()));
        protoc.arg(format!("--grpc_python_out={}", stubs.path().display()));
        assert!(within(protoc.arg("telexec/v1/execution.proto").status()).await.unwrap().success());
        Self { unix, mtls, certs, stubs }
    }

    /// Each example against each agent, with these arguments behind the target.
    fn all<'a>(&'a self, arguments: &'a [&'a str]) -> impl Iterator<Item = Command> + 'a {
        [&self.unix, &self.mtls].into_iter().flat_map(move |agent| {
            let target = if agent.uri().starts_with("unix:") { agent.uri() } else { agent.address() };
            self.against(target, arguments)
        })
    }

    fn against(&self, target: &str, arguments: &[&str]) -> [Command; 3] {
        let examples = workspace().join("client/examples");
        let mut python = Command::new(python());
        python.arg(examples.join("python/execute.py")).env("PYTHONPATH", self.stubs.path());
        let shell = Command::new(examples.join("shell/execute.sh"));
        let mut typescript = Command::new("node");
        typescript.arg(examples.join("typescript/build/execute.js"));
        [python, shell, typescript].map(|mut command| {
            command.arg(target).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.env("TELEXEC_CERT", &self.certs.client.cert).env("TELEXEC_KEY", &self.certs.client.key);
            command.env("TELEXEC_CA", self.certs.ca.cert()).env_remove("TELEXEC_SERVER_NAME");
            // Node.js says that names in certificates should not be addresses
            command.env("NODE_NO_WARNINGS", "1");
            command.kill_on_drop(true);
            command
        })
    }
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// One that has grpcio.
fn python() -> PathBuf {
    std::env::var_os("GRPC_PYTHON").expect("GRPC_PYTHON names no python: run tests/run, which makes one").into()
}

async fn output(mut command: Command) -> Output {
    within(command.output()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn output_and_exit_code_are_the_commands_own() {
    let examples = Examples::new().await;
    for command in examples.all(&["printf 'o\\0\\377\\n'; printf 'e\\377' >&2; exit 7"]) {
        let said = output(command).await;
        assert_eq!((&said.stdout[..], &said.stderr[..]), (&b"o\0\xff\n"[..], &b"e\xff"[..]), "{said:?}");
        assert_eq!(said.status.code(), Some(7));
    }
    for command in examples.all(&["seq 200000; kill -9 $$"]) {
        let said = output(command).await;
        let lines = String::from_utf8(said.stdout).unwrap();
        assert!(lines.lines().map(|line| line.parse::<u32>().unwrap()).eq(1..=200_000));
        assert_eq!(said.status.code(), Some(128 + 9));
    }
}

/// The one in TypeScript makes up for it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_connection_took_is_fetched_again() {
    let examples = Examples::new().await;
    let proxy = Proxy::before(&examples.unix).await;
    proxy.cut_each_after(300_000..600_000, fastrand::u64(..));
    let [_, _, typescript] = examples.against(proxy.uri(), &["seq 1000000; exit 7"]);
    let said = output(typescript).await;
    let lines = String::from_utf8(said.stdout).unwrap();
    assert!(lines.lines().map(|line| line.parse::<u32>().unwrap()).eq(1..=1_000_000), "{}", lines.len());
    assert_eq!(said.status.code(), Some(7));
    assert!(proxy.accepted() > 10, "{}", proxy.accepted());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_and_an_agent_out_of_reach_are_reported() {
    let examples = Examples::new().await;
    for command in examples.all(&[""]) {
        let said = output(command).await;
        assert_eq!(said.status.code(), Some(125), "{said:?}");
        assert!(String::from_utf8_lossy(&said.stderr).contains("give either command or argv"), "{said:?}");
    }
    for target in ["unix:///nothing", "127.0.0.1:1"] {
        for command in examples.against(target, &["true"]) {
            let said = output(command).await;
            assert_eq!(said.status.code(), Some(255), "{said:?}");
            assert!(said.stdout.is_empty() && !said.stderr.is_empty(), "{said:?}");
        }
    }
}

/// The signal goes to the whole group, as from a terminal.
#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_leaves_nothing() {
    let examples = Examples::new().await;
    let mark = marker();
    let text = format!("echo ready; setsid sh -c 'sleep 300' {mark} & sh -c 'sleep 300; true' {mark}");
    for mut command in examples.all(&[&text]) {
        let mut child = command.process_group(0).spawn().unwrap();
        let mut ready = [0; 6];
        within(child.stdout.as_mut().unwrap().read_exact(&mut ready)).await.unwrap();
        until("the command has started both", async || processes_with(&mark).len() >= 3).await;
        let group = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        kill_process_group(group, Signal::INT).unwrap();
        let status = within(child.wait()).await.unwrap();
        assert_eq!(status.code(), Some(130), "{status}");
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_it() {
    let examples = Examples::new().await;
    let mark = marker();
    for command in examples.all(&[&format!("echo before; setsid sh -c 'sleep 300' {mark} & sleep 300"), "2"]) {
        let said = output(command).await;
        assert_eq!((said.status.code(), &said.stdout[..]), (Some(124), &b"before\n"[..]), "{said:?}");
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
    }
}
