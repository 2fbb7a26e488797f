//! Resolves a target to an address and connection settings. Each setting comes from the first of flag, environment,
//! target and defaults that has it.

use std::fmt;
use std::time::Duration;

use telexec_client::{AccessToken, ConnectOptions, DEFAULT_PORT, Target, TlsOptions, WorkloadApi};
#[cfg(feature = "nats")]
use telexec_nats_client::NatsTarget;

use super::file::{Config, Credentials, NatsConfig, TargetConfig};
use super::overrides::from_environment;
use super::{ConfigError, Destination, InvalidDestination, Overrides, locate};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const FANOUT: usize = 64;
/// How many similar names are suggested.
const MAX_SIMILAR: usize = 3;
/// From 0 to 1, as in Python's difflib.
const MIN_SIMILARITY: f32 = 0.6;

/// The address of an agent, and how to connect to it.
#[derive(Clone, Debug)]
pub struct ResolvedTarget {
    /// How it is reached.
    pub route: Route,
    /// How to connect.
    pub options: ConnectOptions,
    /// How long to wait for an agent that is away.
    pub queue: Option<Duration>,
    /// The user to run commands as, unless a flag overrides it.
    pub user: Option<String>,
    /// The target is a name that the configuration does not have, so it is taken for a host.
    pub unconfigured: Option<UnconfiguredName>,
    /// The credentials that are from the configuration, by their keys.
    pub configured: Vec<&'static str>,
}

/// How an agent is reached.
#[derive(Clone, Debug)]
pub enum Route {
    /// It runs in this process.
    Local,
    /// At this address.
    Direct(Target),
    /// By way of a NATS server.
    #[cfg(feature = "nats")]
    Nats(NatsTarget, NatsConfig),
}

/// A name that is not in the configuration.
#[derive(Clone, Debug)]
pub struct UnconfiguredName {
    /// The name.
    pub name: String,
    /// Configured names that resemble it.
    pub similar: Vec<String>,
    /// It is that of a group of targets.
    pub is_group: bool,
}

impl Config {
    /// The address and the settings of a target.
    ///
    /// # Errors
    /// The credentials are incomplete.
    pub fn resolve(
        &self,
        destination: &Destination,
        overrides: impl Into<Overrides>,
    ) -> Result<ResolvedTarget, ConfigError> {
        let args = &overrides.into();
        match destination {
            Destination::Local => self.with_settings(Route::Local, None, args),
            Destination::Agent(target) => self.with_settings(Route::Direct(target.clone()), None, args),
            #[cfg(feature = "nats")]
            Destination::Nats(target) => self.with_settings(self.by_nats(target.clone())?, None, args),
            Destination::Host(host) => self.with_settings(self.at_default_port(host), None, args),
            Destination::Named(name) => match self.targets.get(name) {
                Some(named) => {
                    let mut resolved = self.with_settings(self.address(named)?, Some(named), args)?;
                    if let Some(tls) = &mut resolved.options.tls {
                        tls.server_name = tls.server_name.take().map(|expected| expected.replace("{host}", name));
                    }
                    Ok(resolved)
                }
                None => {
                    let resolved = self.with_settings(self.at_default_port(name), None, args)?;
                    Ok(ResolvedTarget { unconfigured: Some(self.unconfigured(name)), ..resolved })
                }
            },
        }
    }

    /// The port of hosts that are given without one.
    pub fn default_port(&self) -> u16 {
        self.defaults.port.unwrap_or(DEFAULT_PORT)
    }

    /// How many hosts `telexec fleet` works on at once.
    pub fn default_fanout(&self) -> usize {
        self.defaults.fanout.unwrap_or(FANOUT)
    }

    fn at_default_port(&self, host: &str) -> Route {
        Route::Direct(Target::Tcp { host: host.to_owned(), port: self.default_port() })
    }

    #[cfg(feature = "nats")]
    fn by_nats(&self, target: NatsTarget) -> Result<Route, ConfigError> {
        Ok(Route::Nats(target, self.nats()?))
    }

    /// The caller's credentials for NATS servers.
    ///
    /// # Errors
    /// They are incomplete.
    pub fn nats(&self) -> Result<NatsConfig, ConfigError> {
        self.nats.clone().with_environment().map_err(ConfigError::new)
    }

    /// The address of a configured target.
    fn address(&self, target: &TargetConfig) -> Result<Route, ConfigError> {
        match target.address.parse().map_err(|error: InvalidDestination| ConfigError::new(error.to_string()))? {
            Destination::Agent(address) => Ok(Route::Direct(address)),
            #[cfg(feature = "nats")]
            Destination::Nats(address) => self.by_nats(address),
            Destination::Named(host) | Destination::Host(host) => Ok(self.at_default_port(&host)),
            Destination::Local => Err(ConfigError::new("local is not an address")),
        }
    }

    fn unconfigured(&self, name: &str) -> UnconfiguredName {
        let names: Vec<&str> = self.targets.keys().map(String::as_str).collect();
        let similar = similar::get_close_matches(name, &names, MAX_SIMILAR, MIN_SIMILARITY);
        let similar = if similar.is_empty() { numbered_alike(name, &names) } else { similar };
        let similar = similar.into_iter().map(str::to_owned).collect();
        UnconfiguredName { name: name.to_owned(), similar, is_group: self.groups.contains_key(name) }
    }

    fn with_settings(
        &self,
        route: Route,
        named: Option<&TargetConfig>,
        args: &Overrides,
    ) -> Result<ResolvedTarget, ConfigError> {
        let route = at_port(route, args.port)?;
        check_queue(&route, args.queue)?;
        let is_tcp = matches!(route, Route::Direct(Target::Tcp { .. }));
        if !is_tcp && args.credentials().access_token_file.is_some() {
            return Err(ConfigError::new("--access-token-file is for targets on TCP: a token is sent by TLS only"));
        }
        let credentials = Some(self.credentials_of(named, args)).filter(|_| is_tcp).unwrap_or_default();
        let access_token = credentials.access_token.clone();
        if is_tcp && args.credentials().spiffe_id.is_some() && credentials.spiffe_socket.is_none() {
            return Err(ConfigError::new("spiffe_id requires spiffe_socket"));
        }
        let options = ConnectOptions {
            tls: tls(credentials)?,
            access_token,
            connect_timeout: self.connect_timeout(named, args),
            ..ConnectOptions::default()
        };
        let user = named.and_then(|named| named.user.as_ref()).or(self.defaults.user.as_ref());
        // the configured user does not apply to `local`
        let user = user.filter(|_| !matches!(route, Route::Local)).cloned();
        let given = args.credentials().or(from_environment());
        let keys = [("cert", given.cert), ("key", given.key), ("ca", given.ca)];
        let configured = keys.into_iter().filter(|(_, given)| given.is_none()).map(|(key, _)| key).collect();
        Ok(ResolvedTarget { route, options, queue: args.queue, user, unconfigured: None, configured })
    }

    /// Timeout for connecting to what the configuration does not name.
    pub fn default_connect_timeout(&self, overrides: impl Into<Overrides>) -> Duration {
        self.connect_timeout(None, &overrides.into())
    }

    fn connect_timeout(&self, named: Option<&TargetConfig>, args: &Overrides) -> Duration {
        let timeout = args.connect_timeout.or(named.and_then(|named| named.connect_timeout));
        timeout.or(self.defaults.connect_timeout).unwrap_or(CONNECT_TIMEOUT)
    }

    /// Fills in every target's credentials and settings from flags, environment and defaults.
    pub fn effective(mut self, overrides: impl Into<Overrides>) -> Self {
        let args = &overrides.into();
        let whole = self.clone();
        for target in self.targets.values_mut() {
            let Credentials {
                cert,
                key,
                ca,
                server_name,
                access_token_file,
                spiffe_socket,
                spiffe_id,
                access_token: _,
            } = whole.credentials_of(Some(target), args);
            (target.cert, target.key, target.ca, target.server_name) = (cert, key, ca, server_name);
            (target.spiffe_socket, target.spiffe_id) = (spiffe_socket, spiffe_id);
            target.access_token_file = access_token_file;
            target.connect_timeout = Some(whole.connect_timeout(Some(target), args));
            target.user = target.user.take().or_else(|| whole.defaults.user.clone());
        }
        let defaults = &mut self.defaults;
        let Credentials { cert, key, ca, server_name, access_token_file, spiffe_socket, spiffe_id, access_token: _ } =
            whole.credentials_of(None, args);
        (defaults.cert, defaults.key, defaults.ca, defaults.server_name) = (cert, key, ca, server_name);
        (defaults.spiffe_socket, defaults.spiffe_id) = (spiffe_socket, spiffe_id);
        defaults.access_token_file = access_token_file;
        defaults.connect_timeout = Some(whole.connect_timeout(None, args));
        defaults.port = Some(whole.default_port());
        defaults.fanout = Some(whole.default_fanout());
        if let Ok(nats) = whole.nats() {
            self.nats = nats;
        }
        self
    }

    /// The credentials from flags, environment and configuration.
    fn credentials_of(&self, named: Option<&TargetConfig>, args: &Overrides) -> Credentials {
        let by_name = |name: &Option<String>| self.credentials.get(name.as_ref()?).cloned();
        let defaults = &self.defaults;
        [
            Some(args.credentials()),
            Some(from_environment()),
            named.map(TargetConfig::own_credentials),
            named.and_then(|named| by_name(&named.credentials)),
            Some(Credentials {
                cert: defaults.cert.clone(),
                key: defaults.key.clone(),
                ca: defaults.ca.clone(),
                server_name: defaults.server_name.clone(),
                access_token_file: defaults.access_token_file.clone(),
                spiffe_socket: defaults.spiffe_socket.clone(),
                spiffe_id: defaults.spiffe_id.clone(),
                access_token: None,
            }),
            by_name(&defaults.credentials),
        ]
        .into_iter()
        .flatten()
        .map(Credentials::with_access_token)
        .fold(Credentials::default(), Credentials::or)
    }
}

fn tls(credentials: Credentials) -> Result<Option<TlsOptions>, ConfigError> {
    let Credentials { cert, key, ca, server_name, access_token_file: _, access_token, spiffe_socket, spiffe_id } =
        credentials;
    if let Some(socket) = spiffe_socket {
        if cert.is_some() || key.is_some() || ca.is_some() {
            let given = [("cert", cert.is_some()), ("key", key.is_some()), ("ca", ca.is_some())];
            let given: Vec<_> = given.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect();
            let text = format!(
                "spiffe_socket and {} exclude each other: the Workload API has certificates and CAs",
                given.join(", ")
            );
            return Err(ConfigError::new(text));
        }
        let api = WorkloadApi::new(&socket, spiffe_id.as_deref());
        let api = api.map_err(|error| ConfigError::new(format!("spiffe_{error}")))?;
        return Ok(Some(TlsOptions { server_name, ..TlsOptions::workload(api) }));
    }
    match (cert, key, ca) {
        (None, None, None) if access_token.is_some() => {
            Err(ConfigError::new("an access token needs --ca: it is sent by TLS only"))
        }
        (None, None, None) if spiffe_id.is_some() => Err(ConfigError::new("spiffe_id requires spiffe_socket")),
        (None, None, None) if server_name.as_deref().is_some_and(|name| name.starts_with("spiffe://")) => {
            Err(ConfigError::new("a SPIFFE ID as server_name requires spiffe_socket, or cert, key and ca"))
        }
        (None, None, None) => Ok(None),
        (Some(cert), Some(key), Some(ca)) => Ok(Some(TlsOptions { server_name, ..TlsOptions::new(cert, key, ca) })),
        (None, None, Some(ca)) if access_token.is_some() => {
            Ok(Some(TlsOptions { server_name, ..TlsOptions::without_certificate(ca) }))
        }
        (cert, key, ca) => {
            let paths = [("cert", cert), ("key", key), ("ca", ca)];
            let missing: Vec<_> = paths.iter().filter(|(_, path)| path.is_none()).map(|(key, _)| *key).collect();
            let text = "--cert, --key and --ca must be given together";
            let file = locate().map(|(file, _)| file.display().to_string()).unwrap_or_default();
            let or_token = if missing == ["cert", "key"] { "; or an access token (--access-token-file)" } else { "" };
            let hint = format!("missing: {}, as flags or in {file}{or_token}", missing.join(" and "));
            Err(ConfigError::new(text).with_hint(Some(hint)))
        }
    }
}

/// The address with another port, if one is given.
fn at_port(route: Route, port: Option<u16>) -> Result<Route, ConfigError> {
    let refused = |port: u16, other: &dyn fmt::Display| {
        Err(ConfigError::new(format!("port {port}: {other} is not an address with a port to replace")))
    };
    match (route, port) {
        (Route::Direct(Target::Tcp { host, .. }), Some(port)) => Ok(Route::Direct(Target::Tcp { host, port })),
        (Route::Direct(other), Some(port)) => refused(port, &other),
        #[cfg(feature = "nats")]
        (Route::Nats(other, _), Some(port)) => refused(port, &other),
        (route, _) => Ok(route),
    }
}

/// Only a queue holds commands for an agent that is away.
fn check_queue(route: &Route, queue: Option<Duration>) -> Result<(), ConfigError> {
    match (route, queue) {
        (Route::Local | Route::Direct(_), Some(_)) => {
            Err(ConfigError::new("--queue is for targets behind a NATS server: nats://SERVER/AGENT")
                .with_hint(Some("commands for other agents wait in no queue".to_owned())))
        }
        _ => Ok(()),
    }
}

impl Route {
    /// The address that is dialled.
    pub fn direct(&self) -> Option<&Target> {
        match self {
            Self::Direct(target) => Some(target),
            _ => None,
        }
    }
}

impl TargetConfig {
    fn own_credentials(&self) -> Credentials {
        let Self { cert, key, ca, server_name, access_token_file, spiffe_socket, spiffe_id, .. } = self.clone();
        Credentials { cert, key, ca, server_name, access_token_file, spiffe_socket, spiffe_id, access_token: None }
    }
}

impl Credentials {
    /// The token of its file, unless it has one without a file.
    fn with_access_token(mut self) -> Self {
        self.access_token = self.access_token.take().or_else(|| self.access_token_file.clone().map(AccessToken::File));
        self
    }

    /// With what these lack. Whoever has a certificate, a token or a Workload API calls with that alone: of the others, none is taken.
    fn or(self, other: Self) -> Self {
        let names =
            Self { server_name: other.server_name.clone(), spiffe_id: other.spiffe_id.clone(), ..Self::default() };
        let without_token = Self { access_token: None, access_token_file: None, spiffe_socket: None, ..other.clone() };
        let other = match () {
            // its CAs are from there as well
            () if self.spiffe_socket.is_some() => names,
            () if self.access_token.is_some() => Self { cert: None, key: None, ..without_token },
            () if self.cert.is_some() || self.key.is_some() => without_token,
            () => other,
        };
        Self {
            cert: self.cert.or(other.cert),
            key: self.key.or(other.key),
            ca: self.ca.or(other.ca),
            server_name: self.server_name.or(other.server_name),
            access_token_file: self.access_token_file.or(other.access_token_file),
            access_token: self.access_token.or(other.access_token),
            spiffe_socket: self.spiffe_socket.or(other.spiffe_socket),
            spiffe_id: self.spiffe_id.or(other.spiffe_id),
        }
    }
}

/// Names that differ in case or in their numbers alone, which short ones are not similar for.
fn numbered_alike<'a>(name: &str, names: &[&'a str]) -> Vec<&'a str> {
    let stem = |name: &str| name.trim_end_matches(|c: char| c.is_ascii_digit()).to_lowercase();
    let is_alike = |other: &&&str| !stem(name).is_empty() && stem(name) == stem(other);
    names.iter().filter(is_alike).take(MAX_SIMILAR).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Credentials from letters: c is a certificate, k its key, a the CA, t a token, s a Workload API; with this number in their names.
    fn level(number: usize, letters: &str) -> Credentials {
        let path = |letter: char| letters.contains(letter).then(|| PathBuf::from(format!("{letter}{number}")));
        let credentials = Credentials { cert: path('c'), key: path('k'), ca: path('a'), ..Credentials::default() };
        let spiffe_socket = letters.contains('s').then(|| format!("s{number}"));
        Credentials { access_token_file: path('t'), spiffe_socket, ..credentials }.with_access_token()
    }

    #[test]
    fn an_identity_goes_before_those_of_all_kinds_that_come_later() {
        for (levels, expected) in [
            (["cka", "", ""], "c0 k0 a0"),
            (["", "a", "cka"], "c2 k2 a1"),
            (["c", "k", "a"], "c0 k1 a2"),
            (["t", "cka", ""], "a1 t0"),
            (["", "t", "cka"], "a2 t1"),
            (["ck", "t", "a"], "c0 k0 a2"),
            (["c", "t", "cka"], "c0 k2 a2"),
            (["a", "t", "t"], "a0 t1"),
            (["ckt", "a", "ck"], "c0 k0 a1 t0"),
            (["", "", ""], ""),
            (["s", "cka", "s"], "s0"),
            (["cka", "s", ""], "c0 k0 a0"),
            (["", "t", "s"], "t1"),
            (["st", "cka", "t"], "t0 s0"),
            (["", "s", "t"], "s1"),
        ] {
            let levels = levels.into_iter().enumerate().map(|(number, letters)| level(number, letters));
            let Credentials { cert, key, ca, access_token_file, access_token, spiffe_socket, .. } =
                levels.fold(Credentials::default(), Credentials::or);
            assert_eq!(access_token, access_token_file.clone().map(AccessToken::File));
            let paths = [cert, key, ca, access_token_file, spiffe_socket.map(PathBuf::from)].into_iter().flatten();
            let found: Vec<_> = paths.map(|path| path.display().to_string()).collect();
            assert_eq!(found.join(" "), expected);
        }
    }

    #[test]
    fn short_names_are_alike_up_to_their_numbers() {
        let names = ["a1", "a22", "db", "web1"];
        assert_eq!(numbered_alike("a9", &names), ["a1", "a22"]);
        assert_eq!(numbered_alike("A1", &names), ["a1", "a22"]);
        assert_eq!(numbered_alike("DB", &names), ["db"]);
        assert!(numbered_alike("7", &names).is_empty() && numbered_alike("b1", &names).is_empty());
    }
}
