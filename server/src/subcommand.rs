//! What `telexecd` does instead of serving.

use std::error::Error;
use std::path::PathBuf;

use crate::config::{Config, ConfigError};
use crate::policy;
use crate::reload::Source;

/// What to do instead of serving.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Subcommand {
    /// Policies: check one, or see what they may say
    #[command(subcommand)]
    Policy(PolicyAction),
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

impl Subcommand {
    /// Does it, and returns what there is to print.
    ///
    /// # Errors
    /// What was to be checked is wrong, or cannot be read.
    pub fn run(&self, config: Config) -> Result<String, Box<dyn Error>> {
        match self {
            Self::Policy(PolicyAction::Check { file }) => check(config, file.as_ref()).map_err(Into::into),
            Self::Policy(PolicyAction::Schema) => Ok(policy::SCHEMA.to_owned()),
        }
    }
}

fn check(mut config: Config, file: Option<&PathBuf>) -> Result<String, ConfigError> {
    config.policy = file.cloned().or(config.policy);
    let Some(file) = config.policy_file()? else {
        return Err(ConfigError::Invalid("which policy? give a file, or a configuration that names one".into()));
    };
    let policy = if config.roles.is_empty() { file.load_without_roles() } else { file.load() }?;
    let warnings = policy.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect::<String>();
    let (path, rules) = (file.path.display(), policy.len());
    Ok(format!("{warnings}{path}: valid, {rules} rules, SHA-256 {}\n", policy.digest))
}
