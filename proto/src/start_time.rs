//! The agent's start time with each answer to `grpc.health.v1.Health/Check`, a call that no policy denies: the header
//! `telexec-start-time`. Two equal times mean that the agent has not restarted in between.

use std::time::{Duration, SystemTime};

/// The name of the header.
pub const HEADER: &str = "telexec-start-time";

/// The header's value: nanoseconds since the Unix epoch, in decimal. A time before the epoch counts as the epoch.
pub fn format(time: SystemTime) -> String {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

/// Reads the header's value; `None`: it is not one.
pub fn parse(value: &[u8]) -> Option<SystemTime> {
    let nanoseconds = std::str::from_utf8(value).ok()?.parse().ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let now = SystemTime::now();
        assert_eq!(parse(format(now).as_bytes()), Some(now));
        for invalid in ["", "-1", "1.5", "x", "99999999999999999999999"] {
            assert_eq!(parse(invalid.as_bytes()), None, "{invalid:?}");
        }
    }
}
