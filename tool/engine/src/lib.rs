//! This machine: the engine that starts commands, carries their output, and ends all of their processes.
//!
//! Only this crate spawns, signals and reaps, by `telexec-spawn` or by way of a keeper. The way of one command: `executor` reserves a record of it in `registry`,
//! `start` and `spawn` make its process, `supervise` follows it to its end with `streams` and `output` for what it
//! reads and writes and `containment` for its processes. `state` is what an engine keeps on disk, and `recovery` what
//! the next one makes of that.
//!
//! Modules import only from those above them in this list: `process`; `cgroup`, `state`, `streams`; `containment`,
//! `output`, `spawn`; `registry`; `recovery`; `shared`; `start`; `linger`; `supervise` with `ending`; `survive`;
//! `executor`; `continued`.

#![cfg(target_os = "linux")]

mod binding;
mod boot_time;
mod cgroup;
mod closing;
mod config;
mod containment;
mod containment_kind;
mod continued;
mod ending;
mod executor;
mod grant;
mod key;
mod linger;
mod lock;
mod memory;
#[cfg(target_env = "gnu")]
mod names;
mod observer;
mod output;
mod process;
mod recovery;
mod registry;
mod share;
mod shared;
mod spawn;
mod start;
mod state;
mod streams;
mod supervise;
mod survive;
mod turns;
mod wait;
mod workers;

pub use self::boot_time::boot_time;
pub use self::cgroup::{NoController, check_delegation, check_identity_limits, delegate_cgroup};
pub use self::config::{LocalConfig, Retention, SpoolLimits};
pub use self::containment_kind::ContainmentKind;
pub use self::continued::ContinuedExecution;
pub use self::executor::{LocalExecutor, ResolvedCommand};
pub use self::grant::{Allowance, ConnectionState, Grant};
pub use self::memory::{HELD_MEMORY, HeldMemory};
#[cfg(target_env = "gnu")]
pub use self::names::look_up_in_files;
pub use self::observer::{ExecutionObserver, MainProcess, ObservedTerminal};
pub use self::process::keeper::Keeper;
pub use self::process::reaper::Reaper;
pub use self::recovery::handover::is_state_file;
pub use self::recovery::unfinished::handover_formats;
pub use self::share::Share;
pub use self::spawn::command_users::{allowed_users, look_up_users};
pub use self::spawn::dynamic_user::{DYNAMIC_USER, try_dynamic_users};
pub use self::state::serving::{ServingAgent, send_upgrade, serving_agents};
pub use self::turns::Turns;
pub use self::workers::{Lost, Workers};
