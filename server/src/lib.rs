//! telexec's agent as a library: [`serve`] answers gRPC on [`Listeners`] until it is told to stop.
//!
//! One call goes this way: `listen` accepts, `tls` and `identity` say who is there (`caller`), `connection` speaks HTTP/2
//! (within the bounds of `preface`, `message` and `held`, keeps each call's `deadline`, and asks `standing` before it),
//! `execution_service` turns the wire into a command, `stack` puts the policy, ownership, limits and the `audit` log before
//! the engine of `telexec-tool`. `metrics` counts what happens on the way.

mod agent_service;
pub mod args;
pub mod audit;
mod authorities;
mod body;
mod call;
mod caller;
mod calls;
mod certificate;
mod config;
mod connection;
mod deadline;
mod events;
mod execution_service;
mod expiry;
mod fields;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzz;
mod health;
mod held;
mod identity;
mod interact;
mod judging;
mod listen;
pub mod log_limit;
pub mod logging;
pub mod machine;
mod message;
mod metrics;
mod on_workers;
pub mod orphans;
mod pending;
mod permission;
mod places;
mod policy;
mod preface;
mod private_key;
mod reload;
mod revocation;
mod run;
mod serve;
mod source;
mod stack;
mod standing;
mod starts;
pub mod subcommand;
mod tls;
mod trace;

pub use config::{Config, ConfigError, LogFormat};
pub use listen::{BindError, Listen, Listeners};
pub use policy::PolicyError;
pub use reload::Reload;
pub use serve::{ServeError, serve};
