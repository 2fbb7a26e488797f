//! The operator's configuration: targets, credentials and groups by name, and defaults.
//!
//! `file` has the keys, [`Overrides`] go before them, and `resolve` combines both into connection settings. How targets are
//! written is in `destination`, sets of them in [`nodeset`].

mod destination;
mod duration;
mod error;
mod file;
pub mod nodeset;
mod overrides;
mod resolve;

use std::io;
use std::path::{Path, PathBuf};

pub use self::destination::{Destination, InvalidDestination, parse_agent};
pub use self::duration::{parse_duration, parse_timeout};
pub use self::error::ConfigError;
pub use self::file::{Config, Credentials, Defaults, NatsConfig, TargetConfig};
pub use self::overrides::Overrides;
pub use self::resolve::{ResolvedTarget, Route, UnconfiguredName};

/// Overrides the path of the file.
const VARIABLE: &str = "TELEXEC_CONFIG";

/// The path of the file, and whether it was set explicitly.
pub fn locate() -> Option<(PathBuf, bool)> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = variable(VARIABLE) {
        return Some((path, true));
    }
    let config = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")))?;
    Some((config.join("telexec/config.toml"), false))
}

impl Config {
    /// Reads the file. A missing file is empty, unless its path was set explicitly.
    ///
    /// # Errors
    /// It cannot be read, or is invalid.
    pub fn load() -> Result<Self, ConfigError> {
        let Some((path, named)) = locate() else { return Ok(Self::default()) };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, &path).map_err(ConfigError::new),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !named => Ok(Self::default()),
            Err(error) => {
                let error = ConfigError::new(format!("cannot read {}: {error}", path.display()));
                Err(error.with_hint(named.then(|| format!("{VARIABLE} names this file"))))
            }
        }
    }

    /// Parses the content of the file at `path`.
    ///
    /// # Errors
    /// What is invalid, with file and line or key.
    pub fn parse(text: &str, path: &Path) -> Result<Self, String> {
        let mut config: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            format!("{}:{line}: {}", path.display(), error.message().replace('\n', ", "))
        })?;
        config.validate(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("/etc/x/config.toml"))
    }

    #[test]
    fn the_commented_example_is_valid_and_shows_every_key() {
        let example = include_str!("../../../deploy/telexec.toml");
        parse(example).unwrap();
        // uncomment every key
        let uncommented: String = example
            .lines()
            .map(|line| {
                let key = line.strip_prefix("# ").filter(|rest| {
                    rest.starts_with('[') || rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
                });
                format!("{}\n", key.unwrap_or(line))
            })
            .collect();
        let config = parse(&uncommented).unwrap();
        assert!(config.defaults.credentials.is_some() && config.defaults.fanout.is_some());
        assert!(config.targets.len() > 1 && config.groups.len() > 1 && !config.credentials.is_empty());
    }

    #[test]
    fn errors_name_the_file_and_the_key() {
        for (text, what) in [
            ("[defaults]\nfanuot = 3", "/etc/x/config.toml:2: unknown field `fanuot`"),
            ("[targets.a]\naddress = 'a:1'\ncolour = 1", ":3: unknown field `colour`"),
            ("[target.a]", ":1: unknown field `target`"),
            ("[targets]\na = 'h:1'", ":2: invalid type: string \"h:1\", expected a table: write [targets.NAME] and"),
            ("[targets.a]\nuser = 'x'", "missing field `address`"),
            ("[defaults]\nconnect_timeout = '0s'", "connect_timeout: must be greater than 0"),
            ("[defaults]\nconnect_timeout = 5", ":2: invalid type"),
            ("[defaults]\nfanout = 0", "defaults.fanout: "),
            ("[defaults]\ncredentials = 'x'", "defaults.credentials: no [credentials.x]"),
            ("[targets.a]\naddress = 'a:1'\ncredentials = 'x'", "targets.a.credentials: no [credentials.x]"),
            ("[targets.a]\naddress = '/run/b'", "targets.a.address: a Unix socket is written unix:///run/b"),
            ("[targets.a]\naddress = 'local'", "targets.a.address: "),
            ("[targets.local]\naddress = 'a:1'", "targets.local: "),
            ("[targets.'a b']\naddress = 'a:1'", "targets.a b: "),
            ("[groups]\n'a,b' = ['x']", "groups.a,b: "),
            ("[groups]\na = ['x[1-']", "groups.a: "),
            ("[groups]\na = ['@b']", "groups.a: no group \"b\""),
            ("[groups]\na = ['@b']\nb = ['c', '@a']", "groups.a: group b contains itself"),
            ("[groups]\na = 'x'", ":2: invalid type"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("/etc/x/config.toml:") && error.contains(what), "{text}\n{error}");
        }
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let config = parse("[credentials.a]\ncert = 'certs/a.pem'\nkey = '/k.pem'").unwrap();
        let credentials = &config.credentials["a"];
        assert_eq!(credentials.cert.as_deref(), Some(Path::new("/etc/x/certs/a.pem")));
        assert_eq!(credentials.key.as_deref(), Some(Path::new("/k.pem")));
    }
}
