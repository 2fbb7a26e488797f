//! Times and durations in records and receipts.

use std::num::NonZero;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Iso8601;
use time::format_description::well_known::iso8601::{Config, EncodedConfig, TimePrecision};

const MICROSECONDS: EncodedConfig =
    Config::DEFAULT.set_time_precision(TimePrecision::Second { decimal_digits: NonZero::new(6) }).encode();

/// RFC 3339 in UTC, with microseconds.
pub(crate) fn rfc3339(time: OffsetDateTime) -> String {
    // RFC 3339 has no years of five digits
    time.format(&Iso8601::<MICROSECONDS>).unwrap_or_default()
}

/// Whole milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_microseconds() {
        assert_eq!(rfc3339(OffsetDateTime::UNIX_EPOCH), "1970-01-01T00:00:00.000000Z");
        let time = OffsetDateTime::UNIX_EPOCH + Duration::from_micros(1_234_567_890_123_456);
        assert_eq!(rfc3339(time), "2009-02-13T23:31:30.123456Z");
    }
}
