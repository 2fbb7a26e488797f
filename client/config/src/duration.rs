//! Durations such as `90`, `1.5`, `500ms` and `1h30m`.

use std::time::Duration;

/// Reads a duration; a number without a unit is in seconds.
///
/// # Errors
/// What is expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || "expected seconds, or a duration such as 500ms, 10s, 5m, 1h30m".to_owned();
    // excludes other floats that Rust parses: inf, nan, 1e9, +1
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        let seconds = text.parse().map_err(|_| wrong())?;
        return Duration::try_from_secs_f64(seconds).map_err(|_| wrong());
    }
    humantime::parse_duration(text).map_err(|_| wrong())
}

/// Reads a duration greater than 0.
///
/// # Errors
/// What is wrong with it.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("must be greater than 0".to_owned()),
        timeout => Ok(timeout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_written() {
        for (text, millis) in [
            ("0", 0),
            ("90", 90_000),
            ("1.5", 1500),
            ("500ms", 500),
            ("10s", 10_000),
            ("5m", 300_000),
            ("1h 1s", 3_601_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", ".", "1.2.3", "-1", "+1", "1e3", "inf", "10x", "99999999999999999999", "s"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
        assert!(parse_timeout("0s").is_err());
    }
}
