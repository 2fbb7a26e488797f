//! The package for Python, unmodified, from its wheel: see client/python/tests.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use telexec_tests::program;
use tokio::process::Command;
use tokio::time::timeout;

/// Agents and dozens of Python processes start.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs the tests of a file.
async fn tests(name: &str) {
    let python = std::env::var("TELEXEC_PYTHON").expect("tests/run sets it");
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("client/python");
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest", "--quiet"]).arg(package.join("tests").join(name)).current_dir(&package);
    // the package is the installed one, not the sources there
    pytest.env("PYTHONSAFEPATH", "1").env("PYTHONDONTWRITEBYTECODE", "1");
    pytest.env("TELEXEC_PROGRAMS", program("telexec").parent().unwrap());
    let output =
        timeout(LIMIT, pytest.stdin(Stdio::null()).kill_on_drop(true).output()).await.expect("it hangs").unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(" passed"), "{said}");
}

#[tokio::test]
async fn commands_run() {
    tests("test_run.py").await;
}

#[tokio::test]
async fn commands_are_followed() {
    tests("test_execution.py").await;
}

#[tokio::test]
async fn asyncio_is_the_same() {
    tests("test_aio.py").await;
}

#[tokio::test]
async fn files_are_read_and_written() {
    tests("test_files.py").await;
}

#[tokio::test]
async fn connections_are_forwarded() {
    tests("test_forward.py").await;
}

#[tokio::test]
async fn a_fleet_runs_a_command() {
    tests("test_fleet.py").await;
}

#[tokio::test]
async fn errors_name_arguments_in_the_words_of_the_package() {
    tests("test_errors.py").await;
}

#[tokio::test]
async fn values_and_exceptions_are_copied() {
    tests("test_values.py").await;
}

#[tokio::test]
async fn programs_end_and_fork() {
    tests("test_process.py").await;
}

#[tokio::test]
async fn lost_connections_are_made_up_for() {
    tests("test_loss.py").await;
}

#[tokio::test]
async fn users_code_is_typed() {
    tests("test_typing.py").await;
}

#[tokio::test]
async fn the_examples_of_the_readme_run() {
    tests("test_readme.py").await;
}

#[tokio::test]
async fn inspects_own_checks_pass() {
    tests("test_inspect.py").await;
}
