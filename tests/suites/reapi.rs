//! `telexec-reapi`, with BuildGrid, PostgreSQL and Bazel, unmodified: see integrations/reapi/tests.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use telexec_tests::program;
use tokio::process::Command;
use tokio::time::timeout;

/// A server in Python and a database start, and programs are killed.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a script, which says that each of its parts holds.
async fn script(name: &str, also: &[String], parts: &[&str]) {
    let python = std::env::var("REAPI_PYTHON").expect("tests/run sets it");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("integrations/reapi/tests");
    let mut script = Command::new(&python);
    script.arg(tests.join(name)).arg(program("telexec-reapi").parent().unwrap()).args(also);
    script.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(LIMIT, script.output()).await.expect("it hangs").unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(parts.iter().all(|part| said.contains(&format!("{part} holds"))), "{said}");
}

#[tokio::test]
async fn bazel_builds_on_agents_whatever_is_killed() {
    let bazel = std::env::var("BAZEL").expect("tests/run sets it");
    script("builds.py", &[bazel], &["builds", "caches", "cancels", "survives"]).await;
}

#[tokio::test]
async fn actions_do_what_they_say_and_faults_have_their_status() {
    let parts = ["outputs", "sizes", "ends", "refusals", "platforms", "missing", "altered", "losses"];
    script("faults.py", &[], &parts).await;
}

#[tokio::test]
async fn a_hostile_server_gets_errors() {
    script("protocol.py", &[], &["payloads", "storages", "sessions", "directories", "flags", "functions", "secured"])
        .await;
}
