//! Observing an execution from inside the engine, for records of what ran.

use std::time::SystemTime;

use telexec_executor::{ExecutorError, Exited, OutputStream};

/// Observes one command from its start to its end, however that comes; given to
/// [`execute_observed`](crate::LocalExecutor::execute_observed).
///
/// It gets exactly one of [`ended`](Self::ended), [`not_started`](Self::not_started) and [`repeated`](Self::repeated),
/// or is dropped without: its call was given up before there was anything to report, or this process ends now. It is
/// called by the task that carries the output: what takes long here holds the command up.
pub trait ExecutionObserver: Send + Sync {
    /// The command runs.
    fn started(&self, main: &MainProcess);

    /// The command wrote this, and it was read: all of it, in order for each stream, also what no reader gets
    /// ([`telexec_executor::Command::max_output_bytes`]).
    fn output(&self, stream: OutputStream, data: &[u8]);

    /// Its main process has ended, and no more output comes. Its readers get that after this.
    fn ended(self: Box<Self>, exited: &Exited);

    /// It could not be started, or was ended while that went on.
    fn not_started(self: Box<Self>, error: &ExecutorError);

    /// Nothing was to be started: the call follows the execution that was asked for before, with the same id.
    fn repeated(self: Box<Self>);
}

/// The main process of an execution, as it was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MainProcess {
    /// Its number.
    pub pid: u32,
    /// By the clock of this machine.
    pub start_time: SystemTime,
    /// The name of the user that it runs as.
    pub user: String,
    /// Where it was started.
    pub working_directory: String,
}
