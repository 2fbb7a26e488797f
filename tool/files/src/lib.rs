//! Files and Unix sockets of this Linux machine, for callers of an agent.
//!
//! An agent that runs as root must not open files on behalf of others: it starts its own program as the run-as user
//! ([`serve`] is what that runs), which reads requests from its standard input and answers on its standard output
//! ([`frame`], [`message`]). So the kernel decides what may be opened, and a file system that hangs holds up nobody else.
//! That process is a command to the engine: contained, limited and cancelled as any other.
//!
//! For the same reason it is such a process that connects to a Unix socket as another user than the agent's ([`dial`]).
//!
//! Before it touches a file, it may ask the agent whether that is permitted ([`message::Question`]), with the path that the
//! file really has: the directory is open then, and a symbolic link that is put in the way changes nothing.
#![cfg(target_os = "linux")]

pub mod dial; // Unix sockets
pub mod frame; // what goes over the pipes
pub mod message; // requests, answers and questions
pub mod search; // for files, and in them
pub mod sftp; // for SFTP's clients
pub mod watch; // changes, as they happen

mod descend; // all that a directory contains
mod list; // directories
mod names; // of users and groups
mod place; // from a path to an open directory and a name in it
mod read;
mod remove; // a directory with all that it contains
mod session; // requests, one after another
mod sparse; // the holes of files
mod sync; // what may not be on the disk yet
mod temporary_name; // of a file that is not complete
mod tree; // making, moving and removing
mod tunnel; // an SFTP session in frames
mod write;

#[cfg(test)]
mod tests;

pub use session::serve;
pub use temporary_name::remove_temporary_names_on_sigterm;
