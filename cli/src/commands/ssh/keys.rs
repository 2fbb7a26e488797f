//! `-o KEY=VALUE`: the keys of ssh_config(5) that have a meaning here. All others are ignored, as they are about ssh's
//! protocol, keys and masters.

use std::time::Duration;

use super::host;
use super::line::{LogLevel, Session, Settings, Tty};
use crate::syntax::{parse_duration, parse_pair};

/// Reads one line of ssh_config(5): a key, white space or `=`, and a value.
pub(super) fn apply(text: &str, settings: &mut Settings) -> Result<(), String> {
    let text = text.trim();
    let (key, value) = text.split_at(text.find(|c: char| c.is_whitespace() || c == '=').unwrap_or(text.len()));
    let value = value.trim_start();
    let value = value.strip_prefix('=').unwrap_or(value).trim_start();
    if key.is_empty() || value.is_empty() {
        return Err(format!("-o {text}: expected KEY=VALUE"));
    }
    set(&key.to_ascii_lowercase(), value, settings).map_err(|error| format!("-o {text}: {error}"))
}

fn set(key: &str, value: &str, settings: &mut Settings) -> Result<(), String> {
    match key {
        "user" => drop(settings.user.get_or_insert(word(value)?)),
        "port" => drop(settings.port.get_or_insert(host::port(&word(value)?)?)),
        "hostname" => drop(settings.host_name.get_or_insert(word(value)?)),
        "connecttimeout" => settings.connect_timeout = settings.connect_timeout.or(timeout(&word(value)?)?),
        "requesttty" => drop(settings.tty.get_or_insert(tty(&word(value)?)?)),
        "sessiontype" => drop(settings.session.get_or_insert(session(&word(value)?)?)),
        "stdinnull" => settings.no_stdin |= is_yes(&word(value)?),
        "forkafterauthentication" if is_yes(&word(value)?) => {
            (settings.background, settings.no_stdin) = (true, true);
        }
        "loglevel" => settings.set_log_level(log_level(&word(value)?)),
        // the rest of the line as it is
        "remotecommand" if value != "none" => drop(settings.remote_command.get_or_insert(value.to_owned())),
        "proxycommand" | "proxyjump" if value != "none" => drop(settings.proxy.get_or_insert(value.to_owned())),
        "setenv" => {
            let pairs = words(value)?.into_iter().map(|pair| parse_pair(&pair));
            settings.environment.extend(pairs.collect::<Result<Vec<_>, _>>()?);
        }
        "sendenv" => settings.send_environment.extend(words(value)?),
        "localforward" => settings.forward('L', &words(value)?.join(":")),
        "remoteforward" => settings.forward('R', &words(value)?.join(":")),
        "exitonforwardfailure" => settings.forwards_are_needed |= is_yes(&word(value)?),
        "dynamicforward" => settings.forward('D', &word(value)?),
        _ => {}
    }
    Ok(())
}

/// The words of a value, which may be quoted.
fn words(value: &str) -> Result<Vec<String>, String> {
    shlex::split(value).ok_or_else(|| "a quote is not closed".to_owned())
}

fn word(value: &str) -> Result<String, String> {
    words(value)?.into_iter().next().filter(|word| !word.is_empty()).ok_or_else(|| "the value is empty".to_owned())
}

fn is_yes(value: &str) -> bool {
    ["yes", "true"].contains(&value)
}

/// Without one the configuration decides.
fn timeout(value: &str) -> Result<Option<Duration>, String> {
    match value {
        "none" => Ok(None),
        value => parse_duration(value).map(|timeout| Some(timeout).filter(|timeout| !timeout.is_zero())),
    }
}

fn tty(value: &str) -> Result<Tty, String> {
    match value {
        "no" | "false" => Ok(Tty::Never),
        "auto" => Ok(Tty::Auto),
        "yes" | "true" => Ok(Tty::Wanted),
        "force" => Ok(Tty::Always),
        _ => Err("expected no, yes, force or auto".to_owned()),
    }
}

fn session(value: &str) -> Result<Session, String> {
    match value {
        "none" => Ok(Session::Nothing),
        "subsystem" => Ok(Session::Subsystem),
        "default" => Ok(Session::Command),
        _ => Err("expected none, subsystem or default".to_owned()),
    }
}

fn log_level(value: &str) -> LogLevel {
    match value.to_ascii_uppercase().as_str() {
        "QUIET" => LogLevel::Quiet,
        "FATAL" | "ERROR" => LogLevel::Errors,
        _ => LogLevel::All,
    }
}
