//! What a target comes to: an address, and how to get there. Flag, environment, target, defaults: the first that says
//! something counts, for each setting.

use std::path::PathBuf;
use std::time::Duration;

use telexec_client::{ConnectOptions, Target, TlsOptions};

use super::ConnectArgs;
use super::file::{Config, Credentials, TargetConfig};
use crate::output::{Failure, exit};
use crate::syntax::Destination;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where an agent is, and how to get there.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// `None`: an agent in this process.
    pub(crate) target: Option<Target>,
    pub(crate) options: ConnectOptions,
    /// Who commands run as, unless a flag says otherwise.
    pub(crate) user: Option<String>,
}

impl Config {
    /// # Errors
    /// The name is not known, or the credentials are not whole.
    pub(crate) fn place(&self, destination: &Destination, args: &ConnectArgs) -> Result<Place, Failure> {
        match destination {
            Destination::Local => self.reached(None, None, args),
            Destination::Agent(target) => self.reached(Some(target.clone()), None, args),
            Destination::Named(name) => match (self.targets.get(name), self.defaults.port) {
                (Some(named), _) => {
                    let target = named.address.parse().map_err(|error| Failure::new(exit::USAGE, &error))?;
                    self.reached(Some(target), Some(named), args)
                }
                (None, Some(port)) => self.reached(Some(Target::Tcp { host: name.clone(), port }), None, args),
                (None, None) => Err(unknown(name)),
            },
        }
    }

    fn reached(
        &self,
        target: Option<Target>,
        named: Option<&TargetConfig>,
        args: &ConnectArgs,
    ) -> Result<Place, Failure> {
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
        // who else commands here could run as is not what the configuration is about
        let user = target.as_ref().and(user).cloned();
        Ok(Place { target, options, user })
    }

    /// With what each target has from elsewhere: its credentials, the flags, the environment and the defaults.
    pub(crate) fn resolved(mut self, args: &ConnectArgs) -> Self {
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
            _ => Err(Failure::text(exit::USAGE, "--cert, --key and --ca must be given together")),
        }
    }

    /// What the flags, the environment and the configuration come to.
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
    let place = super::locate().map_or_else(|| "the configuration".to_owned(), |(path, _)| path.display().to_string());
    Failure::text(exit::USAGE, format!("no target {name:?} in {place}, and an address needs a port"))
        .advice(Some("use local, unix:///PATH, HOST:PORT, or a name that `telexec config show` lists"))
}
