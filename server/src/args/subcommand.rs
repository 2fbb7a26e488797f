//! What `telexecd` does instead of serving.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use telexec_executor::Program;
use telexec_executor::text::{counted, error_chain};

use crate::address::ListenAddress;
use crate::args::Args;
use crate::args::health;
use crate::audit::{digest, verify_files};
use crate::config::{Config, ConfigError};
use crate::invalid::InvalidSetting;
use crate::reload::Source;
use crate::{logging, policy};

/// A task other than serving.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Subcommand {
    /// Check a policy, or print the schema for policies
    #[command(subcommand)]
    Policy(PolicyAction),
    /// Verify an audit log, or compute the digest of a command
    #[command(subcommand)]
    Audit(AuditAction),
    /// Check whether the agent on this machine is serving; exits with 0 or 1
    ///
    /// For health probes. The address is the Unix socket of the agent's configuration, or else its loopback address without
    /// TLS, so use the same --config or environment as the agent.
    #[command(after_help = "Examples:\n  \
telexecd --config telexecd.toml health\n  \
telexecd health --timeout 2s unix:///run/telexec/agent.sock")]
    Health {
        /// Address to check, if not the configured one: unix:///path.sock or tcp://host:port
        #[arg(value_name = "URI")]
        listen: Option<ListenAddress>,
        /// How long to wait for the answer
        #[arg(long, value_name = "DURATION", default_value = "5s")]
        timeout: humantime::Duration,
    },
}

/// Subcommands of `policy`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum PolicyAction {
    /// Check a policy, and that the configuration defines its roles; exits with 0 or 78
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

/// Subcommands of `audit`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum AuditAction {
    /// Verify an audit log: print the first record that was modified or is missing, if any
    ///
    /// Prints the number of records, the last hash, and the starts without an end; exits with 0, with 1 if the chain is
    /// broken, and with 2 if a file cannot be read. Anyone who can write the file can also replace it by a new, valid chain:
    /// from time to time save the last hash elsewhere, or send the lines to another machine, and compare.
    Verify {
        /// Log file, whose rotated files are found beside it; or all files, oldest first
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Compute the digest that the audit log records when a command is too long to record in full, or redacted
    ///
    /// Prints, separated by a space, what a record of the command has as `hmac_key` (which key it is) and as
    /// `command_hmac_sha256`: the HMAC-SHA-256 with the key in FILE.key of the shell text, read from standard input
    /// to its end, or of the arguments.
    #[command(after_help = "Examples:\n  \
printf %s 'make deploy' | telexecd audit digest /var/log/telexec/audit.log\n  \
telexecd audit digest /var/log/telexec/audit.log -- make deploy")]
    Digest {
        /// Log file
        #[arg(value_name = "FILE")]
        log: PathBuf,
        /// Program and arguments, instead of a shell text
        #[arg(last = true, value_name = "ARG")]
        argv: Vec<String>,
    },
}

impl Subcommand {
    /// Runs it and writes the result to `out`. Returns the exit code.
    ///
    /// # Errors
    /// What was checked is invalid, or a file cannot be read or written.
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

fn check(mut config: Config, file: Option<&PathBuf>) -> Result<String, ConfigError> {
    config.policy = file.cloned().or(config.policy);
    let Some(file) = config.policy_file()? else {
        return Err(ConfigError::from(InvalidSetting(
            "no policy given: name a file, or a configuration with a policy".into(),
        )));
    };
    let policy = if config.roles.is_empty() { file.load_without_roles() } else { file.load() }?;
    let warnings = policy.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect::<String>();
    let (path, rules) = (file.path.display(), counted(policy.len() as u64, "rule"));
    Ok(format!("{warnings}{path}: valid, {rules}, SHA-256 {}\n", policy.digest))
}
