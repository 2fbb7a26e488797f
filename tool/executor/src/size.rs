//! Sizes as people write them: `4096`, `512K`, `256M`, `2GiB`.

/// A size in which something fits, in bytes. A bare number means bytes; a unit is a power of 1,024.
///
/// # Errors
/// It is none, or 0: what would be one.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || "expected bytes, or a size such as 512K, 256M or 2GiB".to_owned();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit {
        "" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match number.checked_mul(unit) {
        Some(0) => Err("it must be greater than 0".to_owned()),
        size => size.ok_or_else(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_written() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("512K", 512 << 10),
            ("512KiB", 512 << 10),
            ("256M", 256 << 20),
            ("3MiB", 3 << 20),
            ("2G", 2 << 30),
            ("2GiB", 2 << 30),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "0G", "K", "-1", "+1", "1.5G", "1 K", "1KB", "1e3", "1KiBK", "é", "18446744073709551615K"]
        {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
    }
}
