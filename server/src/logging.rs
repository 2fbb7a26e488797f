//! The log, on standard error.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Config, LogFormat};
use crate::log_limit::Limit;

/// Starts logging as configured.
///
/// # Errors
/// `log_level` is neither a level nor filter directives.
pub fn start(config: &Config) -> Result<(), ParseError> {
    let filter = EnvFilter::builder().parse(&config.log_level)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Text => {
            builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).finish().with(Limit).init()
        }
        LogFormat::Json => builder.json().flatten_event(true).finish().with(Limit).init(),
    }
    Ok(())
}

/// What failed and why, on one line.
pub fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
