//! What telexec prints, and its exit code.

mod execution;
pub(crate) mod exit;
mod failure;
pub(crate) mod json;
mod last_lines;
pub(crate) mod quoted;
mod table;
mod words;
mod writer;

pub(crate) use self::execution::{LOGIN_SHELL, command_text, cpu_time, end, short_duration, size, state};
pub(crate) use self::failure::{Failure, print_message, print_message_async, send_messages_to, with_causes};
pub(crate) use self::last_lines::LastLines;
pub(crate) use self::table::{fields, table};
pub(crate) use self::writer::{OutputWriter, print, unbuffered, write_all, write_failure};
pub(crate) use telexec_executor::text::printable;
