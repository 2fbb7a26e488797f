//! The agent's configuration: the keys of `telexecd.toml`, and their validation.

mod error;
mod local;
mod spiffe;
mod tls;
mod values;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use telexec_engine::{ContainmentKind, DYNAMIC_USER, Keeper, LocalConfig, allowed_users, check_identity_limits};
use telexec_executor::Command;
use telexec_keeper::users::Users;

pub use self::error::ConfigError;
pub use self::spiffe::SpiffeConfig;
use self::tls::check_protection;
pub use self::values::{DefaultUsers, KeeperMode, LogFormat, RequiredContainment, SocketMode};
use crate::address::{ListenAddress, repeated};
use crate::audit::{AuditConfig, CollectorConfig, DestinationConfig};
use crate::hostname::hostname;
use crate::invalid::InvalidSetting;
use crate::named_command::{NamedCommandConfig, NamedCommands};
use crate::policy::{AgentFacts, PolicyFile, Roles};
use crate::receipts::Receipts;
use crate::reload::Source;
use crate::request_memory::Limits;
use crate::tls::TlsSource;
use crate::token::{TokenIssuerConfig, TokenIssuers};
use crate::trace;

/// Twice the default number of executions: each may be followed, and queried besides.
const MAX_CALLS_PER_IDENTITY: NonZeroU32 = NonZeroU32::new(8192).unwrap();
/// Less would refuse what every caller sends.
const MIN_REQUEST_BYTES: usize = 64 * 1024;
const MIN_REQUEST_FIELDS: usize = 64;
/// With less no command runs.
const MIN_MEMORY_BYTES: u64 = 1024 * 1024;

/// The configuration of an agent. `deploy/telexecd.toml` is the commented example.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where to listen. At least one.
    pub listen: Vec<ListenAddress>,
    /// Where to serve metrics for Prometheus: `tcp://` or `unix://`. Default: nowhere.
    pub metrics_listen: Option<ListenAddress>,
    /// A collector of OpenTelemetry that spans are sent to, by OTLP over gRPC: `http://host:port`. Default: none.
    pub otlp_endpoint: Option<String>,
    /// Offer files, and Unix sockets as other users: only for programs that call [`serve_if_asked`](crate::serve_if_asked)
    /// first of all, since this program itself is started for that. Not in configuration files. Default: no; `telexecd`
    /// does.
    #[serde(skip)]
    pub serves_files: bool,
    /// As whom commands may run, and the processes that open files for callers: users by name, or by id. Default: anyone whom
    /// the policy permits.
    pub command_users: Option<Vec<String>>,
    /// As whom commands run that name no user. Default: as the user of the agent, or as `agent_user` says.
    pub users: Option<DefaultUsers>,
    /// How much a command of a dynamic user may store in its `/tmp`, `/var/tmp` and `/dev/shm` together, in bytes of memory. At least
    /// 1 MiB. Default: a quarter of the machine's memory.
    pub max_private_bytes: Option<u64>,
    /// Keep programs such as sudo from raising the privileges of any command (PR_SET_NO_NEW_PRIVS of prctl(2)). Default: no.
    pub no_new_privileges: bool,
    /// Whether a separate process, the keeper, starts the agent and all commands, and restarts the agent if it crashes. Default:
    /// auto.
    pub keeper: KeeperMode,
    /// A Unix socket, such as `/dev/log`, to which the keeper logs each start as of syslog(3): as which process and user, and for which
    /// execution and identity, as the agent says. Default: starts are not logged.
    pub keeper_syslog: Option<PathBuf>,
    /// The unprivileged user to run the agent as, by name or by id; the keeper stays root. Requires a keeper, root and cgroup v2.
    /// If this process runs as it already, so do commands. Otherwise they never do: those that name no user run as the first of `command_users`, or without these as root. Default: the keeper's.
    pub agent_user: Option<String>,
    /// That process, if it has started this one. Not in configuration files.
    #[serde(skip)]
    pub kept_by: Option<Keeper>,
    /// The agent's certificate chain (PEM), for TCP.
    pub tls_cert: Option<PathBuf>,
    /// Its private key (PEM).
    pub tls_key: Option<PathBuf>,
    /// The CAs whose certificates callers must present (PEM).
    pub client_ca: Option<PathBuf>,
    /// A revocation list (PEM) of each of these CAs.
    pub client_crl: Option<PathBuf>,
    /// For each CA file, the patterns of the names for which its CAs may issue certificates. Default: any CA of `client_ca`
    /// may issue certificates for any name.
    pub identities: Option<BTreeMap<PathBuf, Vec<String>>>,
    /// Certificates from the SPIFFE Workload API, instead of files. Default: files.
    pub spiffe: Option<SpiffeConfig>,
    /// Issuers of JSON Web Tokens (RFC 7519), by the names that the identities of their callers begin with. Default: callers need
    /// certificates.
    pub token_issuers: BTreeMap<String, TokenIssuerConfig>,
    /// The policy, in Cedar. Default: every authenticated caller may run commands, and do anything with its own.
    pub policy: Option<PathBuf>,
    /// The private key (Ed25519, PKCS#8 in PEM) that signs receipts. Default: requests for one are refused.
    pub receipt_key: Option<PathBuf>,
    /// Roles for the policy: each with patterns of identities.
    pub roles: BTreeMap<String, Vec<String>>,
    /// Named commands: what callers may run by its name, such as `@restart-web web-3`. Default: none.
    pub commands: BTreeMap<String, NamedCommandConfig>,
    /// The mode of Unix sockets, in octal. Default `0600`. A wider one lets other local users connect, as the policy permits;
    /// without a policy they are refused all the same.
    pub socket_mode: SocketMode,
    /// Allow TCP without TLS, on loopback addresses only, and vsock from this machine itself. Default: no.
    pub insecure: bool,
    /// For the agent's own files, and the state handed over to the next agent; made with mode 0700. Default: a temporary
    /// directory, removed when the agent ends.
    pub state_dir: Option<PathBuf>,
    /// Default `text`.
    pub log_format: LogFormat,
    /// A level or filter directives of `tracing`. Default `info`.
    pub log_level: String,
    /// Log the text of commands at info level instead of debug. Default: no, since texts may hold secrets.
    pub log_commands: bool,
    /// The shell for commands that name none. Default `bash`.
    pub shell: String,
    /// The directory (an absolute path) of commands that name none. Default: the home of the agent's user.
    pub working_directory: Option<String>,
    /// Added to the environment of every command; PATH here is also where programs are looked up.
    pub environment: BTreeMap<String, String>,
    /// Returned by `GetAgent`.
    pub labels: BTreeMap<String, String>,
    /// For commands that do not say. Default 2 s.
    #[serde(with = "humantime_serde")]
    pub kill_grace: Duration,
    /// Longer ones, asked for or not, are cut to this. Default 60 s.
    #[serde(with = "humantime_serde")]
    pub max_kill_grace: Duration,
    /// How long a command may wait for its caller after a lost connection: longer ones that are asked for are cut to this.
    /// Default 5 min.
    #[serde(with = "humantime_serde")]
    pub max_disconnect_grace: Duration,
    /// For commands that do not say. Default: none.
    #[serde(with = "humantime_serde")]
    pub default_timeout: Option<Duration>,
    /// Longer timeouts, and none, are cut to this. Default: no limit.
    #[serde(with = "humantime_serde")]
    pub max_timeout: Option<Duration>,
    /// For each stream of commands that do not say, in bytes; 0: unlimited. Default 0.
    pub max_output_bytes: u64,
    /// How many authenticated connections may be open at once; further ones are closed. Default 1,024.
    pub max_connections: u32,
    /// Of these, how many may be of one identity. Default: three quarters of them.
    pub max_connections_per_identity: Option<NonZeroU32>,
    /// Of these, how many may be from one IPv4 address, IPv6 network (/64), virtual machine or local user. Default: three
    /// quarters of them.
    pub max_connections_per_source: Option<NonZeroU32>,
    /// How many calls each identity may have at once, over all of its connections; further ones are RESOURCE_EXHAUSTED.
    /// Default 8,192.
    pub max_calls_per_identity: NonZeroU32,
    /// How many bytes requests may take in memory at once: while they arrive, while they wait (such as input that a command
    /// has not read), and while their command runs; each field counts for 256 more. Default 256 MiB.
    pub max_request_bytes_in_flight: usize,
    /// Of these, how many may be of one identity. Default 64 MiB.
    pub max_request_bytes_in_flight_per_identity: usize,
    /// How many arguments, variables, labels and other fields one request may have. Default 131,072.
    pub max_request_fields: usize,
    /// How many executions may run or linger at once. Default 4,096.
    pub max_executions: u32,
    /// Of these, how many may be of one identity. Default: three quarters of them.
    pub max_executions_per_identity: Option<NonZeroU32>,
    /// How much memory the commands of one identity may use together, in bytes. Default: no limit.
    pub max_memory_bytes_per_identity: Option<u64>,
    /// How many processes and threads the commands of one identity may have together. Default: three quarters of what the machine
    /// can have, where it can be enforced.
    pub max_processes_per_identity: Option<NonZeroU32>,
    /// How many forwards may be open at once: connections, and sockets that listen. Default 1,024.
    pub max_forwards: u32,
    /// Of these, how many may be of one identity. Default: three quarters of them.
    pub max_forwards_per_identity: Option<NonZeroU32>,
    /// Without a policy: callers may let the agent listen on addresses other machines reach too. Default: no.
    pub allow_remote_bind: bool,
    /// How many commands each identity may start per second, and in one burst. Default: any number.
    pub max_starts_per_second: Option<NonZeroU32>,
    /// Require this containment of a command's processes, or refuse to start. Default: the best that works here.
    pub containment: Option<ContainmentKind>,
    /// Refuse to start with weaker containment than this. Default: start, and log it.
    pub require_containment: Option<RequiredContainment>,
    /// How long ended executions are remembered. Default 1 h.
    #[serde(with = "humantime_serde")]
    pub retention_age: Duration,
    /// How many ended executions are remembered. Default 1,000.
    pub retention_count: usize,
    /// How much memory remembered executions may take, in bytes. Default 64 MiB.
    pub retention_bytes: usize,
    /// Of these, how many may be of one identity. Default 32 MiB.
    pub retention_bytes_per_identity: usize,
    /// Output kept on disk per execution that may go to the background, in bytes. Default 64 MiB.
    pub spool_max_bytes: u64,
    /// The same for all together. Output of ended executions makes room for others, oldest first. Default 1 GiB.
    pub spool_total_bytes: u64,
    /// Of these, how many may be of one identity. Default: three quarters of them.
    pub spool_bytes_per_identity: Option<u64>,
    /// On shutdown: how long running commands may run on before they are ended. Default 10 s.
    #[serde(with = "humantime_serde")]
    pub shutdown_grace: Duration,
    /// Offer gRPC server reflection. Default: yes.
    pub reflection: bool,
    /// Threads for requests and output. Default 1: on a small machine more would only compete with the commands; an agent
    /// that streams a lot to many callers needs more.
    pub worker_threads: usize,
    /// The audit log. Default: none.
    pub audit: AuditConfig,
    /// Where the audit logs of other agents are kept. Default: they are not accepted.
    pub audit_collector: Option<CollectorConfig>,
}

impl Default for Config {
    fn default() -> Self {
        let local = LocalConfig::default();
        Self {
            listen: Vec::new(),
            metrics_listen: None,
            otlp_endpoint: None,
            serves_files: false,
            command_users: None,
            users: None,
            max_private_bytes: None,
            no_new_privileges: false,
            keeper: KeeperMode::default(),
            keeper_syslog: None,
            agent_user: None,
            kept_by: None,
            tls_cert: None,
            tls_key: None,
            client_ca: None,
            client_crl: None,
            identities: None,
            spiffe: None,
            token_issuers: BTreeMap::new(),
            policy: None,
            receipt_key: None,
            roles: BTreeMap::new(),
            commands: BTreeMap::new(),
            socket_mode: SocketMode::default(),
            insecure: false,
            state_dir: None,
            log_format: LogFormat::Text,
            log_level: "info".into(),
            log_commands: false,
            shell: local.shell,
            working_directory: None,
            environment: BTreeMap::new(),
            labels: BTreeMap::new(),
            kill_grace: local.kill_grace,
            max_kill_grace: local.max_kill_grace,
            max_disconnect_grace: local.max_disconnect_grace,
            default_timeout: None,
            max_timeout: None,
            max_output_bytes: 0,
            max_connections: 1024,
            max_connections_per_identity: None,
            max_connections_per_source: None,
            max_calls_per_identity: MAX_CALLS_PER_IDENTITY,
            max_request_bytes_in_flight: 256 * 1024 * 1024,
            max_request_bytes_in_flight_per_identity: 64 * 1024 * 1024,
            max_request_fields: 131_072,
            max_executions: local.max_executions,
            max_executions_per_identity: None,
            max_memory_bytes_per_identity: None,
            max_processes_per_identity: None,
            max_forwards: 1024,
            max_forwards_per_identity: None,
            allow_remote_bind: false,
            max_starts_per_second: None,
            containment: None,
            require_containment: None,
            retention_age: local.retention.age,
            retention_count: local.retention.count,
            retention_bytes: local.retention.bytes,
            retention_bytes_per_identity: local.retention.bytes_per_identity,
            spool_max_bytes: local.spool.execution,
            spool_total_bytes: local.spool.total,
            spool_bytes_per_identity: None,
            shutdown_grace: Duration::from_secs(10),
            reflection: true,
            worker_threads: 1,
            audit: AuditConfig::default(),
            audit_collector: None,
        }
    }
}

impl Config {
    /// Reads a TOML file. Paths in it are relative to its directory.
    ///
    /// # Errors
    /// It cannot be read, or has an unknown key or an invalid value.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        // absolute, so that errors name files as they are found from anywhere
        let absolute = std::path::absolute(path).map_err(unreadable)?;
        let config = Self::parse(path, &text)?;
        Ok(config.with_paths_below(absolute.parent().unwrap_or(&absolute)))
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError::parse(path, text, &error))
    }

    /// The audit log's stays as it is: that one has to be absolute.
    fn with_paths_below(mut self, directory: &Path) -> Self {
        let tls = [&mut self.tls_cert, &mut self.tls_key, &mut self.client_ca, &mut self.client_crl];
        let others = tls.into_iter().chain([&mut self.policy, &mut self.receipt_key, &mut self.state_dir]).flatten();
        let audit = [&mut self.audit.syslog, &mut self.audit.otlp].into_iter().flatten();
        for path in others.chain(audit.flat_map(DestinationConfig::paths)) {
            *path = directory.join(&*path);
        }
        for issuer in self.token_issuers.values_mut() {
            issuer.resolve_paths(directory);
        }
        if let Some(identities) = self.identities.take() {
            self.identities = Some(identities.into_iter().map(|(path, names)| (directory.join(path), names)).collect());
        }
        self
    }

    /// The users that commands may run as, for the keeper; `None`: anyone.
    ///
    /// # Errors
    /// One of them cannot be looked up.
    pub fn allowed_users(&self) -> std::io::Result<Option<Users>> {
        self.command_users.as_deref().map(|names| allowed_users(names, self.users.is_some())).transpose()
    }

    /// Checks everything that can be checked without binding a socket, certificates included.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<(), ConfigError> {
        let invalid = |text: &str| Err(InvalidSetting(text.into()).into());
        if self.listen.is_empty() {
            return invalid("no address to listen on: use --listen, or set `listen` in the configuration");
        }
        if let Some(ListenAddress::Vsock { .. } | ListenAddress::Systemd) = self.metrics_listen {
            return invalid("metrics_listen: expected tcp://host:port or unix:///path.sock");
        }
        if let Some(listen) = repeated(self.listen.iter().chain(&self.metrics_listen)) {
            return invalid(&format!("{listen} is listed twice in listen and metrics_listen"));
        }
        if let Some(endpoint) = &self.otlp_endpoint {
            trace::check(endpoint).map_err(InvalidSetting)?;
        }
        if self.users.is_none() && self.command_users.as_ref().is_some_and(Vec::is_empty) {
            return invalid("command_users is empty: no command could run");
        }
        if self.users.is_some() && self.state_dir.is_none() {
            return invalid("users = \"dynamic\" requires state_dir: the next free user ID is kept there");
        }
        if self.command_users.iter().flatten().any(|user| user == DYNAMIC_USER) {
            return invalid("command_users: @dynamic is not an account: users = \"dynamic\" allows dynamic users");
        }
        if self.max_private_bytes.is_some_and(|bytes| bytes < 1 << 20) {
            return invalid("max_private_bytes must be at least 1048576");
        }
        if self.max_private_bytes.is_some() && self.users.is_none() {
            return invalid("max_private_bytes requires users = \"dynamic\"");
        }
        if let (Some(users), Some(path)) = (self.users, &self.working_directory)
            && !users.see(Path::new(path))
        {
            return invalid(&format!(
                "working_directory: {path} is not there for dynamic users, who have directories of their own"
            ));
        }
        if self.agent_user.is_some() && self.keeper == KeeperMode::Off {
            return invalid("agent_user requires a keeper: remove keeper = \"off\"");
        }
        if self.keeper_syslog.is_some() && self.keeper == KeeperMode::Off {
            return invalid("keeper_syslog requires a keeper: remove keeper = \"off\"");
        }
        let is_address = |path: &PathBuf| path.is_absolute() && rustix::net::SocketAddrUnix::new(path).is_ok();
        if !self.keeper_syslog.as_ref().is_none_or(is_address) {
            return invalid(
                "keeper_syslog: expected an absolute path that is short enough for a Unix socket (107 bytes)",
            );
        }
        if self.agent_user.is_some() && self.containment.is_some_and(|asked| asked != ContainmentKind::CgroupV2) {
            return invalid("agent_user requires containment = \"cgroup-v2\"");
        }
        if self.require_containment.is_some() && self.containment == Some(ContainmentKind::ProcessGroup) {
            return invalid("containment = \"process-group\" does not satisfy require_containment: remove one of them");
        }
        if !(1..=1024).contains(&self.worker_threads) {
            return invalid("worker_threads must be 1 to 1024");
        }
        if self.max_connections == 0 {
            return invalid("max_connections is 0: no caller could connect");
        }
        for (key, value, least) in [
            ("max_request_bytes_in_flight", self.max_request_bytes_in_flight, MIN_REQUEST_BYTES),
            (
                "max_request_bytes_in_flight_per_identity",
                self.max_request_bytes_in_flight_per_identity,
                MIN_REQUEST_BYTES,
            ),
            ("max_request_fields", self.max_request_fields, MIN_REQUEST_FIELDS),
        ] {
            if value < least {
                return invalid(&format!("{key}: must be at least {least}"));
            }
        }
        if self.max_memory_bytes_per_identity.is_some_and(|bytes| bytes < MIN_MEMORY_BYTES) {
            return invalid(&format!("max_memory_bytes_per_identity: must be at least {MIN_MEMORY_BYTES}"));
        }
        check_identity_limits(&self.local()).map_err(|error| InvalidSetting(error.to_string()))?;
        if self.max_executions == 0 {
            return invalid("max_executions is 0: nothing could run");
        }
        if self.default_timeout == Some(Duration::ZERO) || self.max_timeout == Some(Duration::ZERO) {
            return invalid("default_timeout and max_timeout must be positive; omit them for no timeout");
        }
        TokenIssuers::load(&self.token_issuers)?;
        let tls = self.tls_source()?;
        if let Some(TlsSource::Files(files)) = &tls {
            files.load()?;
        }
        if tls.is_none()
            && let Some((name, _)) = self.token_issuers.iter().find(|(_, issuer)| issuer.admits_without_certificate())
        {
            return invalid(&format!(
                "token_issuers.{name} needs tls_cert and tls_key, or [spiffe], for connections by TLS without a client certificate; or set presented_by"
            ));
        }
        for listen in &self.listen {
            check_protection(listen, tls.as_ref(), self.insecure)?;
        }
        if let Some(listen) = &self.metrics_listen {
            let tls = tls.as_ref().filter(|source| source.asks_for_certificates());
            check_protection(listen, tls, true).map_err(ConfigError::of_metrics)?;
        }
        self.named_commands()?;
        Receipts::open(self.receipt_key.as_deref())?;
        if let Some(policy) = self.policy_file()? {
            policy.load()?;
        }
        let mut probe = Command::shell("true").shell(&self.shell).envs(self.environment.clone());
        if let Some(path) = &self.working_directory {
            probe = probe.working_directory(path);
        }
        probe.build()?;
        self.audit_collector.as_ref().map_or(Ok(()), CollectorConfig::check)?;
        Ok(self.audit.check()?)
    }

    /// The limits on requests.
    pub(crate) fn request_limits(&self) -> Limits {
        Limits {
            all: self.max_request_bytes_in_flight,
            each: self.max_request_bytes_in_flight_per_identity,
            fields: self.max_request_fields,
        }
    }

    /// Likely mistakes in the policy, and in the named commands.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn warnings(&self) -> Result<Vec<String>, ConfigError> {
        let of_policy = self.policy_file()?.map(|policy| policy.load()).transpose()?.map(|policy| policy.warnings);
        let of_commands = self.named_commands()?.warnings(&self.environment);
        Ok(of_policy.into_iter().flatten().chain(of_commands).collect())
    }

    /// The named commands.
    ///
    /// # Errors
    /// One of them is malformed.
    pub(crate) fn named_commands(&self) -> Result<NamedCommands, ConfigError> {
        Ok(NamedCommands::new(&self.commands)?)
    }

    /// The file of the policy, with its roles; `None`: there is no policy.
    ///
    /// # Errors
    /// A role is malformed.
    pub(crate) fn policy_file(&self) -> Result<Option<PolicyFile>, ConfigError> {
        let by_token = self.token_issuers.values().flat_map(|issuer| issuer.roles.keys());
        let roles = Roles::new(&self.roles)?.with_names(by_token);
        let named_commands = self.commands.keys().cloned().collect();
        let keeps_audit_log = self.audit.file.is_some();
        let agent = AgentFacts {
            hostname: hostname(),
            labels: self.labels.clone(),
            named_commands,
            keeps_audit_log,
            ..AgentFacts::default()
        };
        Ok(self.policy.clone().map(|path| PolicyFile { path, roles, agent }))
    }
}
