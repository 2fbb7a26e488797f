//! Observing an execution from inside the engine, for records of what ran.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use futures_util::future::{BoxFuture, select_all};
use telexec_executor::{ExecutorError, Exited, OutputStream, TerminalSize};

use crate::streams::terminal::Terminal;

/// Observes one command from its start to its end, however that comes; one of [`Grant::observers`](crate::Grant).
///
/// It gets exactly one of [`ended`](Self::ended), [`not_started`](Self::not_started) and [`repeated`](Self::repeated),
/// or is dropped without: its call was given up before there was anything to report, or this process ends now. It is
/// called by the task that carries the output: what takes long here holds the command up. By default each event is
/// ignored.
pub trait ExecutionObserver: Send + Sync {
    /// The command runs.
    fn started(&self, main: &MainProcess) {
        let _ = main;
    }

    /// What the observer that the next agent has in place of this one needs, under a name that is always the same, see
    /// [`LocalExecutor::continue_executions`](crate::LocalExecutor::continue_executions); asked for before the command is
    /// started. `None`: nothing.
    fn state(&self) -> Option<(&'static str, Vec<u8>)> {
        None
    }

    /// Where its start is recorded, for the log of a keeper, as `audit record 7`; asked for before the command is started.
    /// `None`: nowhere.
    fn reference(&self) -> Option<String> {
        None
    }

    /// The command wrote this, and it was read: all of it, in order for each stream, also what no reader gets
    /// ([`telexec_executor::Command::max_output_bytes`]).
    fn output(&self, stream: OutputStream, data: &[u8]) {
        let _ = (stream, data);
    }

    /// The command has this terminal: before it is [`started`](Self::started), or when it is continued.
    fn terminal(&self, terminal: ObservedTerminal) {
        let _ = terminal;
    }

    /// This is about to be written to the command's pipe or terminal, in order; what the command does not take is given
    /// again if its caller sends it again. `is_hidden`: its terminal reads a line without an echo, as for a password (`ICANON`
    /// without `ECHO`, see termios(3)).
    fn input(&self, data: &[u8], is_hidden: bool) {
        let _ = (data, is_hidden);
    }

    /// Completes when all that the observer was given is safe, and says whether that may go on: the output to readers, the
    /// input to the command. What may not is dropped. `None`: it may, at once. Each stream asks after each read, so it has to end
    /// within some seconds whatever happens. Dropping it does no harm.
    fn safe(&self) -> Option<BoxFuture<'_, bool>> {
        None
    }

    /// Completes when the execution is to be killed, with all of its processes: it counts as cancelled, even if it is detached.
    /// It is asked for anew at each wait, and completes each time from then on. `None`: never.
    fn kill(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }

    /// Whether it gives a [`receipt`](Self::receipt). A command that asks for one is not started without such an observer.
    fn gives_receipt(&self) -> bool {
        false
    }

    /// The receipt of what ended like this, for [`Exited::receipt`]: asked for just before [`ended`](Self::ended).
    fn receipt(&self, exited: &Exited) -> Option<Arc<String>> {
        let _ = exited;
        None
    }

    /// Its main process has ended, and no more output comes. Its readers get that after this.
    fn ended(self: Box<Self>, exited: &Exited) {
        let _ = exited;
    }

    /// It could not be started, or was ended during its start.
    fn not_started(self: Box<Self>, error: &ExecutorError) {
        let _ = error;
    }

    /// Nothing was to be started: the call follows the execution that was requested before, with the same id.
    fn repeated(self: Box<Self>) {}
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

/// The terminal of a command that is observed.
#[derive(Clone)]
pub struct ObservedTerminal(Weak<Terminal>);

impl ObservedTerminal {
    pub(crate) fn new(terminal: &Arc<Terminal>) -> Self {
        // its last owner hangs it up
        Self(Arc::downgrade(terminal))
    }

    /// Its size now; `None`: it is gone.
    pub fn size(&self) -> Option<TerminalSize> {
        self.0.upgrade()?.size()
    }
}

/// What observers need to be continued.
pub(crate) type ObserverStates = Vec<(&'static str, Vec<u8>)>;

/// All observers of one execution.
pub(crate) struct Observers(Vec<Box<dyn ExecutionObserver>>);

impl Observers {
    pub(crate) fn new(observers: Vec<Box<dyn ExecutionObserver>>) -> Self {
        Self(observers)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn states(&self) -> ObserverStates {
        self.0.iter().filter_map(|observer| observer.state()).collect()
    }

    pub(crate) fn reference(&self) -> Option<String> {
        self.0.iter().find_map(|observer| observer.reference())
    }

    pub(crate) fn started(&self, main: &MainProcess) {
        self.0.iter().for_each(|observer| observer.started(main));
    }

    pub(crate) fn output(&self, stream: OutputStream, data: &[u8]) {
        self.0.iter().for_each(|observer| observer.output(stream, data));
    }

    pub(crate) fn terminal(&self, terminal: &Arc<Terminal>) {
        self.0.iter().for_each(|observer| observer.terminal(ObservedTerminal::new(terminal)));
    }

    pub(crate) fn input(&self, data: &[u8], is_hidden: bool) {
        self.0.iter().for_each(|observer| observer.input(data, is_hidden));
    }

    /// Whether what they were given may go on.
    pub(crate) async fn safe(&self) -> bool {
        let mut may_go_on = true;
        for safe in self.0.iter().filter_map(|observer| observer.safe()) {
            may_go_on &= safe.await;
        }
        may_go_on
    }

    /// Completes when the execution is to be killed.
    pub(crate) async fn kill(&self) {
        let all: Vec<_> = self.0.iter().filter_map(|observer| observer.kill()).collect();
        match all.is_empty() {
            true => std::future::pending().await,
            false => drop(select_all(all).await),
        }
    }

    pub(crate) fn any_gives_receipt(&self) -> bool {
        self.0.iter().any(|observer| observer.gives_receipt())
    }

    pub(crate) fn receipt(&self, exited: &Exited) -> Option<Arc<String>> {
        self.0.iter().find_map(|observer| catch_unwind(AssertUnwindSafe(|| observer.receipt(exited))).ok().flatten())
    }

    pub(crate) fn ended(&mut self, exited: &Exited) {
        self.end(|observer| observer.ended(exited));
    }

    pub(crate) fn not_started(&mut self, error: &ExecutorError) {
        self.end(|observer| observer.not_started(error));
    }

    pub(crate) fn repeated(&mut self) {
        self.end(|observer| observer.repeated());
    }

    /// Gives each the end. A panic of one keeps it from none of the others, and everything else proceeds as usual.
    fn end(&mut self, end: impl Fn(Box<dyn ExecutionObserver>)) {
        for observer in self.0.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| end(observer)));
        }
    }
}
