//! The state, command and age of an execution, for humans.

use std::time::Duration;

use telexec_executor::{ExecutionInfo, ExecutionState, ExitCause, Exited, Program};

/// What runs where no command is given: the shell that the agent's machine has for the user, as a login shell.
pub(crate) const LOGIN_SHELL: &str = r#"exec "${SHELL:-/bin/sh}" -l"#;

pub(crate) fn state(info: &ExecutionInfo) -> String {
    match (info.state, &info.exited) {
        (ExecutionState::Running, _) => "running".to_owned(),
        (ExecutionState::Lingering, _) => "lingering".to_owned(),
        (ExecutionState::Exited, None) => "exited".to_owned(),
        (ExecutionState::Exited, Some(exited)) => end(exited),
    }
}

/// How a command ended, in few words.
pub(crate) fn end(exited: &Exited) -> String {
    match (exited.cause, exited.signal) {
        (ExitCause::Exited(code), _) => format!("exited {code}"),
        (ExitCause::Signaled, Some(signal)) => format!("killed by {signal}"),
        (ExitCause::Signaled, None) => "killed by a signal".to_owned(),
        (ExitCause::TimedOut, _) => "timed out".to_owned(),
        (ExitCause::DeadlineExceeded, _) => "deadline exceeded".to_owned(),
        (ExitCause::OutOfMemory, _) => "out of memory".to_owned(),
        (ExitCause::Cancelled, _) => "cancelled".to_owned(),
        (ExitCause::Shutdown, _) => "agent shut down".to_owned(),
    }
}

/// The command that it runs, as text.
pub(crate) fn command_text(info: &ExecutionInfo) -> String {
    match &info.program {
        Program::Shell { text, .. } if text == LOGIN_SHELL => "(login shell)".to_owned(),
        Program::Shell { text, .. } => text.clone(),
        Program::Argv(argv) => argv.join(" "),
    }
}

/// A duration in its largest unit, rounded down.
pub(crate) fn short_duration(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ ..60 => format!("{seconds}s"),
        seconds @ ..3600 => format!("{}m", seconds / 60),
        seconds @ ..86400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86400),
    }
}

/// Processor time, such as `0.4s` or `12m`.
pub(crate) fn cpu_time(time: Duration) -> String {
    if time.as_secs() < 10 { format!("{:.1}s", time.as_secs_f64()) } else { short_duration(time) }
}

/// Such as `3.1 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or_default();
    if unit == 0 { format!("{bytes} {name}") } else { format!("{value:.1} {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shortened_to_their_largest_unit() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3599, "59m"),
            (3600, "1h"),
            (86_399, "23h"),
            (86_400, "1d"),
            (400 * 86_400, "400d"),
        ] {
            assert_eq!(short_duration(Duration::from_secs(seconds)), text);
        }
    }
}
