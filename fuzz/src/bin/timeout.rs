//! The header `grpc-timeout`: what the grammar says is taken, at its value, and nothing else.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use telexec_proto::timeout::parse;

fuzz_target!(|value: &[u8]| assert_eq!(parse(value).ok(), expected(value)));

fn expected(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    let nanos: u64 = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return None,
    };
    if !matches!(digits.len(), 1..=8) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + u128::from(digit - b'0'));
    Some(Duration::from_nanos_u128(number * u128::from(nanos)))
}
