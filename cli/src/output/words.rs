//! Errors in the words of the command line: flags instead of the protocol's names of fields.

use std::error::Error;

use telexec_executor::{ExecutorError, InvalidCommand};

/// The flag that sets a field.
const FLAGS: &[(&str, &str)] = &[
    ("argv", "the command line"),
    ("command", "the text of -c"),
    ("environment", "--env"),
    ("execution_id", "--id"),
    ("identity", "--as"),
    ("kill_grace", "--kill-grace"),
    ("labels", "--label"),
    ("limits.cpus", "--cpus"),
    ("limits.max_processes", "--max-processes"),
    ("limits.memory_bytes", "--memory"),
    ("login", "--login"),
    ("merge_output", "--merge"),
    ("on_disconnect", "--on-disconnect"),
    ("position", "--from"),
    ("reason", "--reason"),
    ("shell", "--shell"),
    ("signal", "--signal"),
    ("stdin", "--stdin"),
    ("terminal", "--tty"),
    ("terminal.columns", "the width of the terminal"),
    ("terminal.rows", "the height of the terminal"),
    ("timeout", "--timeout"),
    ("user", "--user"),
    ("working_directory", "--workdir"),
    ("yield_after", "--yield-after"),
];

/// The text of the error alone, without its causes.
pub(super) fn in_words(error: &(dyn Error + 'static)) -> String {
    if let Some(InvalidCommand { field, reason }) = error.downcast_ref() {
        return sentence(field, reason);
    }
    match error.downcast_ref() {
        Some(ExecutorError::Invalid(InvalidCommand { field, reason })) => sentence(field, reason),
        Some(ExecutorError::Unsupported { field, reason }) => sentence(field, reason),
        // a field of the request too
        Some(ExecutorError::FailedPrecondition { reason }) => reason.replace("accepts_input", "-i"),
        Some(ExecutorError::DeadlineExceeded) => "timed out before the agent reported how the command ended".to_owned(),
        Some(ExecutorError::OutOfRange { field, end }) if field == "position" => {
            format!("--from is beyond the end of the output, at {end}")
        }
        _ => error.to_string(),
    }
}

fn sentence(field: &str, reason: &str) -> String {
    if let Some(index) = field.strip_prefix("argv[").and_then(|rest| rest.strip_suffix(']')) {
        return format!("{} {reason}", if index == "0" { "PROGRAM".to_owned() } else { format!("argument {index}") });
    }
    match FLAGS.iter().find(|(known, _)| *known == field) {
        Some((_, flag)) => format!("{flag} {reason}"),
        None => format!("{field}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_flags() {
        let unsupported = |field: &'static str| ExecutorError::Unsupported {
            field: field.into(),
            reason: "cannot be held here: no controller".to_owned(),
        };
        for (error, text) in [
            (unsupported("limits.memory_bytes"), "--memory cannot be held here: no controller"),
            (unsupported("some.new_field"), "some.new_field: cannot be held here: no controller"),
            (InvalidCommand::new("argv", "names no program").into(), "the command line names no program"),
            (InvalidCommand::new("argv[0]", "is empty").into(), "PROGRAM is empty"),
            (InvalidCommand::new("argv[2]", "is empty").into(), "argument 2 is empty"),
            (InvalidCommand::new("user", "is empty").into(), "--user is empty"),
            (
                ExecutorError::OutOfRange { field: "position".into(), end: 7 },
                "--from is beyond the end of the output, at 7",
            ),
            (
                ExecutorError::FailedPrecondition { reason: "it was started without accepts_input".to_owned() },
                "it was started without -i",
            ),
            (ExecutorError::ShuttingDown, "the agent is shutting down; nothing ran"),
        ] {
            assert_eq!(in_words(&error), text);
        }
    }
}
