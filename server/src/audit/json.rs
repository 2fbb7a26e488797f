//! JSON on one line of printable ASCII, whatever the strings in it hold: no control characters, line breaks or lookalikes
//! end up in the log.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// The value as such a line, without the newline.
///
/// # Errors
/// The value cannot be represented in JSON.
pub(super) fn to_line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = Vec::with_capacity(1024);
    value.serialize(&mut Serializer::with_formatter(&mut line, Ascii))?;
    Ok(line)
}

/// The length of that line in bytes.
pub(crate) fn length(value: &impl Serialize) -> u64 {
    let mut counted = Counted(0);
    // a counting writer does not fail
    let _ = value.serialize(&mut Serializer::with_formatter(&mut counted, Ascii));
    counted.0
}

struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let is_plain = |c: &char| matches!(c, ' '..='~');
        let mut rest = fragment;
        while let Some((at, odd)) = rest.char_indices().find(|(_, c)| !is_plain(c)) {
            let (plain, after) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            for unit in odd.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = after.get(odd.len_utf8()..).unwrap_or_default();
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_is_printable_ascii_and_comes_back() {
        let all: String = (0..=0x2fff).chain(0x1f980..=0x1f9ff).filter_map(char::from_u32).collect();
        let line = to_line(&all).unwrap();
        assert!(line.iter().all(|byte| matches!(byte, b' '..=b'~')));
        assert_eq!(serde_json::from_slice::<String>(&line).unwrap(), all);
        assert_eq!(length(&all), line.len() as u64);
    }
}
