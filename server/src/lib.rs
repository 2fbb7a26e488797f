//! telexec's agent as a library: [`serve`] answers gRPC on [`Listeners`] until it is told to stop.
//!
//! One call goes this way: `listen` accepts, `tls` and `identity` say who is there (`caller`), `connection` speaks HTTP/2
//! (within the bounds of `preface`, `message` and `held`, keeps each call's `deadline`, and asks `standing` before it),
//! `execution_service` turns the wire into a command, `stack` puts the policy, ownership, limits and the `audit` log before
//! the engine of `telexec-tool`. `metrics` counts what happens on the way.

mod address;
mod admission;
pub mod args;
pub mod audit;
mod call;
mod config;
mod digest;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzz;
mod hostname;
mod http2;
mod identity;
mod invalid;
mod listen;
pub mod logging;
mod metrics;
mod policy;
pub mod process;
mod reload;
mod request_memory;
mod rpc;
mod scrape;
mod serve;
mod tls;
mod trace;

pub use address::Listen;
pub use config::{Config, ConfigError, LogFormat};
pub use invalid::InvalidSetting;
pub use listen::{BindError, Listeners};
pub use policy::PolicyError;
pub use reload::Reload;
pub use serve::{ServeError, serve};
