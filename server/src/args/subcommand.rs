//! What `telexecd` does instead of serving.

use std::error::Error;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use telexec_enrollment::{EnrollArgs, EnrollError, Enrolled, MachineFiles};
use telexec_executor::text::{counted, error_chain};

use crate::address::ListenAddress;
use crate::args::audit::AuditAction;
use crate::args::{Args, health};
use crate::config::ConfigError;
use crate::invalid::InvalidSetting;
use crate::policy::Policy;
use crate::process::agent_user;
use crate::process::upgrade::{UpgradeError, upgrade, upgrade_if_changed};
use crate::reload::Source;
use crate::{logging, policy};

/// The agent's configuration, in the directory of its certificates.
const CONFIG_FILE: &str = "telexecd.toml";
/// The exit code for an invalid command line, as clap has it.
const USAGE: u8 = 2;
/// The exit code where an agent is to be restarted instead.
const NOT_POSSIBLE: u8 = 3;
/// The exit code where an agent has handed over, and not all went well then.
const NOT_AS_ASKED: u8 = 4;

/// A task other than serving.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Subcommand {
    /// Check a policy, or print the schema for policies
    #[command(subcommand)]
    Policy(PolicyAction),
    /// Verify, search or play an audit log, or list those that are collected here
    #[command(subcommand)]
    Audit(AuditAction),
    /// Check whether the agent on this machine is serving
    #[command(
        after_help = "For health probes. The address is the Unix socket of the agent's configuration, or else its \
loopback address without TLS, so use the same --config or environment as the agent.\n\n\
Exit codes: 0 it is serving, 1 it is not, 2 invalid command line, 78 invalid configuration, or one without such an \
address.\n\n\
Examples:\n  \
telexecd --config telexecd.toml health\n  \
telexecd health --timeout 2s unix:///run/telexec/agent.sock"
    )]
    Health {
        /// Address to check, if not the configured one: unix:///path.sock or tcp://host:port
        #[arg(value_name = "URI")]
        listen: Option<ListenAddress>,
        /// How long to wait for the answer
        #[arg(long, value_name = "DURATION", default_value = "5s")]
        timeout: humantime::Duration,
    },
    /// Have the agent on this machine and its keeper hand over to the programs on disk, without ending executions
    #[command(
        override_usage = "telexecd [OPTIONS] upgrade [--if-changed]",
        after_help = "For agents with a keeper. Detached commands, those in the background, and those of clients that \
reconnect run on. What is bound to a call gets the shutdown_grace to end by itself, while calls are served as usual.\n\n\
Use the same --config or environment as the agent, since it is found by its state_dir. If the programs on disk cannot \
continue what runs, or the configuration is not valid, the agent goes on as it is. Interrupting this does not \
stop an upgrade that has begun.\n\n\
Exit codes: 0 the programs on disk have taken over, or nothing has changed, 1 the agent goes on as it is, 2 invalid command line, 3 there is no \
such agent with a keeper, 4 it has handed over, but no agent serves or its keeper runs its old program, 78 invalid \
configuration.\n\n\
Examples:\n  \
telexecd --config /etc/telexec/telexecd.toml upgrade\n  \
telexecd --config /etc/telexec/telexecd.toml upgrade --if-changed        as systemctl reload does"
    )]
    Upgrade {
        /// Do nothing unless the programs on disk or the configuration file have changed since the agent was started
        #[arg(long)]
        if_changed: bool,
    },
    /// Print the versions of what an agent leaves to the next one
    #[command(hide = true)]
    Formats,
    /// Get a certificate for this machine, or renew it
    ///
    /// Makes a key, which stays on this machine, and gets a certificate for it from `telexec certs serve`, by a token of
    /// `telexec certs token`. A running agent takes up the new files itself.
    #[command(after_help = "Exit codes: 0 done or nothing is due, 1 failed, 2 invalid command line or no token.\n\n\
Examples:\n  \
telexecd enroll --server ca1 --token-file web1.token\n  \
telexecd enroll --server ca1 --renew        from a timer, every day or hour\n  \
telexecd enroll --csr --name web1           for another CA")]
    Enroll(AgentEnrollArgs),
}

/// Arguments of `enroll`.
#[derive(Clone, Debug, clap::Args)]
pub struct AgentEnrollArgs {
    #[command(flatten)]
    enroll: EnrollArgs,
    /// Directory for the files. If the agent's configuration (--config, or telexecd.toml in it) has an agent_user, its group
    /// may read the key
    #[arg(long, value_name = "DIR", default_value = "/etc/telexec")]
    dir: PathBuf,
}

/// Subcommands of `policy`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum PolicyAction {
    /// Check a policy and, with --config, that the configuration defines its roles; exits with 0 or 78
    #[command(after_help = "Examples:\n  \
telexecd policy check policy.cedar\n  \
telexecd --config telexecd.toml policy check")]
    Check {
        /// Policy file [default: the configured one]
        file: Option<PathBuf>,
    },
    /// Print the Cedar schema that policies are validated against
    Schema,
}

impl Subcommand {
    /// Runs it and writes the result to `out`. Returns the exit code.
    ///
    /// # Errors
    /// What was checked is invalid, or a file cannot be read or written.
    pub fn run(&self, args: &Args, out: &mut impl Write) -> Result<u8, Box<dyn Error>> {
        let text = match self {
            Self::Policy(PolicyAction::Check { file }) => check(args, file.as_ref())?,
            Self::Policy(PolicyAction::Schema) => policy::SCHEMA.to_owned(),
            Self::Audit(action) => return action.run(args, out),
            Self::Enroll(enrollment) => return enroll(args, enrollment, out),
            Self::Formats => format!("{}\n", telexec_engine::handover_formats()),
            Self::Upgrade { if_changed } => match upgraded(args, *if_changed)? {
                Ok(None) => "nothing has changed since the agent was started\n".to_owned(),
                Ok(Some(pid)) => format!("process {pid} has taken over, version {}\n", env!("CARGO_PKG_VERSION")),
                Err(error) => {
                    logging::line(&format!("telexecd: {}", error_chain(&error)));
                    return Ok(match &error {
                        error if error.is_not_possible() => NOT_POSSIBLE,
                        UpgradeError::Lost(_) | UpgradeError::OldKeeper(_) => NOT_AS_ASKED,
                        _ => 1,
                    });
                }
            },
            Self::Health { listen, timeout } => return health(args, listen.as_ref(), **timeout, out),
        };
        out.write_all(text.as_bytes())?;
        Ok(0)
    }
}

/// `None`: nothing has changed.
fn upgraded(args: &Args, if_changed: bool) -> Result<Result<Option<i32>, UpgradeError>, ConfigError> {
    let config = args.config()?;
    Ok(if if_changed { upgrade_if_changed(&config, args.file()) } else { upgrade(&config).map(Some) })
}

fn health(
    args: &Args,
    listen: Option<&ListenAddress>,
    timeout: Duration,
    out: &mut impl Write,
) -> Result<u8, Box<dyn Error>> {
    let listen = match listen {
        Some(listen) => listen.clone(),
        None => health::address(&args.config()?)?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(health::check(&listen, timeout)) {
        Ok(()) => writeln!(out, "serving")?,
        Err(error) => {
            logging::line(&format!("telexecd: {}", error_chain(&error)));
            return Ok(1);
        }
    }
    Ok(0)
}

fn enroll(args: &Args, enrollment: &AgentEnrollArgs, out: &mut impl Write) -> Result<u8, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // for the configuration, which may be anywhere
    let directory = std::path::absolute(&enrollment.dir)?;
    let report = |error: &EnrollError, rest: Duration| {
        let hint = error.hint().map(|hint| format!(": {hint}")).unwrap_or_default();
        let rest = rest.as_secs().max(1);
        logging::line(&format!("telexecd: {}; trying again for {rest} s{hint}", error_chain(error)));
    };
    let done = match runtime.block_on(enrollment.enroll.run(&directory, report)) {
        Ok(done) => done,
        Err(error) => {
            let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            logging::line(&format!("telexecd: {}{hint}", error_chain(&error)));
            return Ok(if matches!(error, EnrollError::Usage(_)) { USAGE } else { 1 });
        }
    };
    let (Enrolled::Certificate(files) | Enrolled::NotDue(files) | Enrolled::Request(_, files)) = &done;
    share_key(args, &directory, &files.key, out)?;
    match done {
        Enrolled::Certificate(MachineFiles { cert, key, ca, crl }) => {
            writeln!(out, "wrote {}; in the agent's configuration:", cert.display())?;
            for (key, path) in [("tls_cert", cert), ("tls_key", key), ("client_ca", ca), ("client_crl", crl)] {
                writeln!(out, "{key} = {:?}", path.display().to_string())?;
            }
        }
        Enrolled::NotDue(files) => writeln!(out, "{} is not due for renewal", files.cert.display())?,
        Enrolled::Request(request, MachineFiles { cert, key, .. }) => {
            writeln!(out, "wrote {} and {}", request.display(), key.display())?;
            writeln!(
                out,
                "next: have it signed, and put the certificate, with intermediate ones after it, into {}",
                cert.display()
            )?;
        }
    }
    Ok(0)
}

/// Lets the agent read its key, if its configuration says that it runs as another user.
fn share_key(args: &Args, directory: &Path, key: &Path, out: &mut impl Write) -> std::io::Result<()> {
    let beside = directory.join(CONFIG_FILE);
    // not one that another user has put there
    let own = rustix::process::geteuid().as_raw();
    let is_own = |path: &Path| path.metadata().is_ok_and(|found| [0, own].contains(&found.uid()));
    let file = args.file().or_else(|| (is_own(&beside) && is_own(directory)).then_some(&beside));
    let shared = match args.config_with(file) {
        Ok(config) => agent_user::share_key(&config, key).map_err(|error| error_chain(&error)),
        Err(error) => Err(error_chain(&error)),
    };
    match shared {
        Ok(Some(user)) => writeln!(out, "{user} (agent_user) may read {}", key.display()),
        Ok(None) => Ok(()),
        Err(error) => {
            logging::line(&format!("telexecd: warning: the agent may be unable to read {}: {error}", key.display()));
            Ok(())
        }
    }
}

fn check(args: &Args, file: Option<&PathBuf>) -> Result<String, ConfigError> {
    let mut config = args.config()?;
    config.policy = file.cloned().or(config.policy);
    let Some(file) = config.policy_file()? else {
        return Err(ConfigError::from(InvalidSetting(
            "no policy given: name a file, or a configuration with a policy".into(),
        )));
    };
    config.named_commands()?;
    let policy = if args.file().is_some() { file.load() } else { file.load_without_roles() }?;
    let warnings = policy.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect::<String>();
    let (path, rules) = (file.path.display(), counted(policy.len() as u64, "rule"));
    let scope = checked(args.file(), &policy);
    Ok(format!("{warnings}{path}: valid, {rules}, SHA-256 {}\n{scope}", policy.digest))
}

/// What was checked, and what was not.
fn checked(config: Option<&Path>, policy: &Policy) -> String {
    let checked = "checked: syntax, schema, annotations";
    if let Some(config) = config {
        return format!("{checked}, roles and named commands in {}\n", config.display());
    }
    let tables = [("[roles]", policy.named_roles()), ("[commands]", policy.named_commands())];
    let unchecked = tables.iter().filter(|(_, names)| !names.is_empty()).map(|(table, names)| {
        let names = names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>();
        format!("{table} has {}", names.join(", "))
    });
    match unchecked.collect::<Vec<_>>() {
        all if all.is_empty() => format!("{checked}\n"),
        all => {
            let all = all.join(", and ");
            format!("{checked}\nnot checked: whether {all}; for that add --config telexecd.toml\n")
        }
    }
}
