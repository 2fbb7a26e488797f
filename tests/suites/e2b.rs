//! `telexec-e2b`, with E2B's SDK, unmodified: see integrations/e2b/tests.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use telexec_tests::program;
use tokio::process::Command;
use tokio::time::timeout;

/// Programs are killed, and agents given up.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a script, which says that each of its parts holds.
async fn script(name: &str, parts: &[&str]) {
    let python = std::env::var("E2B_PYTHON").expect("tests/run sets it");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("integrations/e2b/tests");
    let mut script = Command::new(&python);
    script.arg(tests.join(name)).arg(program("telexec-e2b").parent().unwrap());
    script.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(LIMIT, script.output()).await.expect("it hangs").unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(parts.iter().all(|part| said.contains(&format!("{part} holds"))), "{said}");
}

#[tokio::test]
async fn the_sdk_does_on_agents_what_it_says() {
    let parts = [
        "commands",
        "timeouts",
        "background",
        "stdin",
        "pty",
        "files",
        "directories",
        "watches",
        "urls",
        "lifecycle",
        "refusals",
        "kills",
    ];
    script("sync.py", &parts).await;
}

#[tokio::test]
async fn the_asynchronous_sdk_does_too() {
    script("aio.py", &["commands", "pty", "files", "lifecycle"]).await;
}

#[tokio::test]
async fn sandboxes_outlive_gateways_and_no_target_is_given_to_two() {
    script(
        "restarts.py",
        &["gateways", "agents", "pauses", "halves", "longest", "frozen", "weak", "idempotent", "homes", "pools"],
    )
    .await;
}

#[tokio::test]
async fn hostile_clients_get_errors() {
    let parts = [
        "messages",
        "envelopes",
        "streams",
        "callers",
        "creations",
        "uploads",
        "connections",
        "latecomers",
        "starters",
        "pauses",
        "closed",
        "hoards",
        "crowds",
        "unread",
        "listening",
        "pages",
        "floods",
    ];
    script("hostile.py", &parts).await;
}
