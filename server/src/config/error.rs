//! What is wrong with a configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use telexec_executor::InvalidCommand;

use crate::invalid::InvalidSetting;
use crate::policy::PolicyError;
use crate::similar::similar;
use crate::tls::TlsError;

/// After an unknown key that differs in more letters from the one that is suggested, the others are listed too.
const MAX_TYPOS: usize = 2;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is malformed.
    #[error("{path}:{line}: {fault}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The fault, without the value, which may be a secret.
        fault: String,
    },
    /// Keys conflict.
    #[error(transparent)]
    Invalid(#[from] InvalidSetting),
    /// Without TLS only loopback addresses may be listened on.
    #[error("{0} is not a loopback address: listening there needs TLS, not --insecure")]
    NotLoopback(SocketAddr),
    /// Without TLS metrics are only served on loopback addresses.
    #[error(
        "metrics_listen: {0} is not a loopback address: set tls_cert, tls_key and client_ca, or [spiffe], to serve metrics there"
    )]
    PlainMetrics(SocketAddr),
    /// A default for commands is malformed.
    #[error("a default for commands is malformed")]
    Command(#[from] InvalidCommand),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The key that signs receipts cannot be used.
    #[error("receipt_key: {path} cannot be used")]
    ReceiptKey {
        /// The key's file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl ConfigError {
    /// Names the line and the key, and not the value.
    pub(super) fn parse(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let key = text.lines().nth(line - 1).and_then(|line| line.split_once('=')).map(|(key, _)| key.trim());
        let fault = without_value(error.message());
        let fault = key.map_or_else(|| fault.clone(), |key| format!("{key}: {fault}"));
        Self::Parse { path: path.to_owned(), line, fault }
    }

    pub(crate) fn tcp_needs_tls() -> Self {
        let text = "tcp:// needs --tls-cert, --tls-key and --client-ca (or [spiffe] in the configuration), or --insecure on a loopback address";
        InvalidSetting(text.to_owned()).into()
    }

    /// The same about the address for metrics.
    pub(crate) fn of_metrics(self) -> Self {
        match self {
            Self::NotLoopback(address) => Self::PlainMetrics(address),
            error => error,
        }
    }
}

/// The message of serde for an invalid value, without the value.
fn without_value(message: &str) -> String {
    if message.starts_with("unexpected leading zero") {
        return "a number cannot begin with 0, and a string is in double quotes".to_owned();
    }
    let words = ["invalid type", "invalid value", "invalid length"];
    match (words.iter().find(|words| message.starts_with(**words)), message.rsplit_once(", expected ")) {
        (Some(words), Some((_, expected))) => format!("{words}, expected {}", with_example(expected)),
        _ => did_you_mean(message).unwrap_or_else(|| message.trim_end().replace('\n', ", ")),
    }
}

/// How what serde expects is written in TOML.
fn with_example(expected: &str) -> &str {
    match expected {
        "a duration" => "a duration such as \"10m\"",
        "a sequence" => "a list such as [\"...\"]",
        "a string" => "a string in double quotes",
        other => other,
    }
}

/// The message of serde for an unknown key, with the one that is meant before all that there are.
fn did_you_mean(message: &str) -> Option<String> {
    let (unknown, expected) = message.strip_prefix("unknown field `")?.split_once("`, expected ")?;
    let known = expected.split('`').skip(1).step_by(2);
    let key = similar(unknown, known)?;
    let rest = if strsim::osa_distance(unknown, key) > MAX_TYPOS {
        format!(" expected {}", expected.trim_end())
    } else {
        String::new()
    };
    Some(format!("unknown field `{unknown}`: did you mean `{key}`?{rest}"))
}
