//! Times, as JSON has them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// In UTC; one that has no such form, as a file may have, is 1970.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let time = i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned())
}

/// That long from now; there is a time for every length.
pub(crate) fn later(length: Duration) -> SystemTime {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    SystemTime::now() + length.min(LONGEST)
}

pub(crate) fn from_rfc3339(text: &str) -> Option<SystemTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(SystemTime::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_too_late() {
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(86_400)), "1970-01-02T00:00:00Z");
        for seconds in [1 << 50, i64::MAX as u64] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), "1970-01-01T00:00:00Z");
        }
        assert!(later(Duration::MAX) > SystemTime::now());
    }
}
