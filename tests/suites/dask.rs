//! Dask, unmodified, on machines with agents: see client/python/telexec/dask.py.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use telexec_tests::{Agent, MARK, marker, processes_with, program, until};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

/// A dozen Python processes start.
const LIMIT: Duration = Duration::from_secs(240);

/// Two agents, which are targets.
struct Site {
    _one: Agent,
    two: Agent,
    mark: String,
    directory: TempDir,
}

impl Site {
    fn new() -> Self {
        let (one, two) = (Agent::start(), Agent::start());
        let directory = tempfile::tempdir().unwrap();
        let text = format!("[targets.one]\naddress = '{}'\n[targets.two]\naddress = '{}'\n", one.uri(), two.uri());
        std::fs::write(directory.path().join("telexec.toml"), text).unwrap();
        Self { _one: one, two, mark: marker(), directory }
    }

    /// client/python/tests/dask_cluster.py
    fn cluster(&self, what: &str) -> Command {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("client/python");
        let path = format!("{}:{}", program("telexec").parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut cluster = Command::new(std::env::var_os("DASK_PYTHON").expect("tests/run sets it"));
        cluster.arg(package.join("tests/dask_cluster.py")).args([what, "-e", &format!("{MARK}={}", self.mark)]);
        cluster.env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1").env("PATH", path);
        cluster.env("TELEXEC_CONFIG", self.directory.path().join("telexec.toml")).current_dir(self.directory.path());
        cluster.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        cluster
    }

    async fn nothing_is_left(&self) {
        until("nothing is left", async || processes_with(&self.mark).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_is_computed_while_an_agent_is_killed() {
    let site = Site::new();
    let output = site.cluster(&site.two.pid().to_string()).output();
    let output = timeout(LIMIT, output).await.expect("it hangs").unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("computed, replaced, closed"), "{said}");
    // also where the agent was killed
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_told_to_end_while_it_exits_has_succeeded() {
    let site = Site::new();
    let output = timeout(LIMIT, site.cluster("late").output()).await.expect("it hangs").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_killed_leaves_no_cluster() {
    let site = Site::new();
    let mut cluster = site.cluster("wait").stderr(Stdio::inherit()).spawn().unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(cluster.stdout.take().unwrap());
    timeout(LIMIT, said.read_line(&mut line)).await.expect("it hangs").unwrap();
    assert_eq!(line, "running\n");
    cluster.kill().await.unwrap();
    site.nothing_is_left().await;
}
