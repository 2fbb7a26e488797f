//! Environment variables from flags, from this process and from files, as docker takes them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};

/// A name and its value.
pub(crate) type Variable = (String, String);

/// The variables in a file.
#[derive(Clone, Debug)]
pub(crate) struct EnvFile(pub(crate) Vec<Variable>);

/// `NAME=VALUE`, or `NAME` for the value that this process has.
pub(crate) fn parse_variable(text: &str) -> Result<Variable, String> {
    match text.split_once('=') {
        Some(("", _)) => Err("the name is empty".to_owned()),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => own(text).map(|value| (text.to_owned(), value)),
    }
}

fn own(name: &str) -> Result<String, String> {
    match std::env::var(name) {
        _ if name.is_empty() || name.contains('\0') => Err("expected NAME=VALUE, or NAME".to_owned()),
        Ok(value) => Ok(value),
        Err(std::env::VarError::NotPresent) => {
            Err(format!("{name} is not set here, so it cannot be passed on: set it, or use {name}=VALUE"))
        }
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("the value of {name} is not UTF-8")),
    }
}

/// Reads a file of such lines; empty ones and those that begin with # are skipped. A file is read once: a command line may be
/// parsed again, to explain what is wrong with it, and the text of a pipe would be gone.
pub(crate) fn read_env_file(path: &str) -> Result<EnvFile, String> {
    static READ: Mutex<BTreeMap<String, Result<EnvFile, String>>> = Mutex::new(BTreeMap::new());
    let read = || {
        let text = fs::read_to_string(path).map_err(|error| format!("cannot read it: {error}"))?;
        parse_env_file(&text).map(EnvFile)
    };
    let mut files = READ.lock().unwrap_or_else(PoisonError::into_inner);
    files.entry(path.to_owned()).or_insert_with(read).clone()
}

fn parse_env_file(text: &str) -> Result<Vec<Variable>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().map(str::trim_start).enumerate();
    let variables = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parse = |(number, line)| {
        let variable = parse_variable(line).and_then(|(name, value)| match name.contains(char::is_whitespace) {
            true => Err(format!("the name {name:?} contains a space")),
            false => Ok((name, value)),
        });
        variable.map_err(|error| format!("line {}: {error}", number + 1))
    };
    variables.map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_read_as_docker_reads_them() {
        let path = std::env::var("PATH").unwrap();
        let text = "\u{feff}A=1\n# B=2\n\n  # C=3\n  D= x \"y\" # z \r\nE=\nF=a=b\nPATH\n";
        let expected = [("A", "1"), ("D", " x \"y\" # z "), ("E", ""), ("F", "a=b"), ("PATH", &path)];
        assert_eq!(parse_env_file(text).unwrap(), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn what_is_no_variable_is_reported_with_its_line() {
        for (text, why) in [
            ("A=1\n=2", "line 2: the name is empty"),
            ("export A=1", "line 1: the name \"export A\" contains a space"),
            ("\nNO_SUCH_VARIABLE_IS_SET", "line 2: NO_SUCH_VARIABLE_IS_SET is not set here"),
        ] {
            let error = parse_env_file(text).unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
