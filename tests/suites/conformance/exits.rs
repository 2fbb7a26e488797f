//! How a command ends by itself.

use std::os::unix::process::ExitStatusExt;

use telexec_executor::{Command, ExitCause};
use telexec_tests::{directory, run};

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
