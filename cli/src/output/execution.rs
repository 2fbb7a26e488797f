//! The state and age of an execution, for humans.

use std::time::Duration;

use telexec_executor::{ExecutionInfo, ExecutionState, ExitCause};

pub(crate) fn state(info: &ExecutionInfo) -> String {
    match (info.state, &info.exited) {
        (ExecutionState::Running, _) => "running".to_owned(),
        (ExecutionState::Lingering, _) => "lingering".to_owned(),
        (ExecutionState::Exited, None) => "exited".to_owned(),
        (ExecutionState::Exited, Some(exited)) => match (exited.cause, exited.signal) {
            (ExitCause::Exited(code), _) => format!("exited {code}"),
            (ExitCause::Signaled, Some(signal)) => format!("signaled {signal}"),
            (cause, _) => cause.as_str().to_owned(),
        },
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
