//! Execution ids: what the grammar says is taken, unchanged, and nothing else.

#![no_main]

use libfuzzer_sys::fuzz_target;
use telexec_executor::ExecutionId;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match text.parse::<ExecutionId>() {
        Ok(id) => {
            assert!(matches(text), "{text:?}");
            assert_eq!((id.as_str(), id.to_string()), (text, text.to_owned()));
        }
        Err(error) => {
            assert!(!matches(text), "{text:?}");
            assert_eq!(error.field, "execution_id");
        }
    }
});

/// `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`
fn matches(text: &str) -> bool {
    let mut chars = text.chars();
    let first = chars.next();
    matches!(first, Some('A'..='Z' | 'a'..='z' | '0'..='9'))
        && text.chars().count() <= 128
        && chars.all(|c| matches!(c, 'A'..='Z' | 'a'..='z' | '0'..='9' | '.' | '_' | '-'))
}
