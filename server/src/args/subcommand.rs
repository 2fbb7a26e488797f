//! What `telexecd` does instead of serving.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use telexec_executor::Program;
use telexec_executor::text::error_chain;

use crate::address::Listen;
use crate::args::Args;
use crate::args::health;
use crate::audit::{digest, verify_files};
use crate::config::{Config, ConfigError};
use crate::invalid::InvalidSetting;
use crate::reload::Source;
use crate::{logging, policy};

/// What to do instead of serving.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Subcommand {
    /// Policies: check one, or see what they may say
    #[command(subcommand)]
    Policy(PolicyAction),
    /// Look at an audit log
    #[command(subcommand)]
    Audit(AuditAction),
    /// Ask the agent on this machine whether it serves; exits with 0 or 1
    ///
    /// For probes. Asks where the agent's configuration says that it listens: on a Unix socket, or else in plain text on a
    /// loopback address. So it is to have the same --config, or environment, as the agent.
    #[command(after_help = "Examples:\n  \
telexecd --config telexecd.toml health\n  \
telexecd health --timeout 2s unix:///run/telexec/agent.sock")]
    Health {
        /// Where, if not as configured: unix:///path.sock or tcp://host:port
        #[arg(value_name = "URI")]
        listen: Option<Listen>,
        /// How long the answer may take
        #[arg(long, value_name = "DURATION", default_value = "5s")]
        timeout: humantime::Duration,
    },
}

/// What to do with policies.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum PolicyAction {
    /// Check a policy, and that the configuration has its roles; exits with 0 or 78
    #[command(after_help = "Examples:\n  \
telexecd policy check policy.cedar\n  \
telexecd --config telexecd.toml policy check")]
    Check {
        /// The policy [default: that of the configuration]
        file: Option<PathBuf>,
    },
    /// Print what a policy may say, in Cedar's schema language
    Schema,
}

/// What can be done with an audit log.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum AuditAction {
    /// Say whether an audit log is whole, or name the first line that was changed or is missing
    ///
    /// Prints how much there is, the last hash and the starts without an end; exits with 0, with 1 if it is broken, and with
    /// 2 if it cannot be read. Whoever can write the file can also make a whole new chain: note the last hash elsewhere from
    /// time to time, or send the lines to another machine, and compare.
    Verify {
        /// The log, whose rotated files are found beside it; or all of its files, from the oldest to the newest
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Print the digest that an audit log has for a command that is not recorded in full
    ///
    /// Prints `hmac_key` and `command_hmac_sha256` as a record has them: HMAC-SHA-256 with the key in FILE.key, of the shell
    /// text on standard input, to its last byte, or of the arguments. To see whether a command was this one, compare.
    #[command(after_help = "Examples:\n  \
printf %s 'make deploy' | telexecd audit digest /var/log/telexec/audit.log\n  \
telexecd audit digest /var/log/telexec/audit.log -- make deploy")]
    Digest {
        /// The log
        #[arg(value_name = "FILE")]
        log: PathBuf,
        /// A program and its arguments, instead of a text
        #[arg(last = true, value_name = "ARG")]
        argv: Vec<String>,
    },
}

impl Subcommand {
    /// Does it, and writes what comes of it to `out`. Returns the exit code.
    ///
    /// # Errors
    /// What was to be checked is wrong, or nothing can be read or written.
    pub fn run(&self, args: &Args, out: &mut impl Write) -> Result<u8, Box<dyn Error>> {
        let text = match self {
            Self::Policy(PolicyAction::Check { file }) => check(args.config()?, file.as_ref())?,
            Self::Policy(PolicyAction::Schema) => policy::SCHEMA.to_owned(),
            Self::Audit(AuditAction::Verify { files }) => return Ok(verify_files(files, out)?),
            Self::Audit(AuditAction::Digest { log, argv }) => digest_of(log, argv)?,
            Self::Health { listen, timeout } => return health(args, listen.as_ref(), **timeout, out),
        };
        out.write_all(text.as_bytes())?;
        Ok(0)
    }
}

fn digest_of(log: &Path, argv: &[String]) -> io::Result<String> {
    let program = match argv {
        [] => Program::Shell { text: io::read_to_string(io::stdin())?, shell: None, login: false },
        argv => Program::Argv(argv.to_vec()),
    };
    let (key, digest) = digest(log, &program)?;
    Ok(format!("{key} {digest}\n"))
}

fn health(
    args: &Args,
    listen: Option<&Listen>,
    patience: Duration,
    out: &mut impl Write,
) -> Result<u8, Box<dyn Error>> {
    let listen = match listen {
        Some(listen) => listen.clone(),
        None => health::address(&args.config()?)?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(health::ask(&listen, patience)) {
        Ok(()) => writeln!(out, "serving")?,
        Err(error) => {
            logging::line(&format!("telexecd: {}", error_chain(&error)));
            return Ok(1);
        }
    }
    Ok(0)
}

fn check(mut config: Config, file: Option<&PathBuf>) -> Result<String, ConfigError> {
    config.policy = file.cloned().or(config.policy);
    let Some(file) = config.policy_file()? else {
        return Err(ConfigError::from(InvalidSetting(
            "which policy? give a file, or a configuration that names one".into(),
        )));
    };
    let policy = if config.roles.is_empty() { file.load_without_roles() } else { file.load() }?;
    let warnings = policy.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect::<String>();
    let (path, rules) = (file.path.display(), policy.len());
    Ok(format!("{warnings}{path}: valid, {rules} rules, SHA-256 {}\n", policy.digest))
}
