//! Resolves a target to an address and connection settings. Each setting comes from the first of flag, environment,
//! target and defaults that has it.

use std::path::PathBuf;
use std::time::Duration;

use telexec_client::{ConnectOptions, Target, TlsOptions};

use super::ConnectArgs;
use super::file::{Config, Credentials, TargetConfig};
use crate::output::{Failure, exit};
use crate::syntax::Destination;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of an agent, and how to connect to it.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedTarget {
    /// `None`: an agent in this process.
    pub(crate) target: Option<Target>,
    pub(crate) options: ConnectOptions,
    /// The user to run commands as, unless a flag overrides it.
    pub(crate) user: Option<String>,
}

impl Config {
    /// # Errors
    /// The name is unknown, or the credentials are incomplete.
    pub(crate) fn resolve(&self, destination: &Destination, args: &ConnectArgs) -> Result<ResolvedTarget, Failure> {
        match destination {
            Destination::Local => self.with_settings(None, None, args),
            Destination::Agent(target) => self.with_settings(Some(target.clone()), None, args),
            Destination::Named(name) => match (self.targets.get(name), self.defaults.port) {
                (Some(named), _) => {
                    let target = named.address.parse().map_err(|error| Failure::new(exit::USAGE, &error))?;
                    self.with_settings(Some(target), Some(named), args)
                }
                (None, Some(port)) => self.with_settings(Some(Target::Tcp { host: name.clone(), port }), None, args),
                (None, None) => Err(unknown(name)),
            },
        }
    }

    fn with_settings(
        &self,
        target: Option<Target>,
        named: Option<&TargetConfig>,
        args: &ConnectArgs,
    ) -> Result<ResolvedTarget, Failure> {
        let timeout = args.connect_timeout.or(named.and_then(|named| named.connect_timeout));
        let options = ConnectOptions {
            tls: match &target {
                Some(Target::Tcp { .. }) => self.tls(named, args)?,
                _ => None,
            },
            connect_timeout: timeout.or(self.defaults.connect_timeout).unwrap_or(CONNECT_TIMEOUT),
            ..ConnectOptions::default()
        };
        let user = named.and_then(|named| named.user.as_ref()).or(self.defaults.user.as_ref());
        // the configured user does not apply to `local`
        let user = target.as_ref().and(user).cloned();
        Ok(ResolvedTarget { target, options, user })
    }

    /// Fills in every target's credentials and settings from flags, environment and defaults.
    pub(crate) fn effective(mut self, args: &ConnectArgs) -> Self {
        let whole = self.clone();
        for target in self.targets.values_mut() {
            let Credentials { cert, key, ca, server_name } = whole.credentials_of(Some(target), args);
            (target.cert, target.key, target.ca, target.server_name) = (cert, key, ca, server_name);
            let timeout = args.connect_timeout.or(target.connect_timeout).or(whole.defaults.connect_timeout);
            target.connect_timeout = timeout;
            target.user = target.user.take().or_else(|| whole.defaults.user.clone());
        }
        let defaults = &mut self.defaults;
        let Credentials { cert, key, ca, server_name } = whole.credentials_of(None, args);
        (defaults.cert, defaults.key, defaults.ca, defaults.server_name) = (cert, key, ca, server_name);
        defaults.connect_timeout = args.connect_timeout.or(defaults.connect_timeout);
        self
    }

    fn tls(&self, named: Option<&TargetConfig>, args: &ConnectArgs) -> Result<Option<TlsOptions>, Failure> {
        let Credentials { cert, key, ca, server_name } = self.credentials_of(named, args);
        match (cert, key, ca) {
            (None, None, None) => Ok(None),
            (Some(cert), Some(key), Some(ca)) => Ok(Some(TlsOptions { server_name, ..TlsOptions::new(cert, key, ca) })),
            _ => Err(Failure::message(exit::USAGE, "--cert, --key and --ca must be given together")),
        }
    }

    /// The credentials from flags, environment and configuration.
    fn credentials_of(&self, named: Option<&TargetConfig>, args: &ConnectArgs) -> Credentials {
        let given = Credentials {
            cert: args.cert.clone(),
            key: args.key.clone(),
            ca: args.ca.clone(),
            server_name: args.server_name.clone(),
        };
        let by_name = |name: &Option<String>| self.credentials.get(name.as_ref()?).cloned();
        let defaults = &self.defaults;
        [
            named.map(TargetConfig::own_credentials),
            named.and_then(|named| by_name(&named.credentials)),
            Some(Credentials {
                cert: defaults.cert.clone(),
                key: defaults.key.clone(),
                ca: defaults.ca.clone(),
                server_name: defaults.server_name.clone(),
            }),
            by_name(&defaults.credentials),
        ]
        .into_iter()
        .flatten()
        .fold(given, Credentials::or)
    }
}

impl TargetConfig {
    fn own_credentials(&self) -> Credentials {
        let Self { cert, key, ca, server_name, .. } = self.clone();
        Credentials { cert, key, ca, server_name }
    }
}

impl Credentials {
    fn or(self, other: Self) -> Self {
        let either = |one: Option<PathBuf>, other| one.or(other);
        Self {
            cert: either(self.cert, other.cert),
            key: either(self.key, other.key),
            ca: either(self.ca, other.ca),
            server_name: self.server_name.or(other.server_name),
        }
    }
}

fn unknown(name: &str) -> Failure {
    let file = super::locate().map_or_else(|| "the configuration".to_owned(), |(path, _)| path.display().to_string());
    Failure::message(exit::USAGE, format!("no target {name:?} in {file}, and an address needs a port"))
        .hint(Some("use local, unix:///PATH, HOST:PORT, or a name that `telexec config show` lists"))
}
