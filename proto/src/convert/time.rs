//! Durations and timestamps (google/protobuf/duration.proto, timestamp.proto).

use std::time::{Duration, SystemTime};

use telexec_executor::InvalidCommand;

/// The largest number of seconds in a `google.protobuf.Duration`: about 10,000 years.
const MAX_SECONDS: i64 = 315_576_000_000;

/// # Errors
/// It is negative or out of range; the error names `field`.
pub(super) fn duration_from_wire(field: &'static str, wire: prost_types::Duration) -> Result<Duration, InvalidCommand> {
    let out_of_range = || InvalidCommand::new(field, "is not a duration of 0 to 315576000000 seconds");
    let nanos = u32::try_from(wire.nanos).ok().filter(|nanos| *nanos < 1_000_000_000).ok_or_else(out_of_range)?;
    let seconds = (0..=MAX_SECONDS).contains(&wire.seconds).then_some(wire.seconds).ok_or_else(out_of_range)?;
    Ok(Duration::new(u64::try_from(seconds).map_err(|_| out_of_range())?, nanos))
}

/// A duration, as it travels; a longer one than it can be is cut.
pub fn duration_to_wire(duration: Duration) -> prost_types::Duration {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(MAX_SECONDS).min(MAX_SECONDS);
    prost_types::Duration { seconds, nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0) }
}

/// What the other side reports; a malformed one is zero.
pub(super) fn reported_duration(wire: Option<prost_types::Duration>) -> Duration {
    wire.and_then(|wire| wire.try_into().ok()).unwrap_or_default()
}

/// What the other side reports; a malformed one is 1970.
pub(super) fn reported_time(wire: Option<prost_types::Timestamp>) -> SystemTime {
    wire.and_then(|wire| wire.try_into().ok()).unwrap_or(SystemTime::UNIX_EPOCH)
}
