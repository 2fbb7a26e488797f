//! Commands that cannot be started.

use std::os::fd::AsRawFd;

use telexec_executor::{Command, CommandBuilder, ExecutionId, ExecutorError, SpawnError, SpawnStage};
use telexec_tests::{directory, executable, lines, marker, run};

use super::Machine;

async fn spawn_error(machine: &Machine, command: CommandBuilder) -> SpawnError {
    match run(machine, command.clone()).await {
        Err(ExecutorError::Spawn(error)) => error,
        other => panic!("{command:?}: {other:?}"),
    }
}

pub(super) async fn failed_starts_report_stage_and_error(machine: Machine) {
    let directory = directory();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    executable(directory.path(), "text", "no first line that names an interpreter\n");
    executable(directory.path(), "empty", "");
    std::os::unix::fs::symlink(path("loop"), path("loop")).unwrap();
    let inherited = std::fs::File::open(directory.path()).unwrap();
    let [exec, chdir] = [SpawnStage::Exec, SpawnStage::Chdir];
    let there = |path: &str| Command::argv(["true"]).working_directory(path);
    for (command, stage, errno) in [
        (Command::argv(["/no/such/program"]), exec, "ENOENT"),
        (Command::argv(["no-such-program-at-all"]), exec, "ENOENT"),
        (Command::argv(["/etc/passwd/program"]), exec, "ENOTDIR"),
        (Command::argv(["/etc/passwd"]), exec, "EACCES"),
        (Command::argv(["/usr"]), exec, "EACCES"),
        (Command::argv([path("text")]), exec, "ENOEXEC"),
        (Command::argv([path("empty")]), exec, "ENOEXEC"),
        (Command::argv([path("loop")]), exec, "ELOOP"),
        (Command::argv([format!("/{}", "x".repeat(5000))]), exec, "ENAMETOOLONG"),
        (Command::argv(["true".into(), "x".repeat(200_000)]), exec, "E2BIG"),
        (Command::shell("true").shell("/no/such/shell"), exec, "ENOENT"),
        (Command::shell("true").shell("no-such-shell"), exec, "ENOENT"),
        (Command::shell("true").shell("/etc/passwd"), exec, "EACCES"),
        (there("/no/such/directory"), chdir, "ENOENT"),
        (there("/etc/passwd"), chdir, "ENOTDIR"),
        (there("/proc/self/fd/9"), chdir, "ENOENT"),
        (there(&format!("/proc/self/fd/{}", inherited.as_raw_fd())), chdir, "ENOENT"),
        (there(&path("loop")), chdir, "ELOOP"),
    ] {
        let error = spawn_error(&machine, command.clone()).await;
        assert_eq!((error.stage, &*error.errno_name()), (stage, errno), "{command:?}");
        assert!(!error.missing_interpreter && error.to_string().contains(&error.subject), "{error}");
    }
}

pub(super) async fn a_missing_interpreter_is_not_a_missing_program(machine: Machine) {
    let directory = directory();
    let program = executable(directory.path(), "script", "#!/no/such/interpreter\n");
    let error = spawn_error(&machine, Command::argv([program.to_str().unwrap()])).await;
    assert!(error.missing_interpreter && error.stage == SpawnStage::Exec, "{error:?}");
    assert!(error.to_string().contains("interpreter"), "{error}");
}

pub(super) async fn a_program_that_is_being_written_is_busy(machine: Machine) {
    let directory = directory();
    let program = executable(directory.path(), "program", std::fs::read("/bin/true").unwrap());
    let _written = std::fs::OpenOptions::new().append(true).open(&program).unwrap();
    match std::process::Command::new(&program).spawn() {
        Ok(mut child) => {
            child.wait().unwrap();
            eprintln!("skipped: this kernel runs programs that are being written (Linux 6.11 and 6.12 do)");
        }
        Err(_) => {
            let error = spawn_error(&machine, Command::argv([program.to_str().unwrap()])).await;
            assert_eq!((error.stage, &*error.errno_name()), (SpawnStage::Exec, "ETXTBSY"));
        }
    }
}

pub(super) async fn a_failed_start_leaves_no_trace(machine: Machine) {
    let directory = directory();
    let trace = directory.path().join("trace");
    let text = format!("echo ran >> {}", trace.display());
    let id: ExecutionId = marker().parse().unwrap();
    let missing = Command::shell(&text).working_directory("/no/such/directory").execution_id(id.clone());
    spawn_error(&machine, missing).await;
    assert!(matches!(machine.get(&id).await, Err(ExecutorError::NotFound(_))));
    assert!(lines(&trace).is_empty());
    // the id is still free
    run(&machine, Command::shell(&text).execution_id(id)).await.unwrap();
    assert_eq!(lines(&trace), ["ran"]);
}
