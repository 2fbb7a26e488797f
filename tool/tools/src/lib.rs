//! What an AI orchestrator calls: a [`Tool`]. [`BashTool`] and [`ExecCommandTool`] are written once, over any
//! [`Executor`](telexec_executor::Executor): the same tool works on this machine and on a remote one.
//!
//! This crate knows nothing of gRPC, and starts no process.

pub mod bash;
mod commands;
pub mod exec_command;
#[cfg(test)]
mod fake;
mod preview;
mod summary;
mod tool;

pub use bash::BashTool;
pub use exec_command::ExecCommandTool;
pub use tool::{Content, Tool, ToolContext, ToolDefinition, ToolError, ToolFailure, ToolResult};
