//! telexec's agent as a library: [`serve`] answers gRPC on [`Listeners`] until it is shut down.
//!
//! The path of a call: `listen` accepts the connection; `tls` and `identity` authenticate the peer (`call::caller`); `http2`
//! serves it within the limits of `http2::preface`, `http2::message` and `request_memory`, applies `call::deadline` and checks
//! the certificate again (`tls::client_cert_check`), or who the call's token names (`token`); `rpc` decodes the request;
//! `admission` applies policy, ownership, rate limits and the `audit` log before the engine of `telexec-engine`. `http2::turns`
//! divides the agent's time between callers, `metrics` counts on the way, and `receipts` signs what came of it.

mod address;
mod admission;
mod analysis;
mod approvals;
pub mod args;
pub mod audit;
mod call;
mod config;
mod digest;
mod files;
mod forward;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod hostname;
mod http2;
mod identity;
mod invalid;
mod listen;
mod lock;
pub mod logging;
mod metrics;
mod named_command;
mod policy;
pub mod process;
mod receipts;
mod reload;
mod request_memory;
mod rpc;
mod run_as;
mod scrape;
mod serve;
mod similar;
mod timestamp;
mod tls;
mod token;
mod trace;

pub use address::ListenAddress;
pub use config::{
    Config, ConfigError, DefaultUsers, KeeperMode, LogFormat, RequiredContainment, SocketMode, SpiffeConfig,
};
pub use invalid::InvalidSetting;
pub use listen::bound::KeptSockets;
pub use listen::{BindError, Listeners};
pub use named_command::NamedCommandConfig;
pub use policy::PolicyError;
pub use reload::Reload;
pub use run_as::serve_if_asked;
pub use serve::{Ending, ServeError, serve};
pub use token::TokenIssuerConfig;
