//! Dask, unmodified, on machines with agents: see client/python/telexec/dask.py.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use telexec_tests::{Agent, MARK, marker, processes_with, program, until};
use tokio::process::Command;
use tokio::time::timeout;

/// A dozen Python processes start.
const LIMIT: Duration = Duration::from_secs(240);

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_is_computed_while_an_agent_is_killed() {
    let (one, two) = (Agent::start(), Agent::start());
    let (mark, directory) = (marker(), tempfile::tempdir().unwrap());
    let config = directory.path().join("telexec.toml");
    let text = format!("[targets.one]\naddress = '{}'\n[targets.two]\naddress = '{}'\n", one.uri(), two.uri());
    std::fs::write(&config, text).unwrap();
    let python = std::env::var_os("DASK_PYTHON").expect("tests/run sets it");
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("client/python");
    let path = format!("{}:{}", program("telexec").parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut cluster = Command::new(python);
    cluster.arg(package.join("tests/dask_cluster.py")).arg(two.pid().to_string());
    cluster.args(["-e", &format!("{MARK}={mark}")]).env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1");
    cluster.env("TELEXEC_CONFIG", &config).env("PATH", path).current_dir(directory.path());
    cluster.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = timeout(LIMIT, cluster.output()).await.expect("it hangs").unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("computed, replaced, closed"), "{said}");
    // also where the agent was killed
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}
