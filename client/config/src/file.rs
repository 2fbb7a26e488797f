//! The keys of the configuration file; `deploy/telexec.toml` documents them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use telexec_client::AccessToken;

use crate::nodeset::Groups;
use crate::{Destination, nodeset, parse_duration, parse_timeout};

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Settings for every target that does not override them.
    pub defaults: Defaults,
    /// Credentials by name.
    pub credentials: BTreeMap<String, Credentials>,
    /// Agents by name.
    pub targets: BTreeMap<String, TargetConfig>,
    /// Sets of hosts by name.
    pub groups: BTreeMap<String, Vec<String>>,
    /// For NATS servers.
    pub nats: NatsConfig,
}

/// Settings for every target that does not override them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// The name of credentials.
    pub credentials: Option<String>,
    /// PEM: the certificate.
    pub cert: Option<PathBuf>,
    /// PEM: its private key.
    pub key: Option<PathBuf>,
    /// PEM: the CA of the other side.
    pub ca: Option<PathBuf>,
    /// The name in the agent's certificate, or its SPIFFE ID; `{host}` is the target's name, or else its host.
    pub server_name: Option<String>,
    /// A file with a JSON Web Token, for agents that know callers by tokens.
    pub access_token_file: Option<PathBuf>,
    /// The socket of the SPIFFE Workload API that certificates are from, instead of files.
    pub spiffe_socket: Option<String>,
    /// The SPIFFE ID to use, if it issues several. Default: the first.
    pub spiffe_id: Option<String>,
    /// Timeout for connecting.
    #[serde(deserialize_with = "duration", serialize_with = "as_text")]
    pub connect_timeout: Option<Duration>,
    /// The user that commands run as.
    pub user: Option<String>,
    /// Port of hosts given without one.
    pub port: Option<u16>,
    /// How many hosts are worked on at once.
    pub fanout: Option<usize>,
    /// How long before a certificate expires the caller is warned; 0: never.
    #[serde(deserialize_with = "any_duration", serialize_with = "as_text")]
    pub expiry_warning: Option<Duration>,
}

/// The client certificate or token, and the trusted CA.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Credentials {
    /// PEM: the certificate.
    pub cert: Option<PathBuf>,
    /// PEM: its private key.
    pub key: Option<PathBuf>,
    /// PEM: the CA of the other side.
    pub ca: Option<PathBuf>,
    /// The name in the agent's certificate, or its SPIFFE ID; `{host}` is the target's name, or else its host.
    pub server_name: Option<String>,
    /// A file with a JSON Web Token, for agents that know callers by tokens.
    pub access_token_file: Option<PathBuf>,
    /// The socket of the SPIFFE Workload API that certificates are from, instead of files.
    pub spiffe_socket: Option<String>,
    /// The SPIFFE ID to use, if it issues several. Default: the first.
    pub spiffe_id: Option<String>,
    /// A token that is in no file: not in the configuration.
    #[serde(skip)]
    pub access_token: Option<AccessToken>,
}

/// A named agent.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table: write [targets.NAME] and below it address = \"...\"")]
pub struct TargetConfig {
    /// Where it is.
    pub address: String,
    /// The name of credentials.
    pub credentials: Option<String>,
    /// PEM: the certificate.
    pub cert: Option<PathBuf>,
    /// PEM: its private key.
    pub key: Option<PathBuf>,
    /// PEM: the CA of the other side.
    pub ca: Option<PathBuf>,
    /// The name in the agent's certificate, or its SPIFFE ID; `{host}` is the target's name, or else its host.
    pub server_name: Option<String>,
    /// A file with a JSON Web Token, for agents that know callers by tokens.
    pub access_token_file: Option<PathBuf>,
    /// The socket of the SPIFFE Workload API that certificates are from, instead of files.
    pub spiffe_socket: Option<String>,
    /// The SPIFFE ID to use, if it issues several. Default: the first.
    pub spiffe_id: Option<String>,
    /// Timeout for connecting.
    #[serde(default, deserialize_with = "duration", serialize_with = "as_text")]
    pub connect_timeout: Option<Duration>,
    /// The user that commands run as.
    pub user: Option<String>,
}

/// The caller's credentials for NATS servers.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct NatsConfig {
    /// A file with a user's JWT and seed.
    pub creds: Option<PathBuf>,
    /// A file with a seed.
    pub nkey: Option<PathBuf>,
    /// PEM: the CA of the other side.
    pub ca: Option<PathBuf>,
    /// PEM: the certificate.
    pub cert: Option<PathBuf>,
    /// PEM: its private key.
    pub key: Option<PathBuf>,
    /// A file with the seed that signs requests.
    pub signing_key: Option<PathBuf>,
}

impl NatsConfig {
    /// With what environment variables say, which go before the file. A variable with credentials replaces those of all kinds.
    ///
    /// # Errors
    /// Only one of two that belong together is given.
    pub(crate) fn with_environment(self) -> Result<Self, String> {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let path = |name| text(name).map(PathBuf::from);
        let (creds, nkey) = (path("TELEXEC_NATS_CREDS"), path("TELEXEC_NATS_NKEY"));
        let (user, password) = (text("TELEXEC_NATS_USER"), text("TELEXEC_NATS_PASSWORD"));
        if user.is_some() != password.is_some() {
            return Err("TELEXEC_NATS_USER and TELEXEC_NATS_PASSWORD must be given together".to_owned());
        }
        let is_given = creds.is_some() || nkey.is_some() || user.is_some();
        let config = Self {
            creds: creds.or(self.creds.filter(|_| !is_given)),
            nkey: nkey.or(self.nkey.filter(|_| !is_given)),
            ca: path("TELEXEC_NATS_CA").or(self.ca),
            cert: path("TELEXEC_NATS_CERT").or(self.cert),
            key: path("TELEXEC_NATS_KEY").or(self.key),
            signing_key: path("TELEXEC_NATS_SIGNING_KEY").or(self.signing_key),
        };
        if config.cert.is_some() != config.key.is_some() {
            return Err(
                "nats.cert and nats.key (TELEXEC_NATS_CERT, TELEXEC_NATS_KEY) must be given together".to_owned()
            );
        }
        Ok(config)
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let with_key = |error| serde::de::Error::custom(format!("connect_timeout: {error}"));
    parse_timeout(&text).map(Some).map_err(with_key)
}

fn any_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let with_key = |error| serde::de::Error::custom(format!("expiry_warning: {error}"));
    parse_duration(&text).map(Some).map_err(with_key)
}

fn as_text<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => serializer.collect_str(&humantime::format_duration(*duration)),
        None => serializer.serialize_none(),
    }
}

impl Config {
    /// Makes paths absolute and rejects invalid values.
    pub(crate) fn validate(&mut self, file: &Path) -> Result<(), String> {
        self.resolve_paths(file);
        let Defaults { credentials, fanout, port, .. } = &self.defaults;
        self.check_credentials(credentials.as_ref()).map_err(|error| format!("defaults.credentials: {error}"))?;
        if *fanout == Some(0) || *port == Some(0) {
            let key = if *fanout == Some(0) { "fanout" } else { "port" };
            return Err(format!("defaults.{key}: must be greater than 0"));
        }
        for (name, target) in &self.targets {
            check_name(name).map_err(|error| format!("targets.{name}: {error}"))?;
            check_address(&target.address).map_err(|error| format!("targets.{name}.address: {error}"))?;
            let known = self.check_credentials(target.credentials.as_ref());
            known.map_err(|error| format!("targets.{name}.credentials: {error}"))?;
        }
        for (name, nodes) in &self.groups {
            check_name(name).map_err(|error| format!("groups.{name}: {error}"))?;
            let checked = nodeset::expand(&nodes.join(","), self);
            checked.map_err(|error| format!("groups.{name}: {error}"))?;
        }
        Ok(())
    }

    fn resolve_paths(&mut self, file: &Path) {
        let base = file.parent().unwrap_or(Path::new(""));
        let home = std::env::var_os("HOME");
        let Defaults { cert, key, ca, access_token_file, .. } = &mut self.defaults;
        let mut paths = vec![cert, key, ca, access_token_file];
        for Credentials { cert, key, ca, access_token_file, .. } in self.credentials.values_mut() {
            paths.extend([cert, key, ca, access_token_file]);
        }
        for TargetConfig { cert, key, ca, access_token_file, .. } in self.targets.values_mut() {
            paths.extend([cert, key, ca, access_token_file]);
        }
        let NatsConfig { creds, nkey, ca, cert, key, signing_key } = &mut self.nats;
        paths.extend([creds, nkey, ca, cert, key, signing_key]);
        for path in paths.into_iter().flatten() {
            *path = match (path.strip_prefix("~"), &home) {
                (Ok(rest), Some(home)) => Path::new(home).join(rest),
                _ => base.join(&path),
            };
        }
    }

    fn check_credentials(&self, credentials: Option<&String>) -> Result<(), String> {
        match credentials {
            Some(name) if !self.credentials.contains_key(name) => Err(format!("no [credentials.{name}]")),
            _ => Ok(()),
        }
    }
}

impl Groups for Config {
    fn group(&self, name: &str) -> Option<Vec<String>> {
        match self.groups.get(name) {
            Some(nodes) => Some(nodes.clone()),
            None if name == "all" => Some(self.targets.keys().cloned().collect()),
            None => None,
        }
    }
}

/// The name must be parsed as a name on the command line.
fn check_name(name: &str) -> Result<(), String> {
    match name.parse() {
        Ok(Destination::Named(_)) => Ok(()),
        Ok(Destination::Local) => Err("this name is reserved for the agent in telexec itself".to_owned()),
        _ => Err("a name may contain only letters, digits, - _ and .".to_owned()),
    }
}

fn check_address(address: &str) -> Result<(), String> {
    // a configuration is for all programs, also those that cannot use all of its targets
    if cfg!(not(feature = "nats")) && address.starts_with("nats://") {
        return Ok(());
    }
    match address.parse() {
        Ok(Destination::Local) => Err("local is not an address".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
