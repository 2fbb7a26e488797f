//! Texts of others, shown such that none can pass for something else: quoted as bash reads them where they hold control or
//! invisible characters, and folded.

use super::printable;
use crate::terminal;

const KEY_WIDTH: usize = 16;
/// Before the rest of a line that was folded.
const FOLD: &str = "…";

/// A text that shows as what it is: with control or invisible characters as a word that bash reads as the same text.
pub(crate) fn on_a_line(text: &str) -> String {
    if printable(text) == text && !text.starts_with("$'") { text.to_owned() } else { ansi_c_quoted(text) }
}

/// Words, quoted so that where each of them ends is seen.
pub(crate) fn words(words: &[String]) -> String {
    let quoted = words.iter().map(|word| match printable(word) == *word {
        true => shlex::try_quote(word).map_or_else(|_| ansi_c_quoted(word), |word| word.into_owned()),
        false => ansi_c_quoted(word),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// `$'…'` of bash(1).
fn ansi_c_quoted(text: &str) -> String {
    bytes_quoted(text.as_bytes())
}

pub(crate) fn bytes_quoted(bytes: &[u8]) -> String {
    let mut quoted = "$'".to_owned();
    for chunk in bytes.utf8_chunks() {
        quote(chunk.valid(), &mut quoted);
        chunk.invalid().iter().for_each(|byte| quoted.push_str(&format!("\\x{byte:02x}")));
    }
    quoted + "'"
}

fn quote(text: &str, quoted: &mut String) {
    for c in text.chars() {
        match c {
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\\' | '\'' => quoted.extend(['\\', c]),
            c if c.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if printable(c.encode_utf8(&mut [0; 4])) != c.to_string() => {
                quoted.push_str(&format!("\\U{:08x}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
}

/// What runs: the text, line by line, or the arguments.
pub(crate) fn program(text: &str, argv: &[String]) -> String {
    let lines: Vec<_> = match argv {
        [] if !text.trim().is_empty()
            && text.split('\n').all(|line| printable(line) == line && !line.starts_with(FOLD)) =>
        {
            text.split('\n').collect()
        }
        [] => return row("quoted", &ansi_c_quoted(text)),
        argv => return row("program", &words(argv)),
    };
    let mut keys = std::iter::once("command").chain(std::iter::repeat(""));
    lines.iter().map(|line| row(keys.next().unwrap_or_default(), line)).collect()
}

/// A line for each that has a value, which shows as what it is.
pub(crate) fn rows<const N: usize>(rows: [(&str, String); N]) -> String {
    let shown = rows.iter().filter(|(_, value)| !value.is_empty());
    shown.map(|(key, value)| row(key, value)).collect()
}

/// A line, folded here: folded by the terminal, its end could look like the beginning of another one.
fn row(key: &str, value: &str) -> String {
    let key = if key.is_empty() { String::new() } else { format!("{key}:") };
    let room = terminal::output_width().unwrap_or(usize::MAX).saturating_sub(KEY_WIDTH + 2).max(1);
    let (mut text, mut used) = (format!("{key:KEY_WIDTH$}"), 0);
    for c in value.chars() {
        // as wide as it may be
        let width = if c.is_ascii() { 1 } else { 2 };
        if used + width > room {
            text.push_str(&format!("\n{:KEY_WIDTH$}{FOLD} ", ""));
            used = 0;
        }
        text.push(c);
        used += width;
    }
    text + "\n"
}

/// The value of a line that is only there if this is set.
pub(crate) fn yes(flag: bool) -> String {
    if flag { "yes".to_owned() } else { String::new() }
}
