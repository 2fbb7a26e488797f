//! Errors in the words of the command line: flags instead of the protocol's names of fields.

use std::error::Error;

use rustls::{AlertDescription, CertificateError};
use telexec_client::Cause;
use telexec_executor::{ExecutorError, InvalidCommand};

/// The flag that sets a field.
const FLAGS: &[(&str, &str)] = &[
    ("accepts_input", "--stdin"),
    ("argv", "the command line"),
    ("command", "the text of -c"),
    ("descendants", "--descendants"),
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
    ("no_new_privileges", "--no-new-privileges"),
    ("on_disconnect", "--on-disconnect"),
    ("position", "--from"),
    ("reason", "--reason"),
    ("receipt", "--receipt"),
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
    if let Some(error) = error.downcast_ref::<Cause>().and_then(Error::source) {
        return in_words(error);
    }
    if let Some(error) = error.downcast_ref() {
        return of_tls(error);
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

/// What is wrong with a certificate; other errors of TLS are for those who know it.
fn of_tls(error: &rustls::Error) -> String {
    let refused = |why: &str| format!("the agent refused your certificate: {why}");
    match error {
        rustls::Error::InvalidCertificate(error) => match error {
            CertificateError::UnknownIssuer => "your CA did not issue the agent's certificate".to_owned(),
            CertificateError::BadSignature => "another CA of the same name issued the agent's certificate".to_owned(),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the agent's certificate has expired".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the agent's certificate is not valid yet".to_owned()
            }
            CertificateError::Revoked => "the agent's certificate has been revoked".to_owned(),
            CertificateError::NotValidForName => "the agent's certificate is for another name".to_owned(),
            CertificateError::NotValidForNameContext { expected, presented } => {
                let names: Vec<&str> = presented.iter().map(|name| plain_name(name)).collect();
                format!("the agent's certificate is not for {}, but for {}", expected.to_str(), names.join(", "))
            }
            _ => error_text(error),
        },
        rustls::Error::AlertReceived(AlertDescription::CertificateRevoked) => refused("it has been revoked"),
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => refused("it has expired"),
        rustls::Error::AlertReceived(AlertDescription::UnknownCA) => refused("it does not trust the CA that issued it"),
        rustls::Error::AlertReceived(AlertDescription::DecryptError) => {
            refused("another CA of the same name issued it")
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateUnknown) => {
            refused("this name may not call, or its CA may not issue certificates for it")
        }
        rustls::Error::AlertReceived(AlertDescription::AccessDenied) => {
            "the agent has no certificate at present: its log says why".to_owned()
        }
        rustls::Error::InvalidMessage(_) => "what listens there does not speak TLS".to_owned(),
        error => error.to_string(),
    }
}

fn error_text(error: &CertificateError) -> String {
    format!("the agent's certificate is not valid: {error}")
}

/// The name in `DnsName("web1")` or `IpAddress(10.0.0.7)`.
fn plain_name(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"')
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
