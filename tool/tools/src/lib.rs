//! What an AI orchestrator calls: a [`Tool`]. [`BashTool`] and [`ExecCommandTool`] are written once, over any
//! [`Executor`](telexec_executor::Executor), and [`FileTools`](files::FileTools) over any
//! [`Files`](telexec_executor::Files): the same tool works on this machine and on a remote one.
//!
//! This crate knows nothing of gRPC, and starts no process.

pub mod bash;
mod commands;
pub mod exec_command;
mod failure;
#[cfg(test)]
mod fake;
pub mod files;
mod named_command;
mod parameters;
mod preview;
mod summary;
mod tool;

pub use bash::BashTool;
pub use exec_command::ExecCommandTool;
pub use named_command::{NamedCommand, NamedCommandTool, NamedParameter};
pub use tool::{Content, Tool, ToolContext, ToolDefinition, ToolError, ToolFailure, ToolResult};
