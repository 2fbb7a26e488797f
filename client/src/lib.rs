//! Runs commands on other machines: a thin client of telexec's agents.
//!
//! [`Agent`] is a connection to one agent. [`Agent::executor`] is that machine as an
//! [`Executor`](telexec_executor::Executor): a `BashTool` of the crate `telexec-tool` over it is the remote tool.
//!
//! ```no_run
//! use futures_util::StreamExt;
//! use telexec_client::{Agent, ConnectOptions, TlsOptions};
//! use telexec_executor::{Command, Event, Executor};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let tls = TlsOptions::new("me.pem", "me.key", "ca.pem");
//! let options = ConnectOptions { tls: Some(tls), ..Default::default() };
//! let agent = Agent::connect(&"build-7:7443".parse()?, options).await?;
//! let mut execution = agent.executor().execute(Command::shell("uname -a").build()?).await?;
//! while let Some(event) = execution.next().await {
//!     match event? {
//!         Event::Output(output) => print!("{}", String::from_utf8_lossy(&output.data)),
//!         Event::Exited(exited) => println!("exit code {}", exited.exit_code()),
//!         // it neither goes to the background nor is attached to
//!         Event::Started(_) | Event::Promoted | Event::Gap(_) => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A lost connection ends a command. Over [`RemoteExecutor::resuming`] a call survives it instead: the connection is made
//! again, and the command is followed from where it was lost. That is chosen for each call:
//!
//! ```no_run
//! use telexec_client::{Agent, Resume};
//! use telexec_tool::BashTool;
//!
//! # fn tool(agent: &Agent) -> BashTool {
//! BashTool::new(agent.executor().resuming(Resume::default()))
//! # }
//! ```

mod access_token;
mod agent;
mod approvals;
mod cancel_on_drop;
mod channel;
mod connector;
mod error;
mod events;
mod executor;
mod files;
mod following;
mod forward;
mod gathered;
mod lookup;
mod outage;
mod resume;
mod resumed;
mod search;
mod sftp;
mod target;
mod tls;
mod transfer;
mod unsent;
mod watch;

pub use access_token::AccessToken;
pub use agent::{Agent, ConnectOptions, Ping};
pub use approvals::Approvals;
pub use connector::{Duplex, Transport};
pub use error::{Cause, ConnectError, is_settled};
pub use executor::RemoteExecutor;
pub use files::RemoteFiles;
pub use forward::{AcceptedConnection, Connection, Dial, Endpoint, ForwardError, Forwards, Listening};
#[cfg(unix)]
pub use forward::{LocalListener, LocalSocket};
pub use lookup::LookupError;
pub use resume::{Resume, Resuming};
pub use sftp::SftpAnswer;
pub use target::{DEFAULT_PORT, InvalidTarget, Target};
/// Why there is no forwarded connection, or not any more.
pub use telexec_proto::convert::{ForwardFailure, ForwardStep};
/// What an agent says of a command that it might run.
pub use telexec_proto::v1::CheckCommandResponse as CommandCheck;
/// What an agent says about itself and its machine.
pub use telexec_proto::v1::GetAgentResponse as AgentInfo;
/// A named command of an agent.
pub use telexec_proto::v1::NamedCommand;
/// A request for the approval of a start, and what would run.
pub use telexec_proto::v1::{
    Approval, ApprovalState, DescendantPolicy, DisconnectPolicy, DuplicatePolicy, ExecuteRequest,
};
#[cfg(feature = "spiffe")]
pub use telexec_spiffe::{InvalidWorkloadApi, WorkloadApi};
pub use tls::{ClientCertificate, TlsCredentials, TlsOptions};
pub use transfer::{TransferAnswer, TransferAnswers, TransferRequests};
