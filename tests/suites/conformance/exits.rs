//! How a command ends by itself.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use telexec_executor::{Command, ExecutionState, ExitCause};
use telexec_tests::{directory, run, until, until_output};

use super::Machine;

pub(super) async fn exit_codes_are_reported(machine: Machine) {
    for code in [0, 1, 42, 126, 127, 128, 137, 255] {
        let outcome = run(&machine, Command::shell(format!("exit {code}")).shell("sh")).await.unwrap();
        assert_eq!(outcome.exited.cause, ExitCause::Exited(code));
        assert_eq!((outcome.exited.exit_code(), outcome.exited.signal), (i32::from(code), None));
    }
}

pub(super) async fn the_shells_own_exit_codes_are_reported(machine: Machine) {
    for (text, code) in [("/etc/passwd", 126), ("no-such-program-at-all", 127), ("sh -c 'kill -9 $$'; exit $?", 137)] {
        let outcome = run(&machine, Command::shell(text)).await.unwrap();
        assert_eq!(outcome.exited.cause, ExitCause::Exited(code), "{text}");
    }
}

pub(super) async fn deaths_by_signal_are_reported(machine: Machine) {
    for name in ["HUP", "INT", "KILL", "SEGV", "PIPE", "TERM", "RTMIN+1"] {
        let outcome = run(&machine, Command::shell(format!("ulimit -c 0; kill -{name} $$"))).await.unwrap();
        assert_eq!((outcome.exited.cause, outcome.exited.exit_code()), (ExitCause::Signaled, -1), "{name}");
        assert_eq!(outcome.exited.signal, Some(name.parse().unwrap()));
        assert!(!outcome.exited.core_dumped);
    }
}

/// Whether there is a dump at all is the machine's affair, so a process of the test's own shows what to expect.
pub(super) async fn a_core_dump_is_reported(machine: Machine) {
    let directory = directory();
    let text = "ulimit -c unlimited; kill -SEGV $$";
    let own = std::process::Command::new("bash").args(["-c", text]).current_dir(&directory).status().unwrap();
    let path = directory.path().to_str().unwrap();
    let outcome = run(&machine, Command::shell(text).working_directory(path)).await.unwrap();
    assert_eq!(outcome.exited.signal.unwrap().to_string(), "SIGSEGV");
    assert_eq!(outcome.exited.core_dumped, own.core_dumped());
}

pub(super) async fn what_it_used_is_reported(machine: Machine) {
    let outcome = run(&machine, Command::shell("head -c 50000000 /dev/zero | sha256sum >/dev/null")).await.unwrap();
    let exited = outcome.exited;
    assert!(!(exited.user_time + exited.system_time).is_zero() && !exited.wall_time.is_zero());
    assert!(exited.max_rss_bytes > 100_000, "{}", exited.max_rss_bytes);
    assert!(exited.end_time >= outcome.started.start_time);
}

/// The process that computes is no child of the shell any more, so what is known of those that were waited for lacks it.
pub(super) async fn what_all_processes_used_is_reported(machine: Machine) {
    let directory = directory();
    let text = "(head -c 300000000 /dev/zero | sha256sum >sum && mv sum done &)
        until [ -e done ]; do sleep 0.01; done; kill -9 $$";
    let command = Command::shell(text).working_directory(directory.path().to_str().unwrap());
    let outcome = run(&machine, command).await.unwrap();
    let exited = outcome.exited;
    // without cgroups it is not known
    if let Some(all) = exited.usage.cpu_time() {
        assert!(all > Duration::from_millis(50) + exited.user_time + exited.system_time, "{exited:?}");
    }
    let known = machine.get(&outcome.started.id).await.unwrap();
    assert_eq!(known.usage, exited.usage);
}

pub(super) async fn what_it_has_used_so_far_is_reported(machine: Machine) {
    let text = "head -c 300000000 /dev/zero | sha256sum; exec sleep 300";
    let mut execution = machine.execute(Command::shell(text).build().unwrap()).await.unwrap();
    until_output(&mut execution, "-").await;
    let id = execution.started().id.clone();
    let used = machine.get(&id).await.unwrap().usage;
    assert!(used.cpu_time().is_none_or(|time| time > Duration::from_millis(50)), "{used:?}");
    // once it is known, it stays so
    drop(execution);
    until("it has ended", async || machine.get(&id).await.unwrap().state == ExecutionState::Exited).await;
    let all = machine.get(&id).await.unwrap().usage;
    assert!(all.cpu_time() >= used.cpu_time(), "{used:?} {all:?}");
}
