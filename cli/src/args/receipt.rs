//! The command line of `telexec receipt`.

use std::path::PathBuf;

use clap::Args;
use tracing_subscriber::filter::LevelFilter;

use super::agent::{AgentArg, ExecutionArg};
use crate::config::ConnectArgs;

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
A receipt says who asked for what, what ran where and as whom, when, how it ended, and the SHA-256 of the command and of its \
output, signed with the key of the agent. It is an in-toto statement in a DSSE envelope, which other programs can verify too. It \
contains the text or the arguments of the command, but no values of variables, no input and no output.

An agent signs receipts if its configuration has a receipt_key: the file that telexec receipt keygen makes. Whoever has that file \
can forge receipts.",
    after_help = "\
Examples:
  telexec receipt key web1 > web1.pub
  telexec exec --receipt-file build.receipt web1 make -C /srv/app > build.log
  telexec receipt verify --key web1.pub --stdout build.log build.receipt"
)]
pub(crate) struct ReceiptArgs {
    #[command(subcommand)]
    pub(crate) action: ReceiptAction,
}

impl ReceiptArgs {
    /// Of what calls an agent.
    pub(crate) fn log_level(&self) -> LevelFilter {
        match &self.action {
            ReceiptAction::Get(args) => args.connect.log_level,
            ReceiptAction::Key(args) => args.connect.log_level,
            ReceiptAction::Verify(_) | ReceiptAction::Keygen { .. } => LevelFilter::OFF,
        }
    }
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ReceiptAction {
    /// Verify a receipt, and show what it says
    #[command(
        after_help = "\
Exit codes: 0 valid, 1 not valid, or a file does not match, 2 invalid command line, or a file cannot be read.

Examples:
  telexec receipt verify --key web1.pub build.receipt
  telexec receipt verify --key web1.pub --json build.receipt | jq -e '.predicate.end.exitCode == 0'",
        after_long_help = "\
That a receipt is valid does not mean that its command was successful, or that it is the one you expect: check the fields.

With --json, prints the signed statement on one line, with characters other than ASCII escaped. Its fields are defined by \
https://in-toto.io/Statement/v1; the predicate is of type urn:telexec:receipt:v1."
    )]
    Verify(ReceiptVerifyArgs),
    /// Print the receipt of an execution that has ended
    #[command(after_help = "\
The execution must have been started with --receipt (of exec or fleet) or --receipt-file. Agents remember executions for an hour, unless configured otherwise.

Exit codes: 0 printed, 1 it has no receipt, or has not ended, 2 invalid command line or configuration, 125 refused by the agent, or no such \
execution, 255 the agent is unreachable.

Example:
  telexec receipt get web1 nightly > nightly.receipt")]
    Get(ReceiptGetArgs),
    /// Print the public key of an agent, which verifies its receipts
    #[command(after_help = "\
You can trust the key only as far as the connection: get it once, over mutual TLS, and keep it.

Exit codes: 0 printed, 1 the agent signs no receipts, 2 invalid command line or configuration, 125 refused by the agent, 255 the \
agent is unreachable.

Example:
  telexec receipt key web1 > web1.pub")]
    Key(ReceiptKeyArgs),
    /// Generate a key for an agent, and print the public key
    #[command(after_help = "\
Exit codes: 0 written, 1 the file exists or cannot be written, 2 invalid command line.

Example, as root on the agent's machine:
  telexec receipt keygen /etc/telexec/receipt.key")]
    Keygen {
        /// File to create for the private key, with mode 0600
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ReceiptVerifyArgs {
    /// The receipt; - is standard input
    #[arg(value_name = "RECEIPT")]
    pub(crate) receipt: PathBuf,
    /// Public keys of agents, in PEM; may be repeated: one of them must have signed it
    #[arg(long, required = true, value_name = "FILE")]
    pub(crate) key: Vec<PathBuf>,
    /// Check that FILE is the command's standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) stdout: Option<PathBuf>,
    /// Check that FILE is the command's standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) stderr: Option<PathBuf>,
    /// Print the statement as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReceiptGetArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    #[command(flatten)]
    pub(crate) execution: ExecutionArg,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReceiptKeyArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}
