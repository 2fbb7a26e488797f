//! The heart of telexec: what it means to run a command, whoever runs it and wherever.
//!
//! - [`Executor`]: somewhere commands can run. [`local::LocalExecutor`] is this machine; `RemoteExecutor`, in the crate
//!   `telexec-client`, is a machine behind gRPC. Behaviour is added by wrapping one executor in another ([`guard`]).
//! - [`Tool`]: what an AI orchestrator calls. [`BashTool`] and [`ExecCommandTool`] are written once, over any executor.
//!
//! - [`shell`]: what a shell text would run, for rules and for people who confirm commands.
//!
//! This crate knows nothing of gRPC.

pub mod bash;
mod command;
mod error;
mod event;
pub mod exec_command;
mod executor;
pub mod guard;
mod id;
#[cfg(target_os = "linux")]
pub mod local;
pub mod shell;
mod signal;
mod size;
mod text;
mod tool;
mod trace;
mod workers;

pub use bash::BashTool;
pub use command::{Allowance, Command, CommandBuilder, Descendants, DuplicatePolicy, Fingerprint, OnDisconnect};
pub use command::{Program, ResourceLimits, TerminalSize};
pub use error::{ExecutorError, InvalidCommand, SpawnError, SpawnStage};
pub use event::{Event, ExitCause, Exited, Output, OutputStream, Started, StreamTotals};
pub use exec_command::ExecCommandTool;
pub use executor::{Attach, Execution, ExecutionInfo, ExecutionState, Executor, Input, ListPage, ListQuery};
pub use id::ExecutionId;
pub use signal::Signal;
pub use size::parse_size;
pub use text::without_cut_character;
pub use tool::{Content, Tool, ToolContext, ToolDefinition, ToolError, ToolFailure, ToolResult};
pub use trace::TraceContext;
pub use workers::{Lost, Workers};
