//! The deadline of an RPC as gRPC sends it: the header `grpc-timeout` (gRPC over HTTP/2, "Requests").

use std::time::Duration;

use telexec_executor::InvalidCommand;

/// The name of the header.
pub const HEADER: &str = "grpc-timeout";

/// Reads the header's value: one to eight digits and a unit, one of `H M S m u n`.
///
/// # Errors
/// Anything else.
pub fn parse(value: &[u8]) -> Result<Duration, InvalidCommand> {
    let invalid = || InvalidCommand::new(HEADER, "must be one to eight digits and one of H, M, S, m, u, n");
    let (unit, digits) = value.split_last().ok_or_else(invalid)?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return Err(invalid());
    }
    let number: u64 = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or_else(invalid)?;
    match unit {
        b'H' => Ok(Duration::from_secs(number * 3600)),
        b'M' => Ok(Duration::from_secs(number * 60)),
        b'S' => Ok(Duration::from_secs(number)),
        b'm' => Ok(Duration::from_millis(number)),
        b'u' => Ok(Duration::from_micros(number)),
        b'n' => Ok(Duration::from_nanos(number)),
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read() {
        let cases = [("1H", 3600.0), ("2M", 120.0), ("3S", 3.0), ("4m", 0.004), ("5u", 0.000_005), ("6n", 6e-9)];
        for (text, seconds) in cases {
            assert_eq!(parse(text.as_bytes()), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        assert!(parse(b"99999999H").is_ok());
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "1", "S", "123456789S", "-1S", "+1S", " 1S", "1s", "1 S", "1.5S", "1SS", "\u{661}S"] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().field, HEADER, "{text:?}");
        }
    }
}
