//! Tests of what belongs to a whole process.

use std::process::Command;

/// Set where the test is alone.
const ALONE: &str = "TELEXEC_ALONE";

/// Runs a test in a process of its own, where no other test opens files, has children or handles signals, and whose
/// temporary directory is its own. `name` is the test's full name, such as `library::the_test`.
///
/// # Panics
/// The test fails.
pub fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(ALONE, "1").env("TMPDIR", directory.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    // such as that something was skipped
    eprint!("{text}");
}
