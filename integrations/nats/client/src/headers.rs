//! Headers of messages.

use async_nats::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// `application/json`, or `application/protobuf`, which is the default.
pub const CONTENT_TYPE: &str = "Content-Type";
/// Seconds since 1970: after that nothing is started.
pub const EXPIRES: &str = "Telexec-Expires";
/// The public nkey that the message is signed with.
pub const KEY: &str = "Telexec-Key";
/// Base64: see [`crate::signature`].
pub const SIGNATURE: &str = "Telexec-Signature";
/// Anything that makes a signature differ from all others of a request about executions.
pub const NONCE: &str = "Telexec-Nonce";
/// The subject that a request for a label was sent to.
pub const ROUTED_FROM: &str = "Telexec-Routed-From";
/// A method of telexec.v1.ExecutionService, for requests about executions.
pub const METHOD: &str = "Telexec-Method";
/// A gRPC status code, of what failed.
pub const STATUS: &str = "Telexec-Status";
/// Why, in words.
pub const MESSAGE: &str = "Telexec-Message";
/// Base64: a google.rpc.Status with details, such as the rule that denies it.
pub const DETAILS: &str = "Telexec-Details";
/// Of a message without an event, before them: `claimed`.
pub const STATE: &str = "Telexec-State";
/// The agent that has claimed it.
pub const AGENT: &str = "Telexec-Agent";
/// The SHA-256 of the request, and who sent it.
pub const REQUEST: &str = "Telexec-Request";
/// Why a request is dead.
pub const REASON: &str = "Telexec-Reason";
/// Where it was sent to.
pub const SUBJECT: &str = "Telexec-Subject";

/// The value of a header.
pub fn get<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(async_nats::HeaderValue::as_str)
}

/// A header is cut to as many characters.
const MAX_CHARS: usize = 1024;

/// Adds a header; a value is one line, and not a long one.
pub fn set(headers: &mut HeaderMap, name: &str, value: &str) {
    let line = value.chars().take(MAX_CHARS).map(|char| if char.is_control() { ' ' } else { char });
    headers.insert(name, &*line.collect::<String>());
}

/// For values that are bytes.
pub fn to_base64(data: &[u8]) -> String {
    STANDARD.encode(data)
}

/// `None`: it is no base64.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// All but those that are for the stream that a message was sent to.
pub fn own(headers: &HeaderMap) -> HeaderMap {
    let mut own = HeaderMap::new();
    for (name, values) in headers.iter() {
        let text: &str = name.as_ref();
        if !text.starts_with("Nats-") {
            values.iter().for_each(|value| own.append(name.clone(), value.clone()));
        }
    }
    own
}
