//! Names on the NATS server: subjects, streams and consumers.

use telexec_executor::{ExecutionId, InvalidCommand};

/// The stream of requests, and that of events.
pub const RUN_STREAM: &str = "TELEXEC_RUN";
/// See [`RUN_STREAM`].
pub const OUT_STREAM: &str = "TELEXEC_OUT";
/// The metadata of an agent's consumer that has its labels, separated by commas.
pub const LABELS: &str = "telexec-labels";

/// Begins the name of the consumer that takes an agent's requests.
const AGENT: &str = "agent-";

/// What may stand alone in a subject: 1 to 64 letters, digits, `-` and `_`.
///
/// # Errors
/// Anything else.
pub fn token(text: &str) -> Result<String, String> {
    let is_valid = (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    is_valid.then(|| text.to_owned()).ok_or_else(|| "must be 1 to 64 letters, digits, - and _".to_owned())
}

/// Whoever has this label, in place of an agent's name.
pub fn label_address(label: &str) -> String {
    format!("label:{label}")
}

/// Where requests to run something are sent to, for an agent's name or `label:LABEL`.
pub fn run(address: &str) -> String {
    format!("telexec.run.{address}")
}

/// Where the events of an execution are.
pub fn out(id: &str) -> String {
    format!("telexec.out.{id}")
}

/// Where requests about executions are sent to, for an agent's name or `label:LABEL`.
pub fn control(address: &str) -> String {
    format!("telexec.ctl.{address}")
}

/// An execution ID becomes a part of subjects, where dots separate.
///
/// # Errors
/// It ends with a dot, or has two in a row.
pub fn check_id(id: &ExecutionId) -> Result<(), InvalidCommand> {
    match id.as_str().split('.').any(str::is_empty) {
        true => Err(InvalidCommand::new(
            "execution_id",
            "must not end with a dot, or have two in a row: it is a part of a subject",
        )),
        false => Ok(()),
    }
}

/// The consumer that takes an agent's requests.
pub fn consumer(agent: &str) -> String {
    format!("{AGENT}{agent}")
}

/// The agent whose requests a consumer takes.
pub fn agent_of(consumer: &str) -> Option<&str> {
    consumer.strip_prefix(AGENT)
}
