//! What telexec's tests share: real agents with throwaway certificates, and ways to wait for what they do.
//!
//! Every wait here ends by itself, with a panic that says what was waited for, so no test needs a limit of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail so")]

mod agent;
mod agent_log;
mod alone;
mod bench;
mod certs;
mod cgroups;
mod files;
mod grpcurl;
mod holdings;
mod mcp;
mod nats;
mod outcome;
mod places;
mod processes;
mod proxy;
pub mod raw;
mod root;
mod scrape;
mod silent;
mod sshd;
mod stuck;
mod syslog;
mod tmux;
mod tokens;
mod wait;
mod wire;
mod workload;

pub use agent::{AGENT_USER, Agent, AgentBuilder, Refused, program, telexecd};
pub use alone::alone;
pub use bench::{bench_agent, percentile};
pub use certs::{Ca, Certs, Leaf, Pair};
pub use cgroups::{Cleared, Hierarchy, MemoryLimit, ProcessLimit, Subtree, cgroups, cgroups_named, has_controller};
pub use files::{Gate, Opened, directory, executable, lines};
pub use grpcurl::{Answer, Grpcurl};
pub use holdings::{Holdings, Memory, settled};
pub use mcp::{McpClient, McpServer, telexec_mcp, text};
pub use nats::{ByNats, nats_server};
pub use outcome::{Outcome, Replay, collect, exit_of, replay, run, until_output};
pub use places::{Place, at};
pub use processes::{MARK, Process, Watch, children, marker, processes_with, stop};
pub use proxy::Proxy;
pub use root::{NOBODY, is_root};
pub use scrape::{Scrape, ask, dial, metrics_address};
pub use silent::Silent;
pub use sshd::Sshd;
pub use stuck::{HeldEnvironment, StuckProcess};
pub use syslog::Syslog;
pub use tmux::{TMUX_TERM, Tmux};
pub use tokens::{AUDIENCE, JsonServer, TokenIssuer, now};
pub use wait::{rounds, until, until_blocking, within};
pub use wire::{Followed, Stream, Wire, follow};
pub use workload::{TrustDomain, WorkloadServer};
