//! `telexec-nats`, with a NATS server and the client in Python, unmodified: see integrations/nats/tests.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use telexec_tests::program;
use tokio::process::Command;
use tokio::time::timeout;

/// Some twenty agents start, and the server is killed.
const LIMIT: Duration = Duration::from_secs(420);

async fn script(name: &str, also: &[&str]) -> String {
    let python = std::env::var("NATS_PYTHON").expect("tests/run sets it");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("integrations/nats/tests");
    let mut script = Command::new(&python);
    script.arg(tests.join(name)).arg(program("telexec-nats").parent().unwrap());
    script.arg(Path::new(&python).with_file_name("nats-server")).args(also);
    script.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(LIMIT, script.output()).await.expect("it hangs").unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    said.into_owned()
}

#[tokio::test]
async fn each_promise_holds() {
    let said = script("each.py", &[]).await;
    assert!(
        ["usual", "signed", "labelled", "secured"].iter().all(|part| said.contains(&format!("{part} holds"))),
        "{said}"
    );
}

#[tokio::test]
async fn telexec_reaches_agents_by_way_of_the_server() {
    let said = script("cli.py", &[]).await;
    assert!(said.contains("faults hold") && said.contains("signatures hold"), "{said}");
}

#[tokio::test]
async fn many_commands_run_once_each_while_all_programs_are_killed() {
    let said = script("many.py", &["2000", "20"]).await;
    assert!(said.contains("2000 commands on 20 agents"), "{said}");
}
