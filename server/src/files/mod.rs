//! Files, for callers: by a process of the run-as user, since the kernel then decides what may be opened, and a file system
//! that hangs holds up nobody else.
//!
//! The process is this program itself (`helper`, `run_as`), started by the engine as a command is. It asks before it touches a file
//! (`session`): the policy decides about the path that the file really has, and the audit log has what came of it. An upload
//! that loses its call is kept for a while (`upload`). `service` is the RPCs, of which `transfer` does many in one call,
//! `sftp` carries another protocol, `search` and `watch` have many answers; `wire` turns them into tasks.

mod frames;
mod helper;
mod judge;
mod search;
mod service;
mod session;
mod sftp;
mod transfer;
mod upload;
mod watch;
mod wire;

pub(crate) use self::service::FileRpcs;
