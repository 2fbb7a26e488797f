//! The recording of one execution.

use std::sync::mpsc::{SendError, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use serde::{Deserialize, Serialize};
use telexec_engine::{ObservedTerminal, boot_time};
use telexec_executor::{OutputStream, TerminalSize};

use super::cast::{About, Event};
use super::file::Recorded;
use super::job::{Finish, Job};
use super::shared::{NO_ANSWER, Shared};

/// What the next agent needs to continue a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::audit) struct Continuation {
    pub(super) file: String,
    pub(super) about: About,
    /// By [`boot_time`].
    pub(super) begun: Duration,
}

/// The recording of one execution. Dropping it closes the file, or removes it if nothing ran.
pub(in crate::audit) struct Recording {
    queue: Sender<Job>,
    shared: Arc<Shared>,
    about: About,
    /// By [`boot_time`].
    begun: Duration,
    terminal: OnceLock<ObservedTerminal>,
    /// Of the terminal, as recorded.
    size: Mutex<Option<TerminalSize>>,
    is_closed: bool,
}

impl Recording {
    pub(super) fn new(
        queue: Sender<Job>,
        shared: Arc<Shared>,
        about: About,
        begun: Duration,
        size: Option<TerminalSize>,
    ) -> Self {
        let (terminal, size) = (OnceLock::new(), Mutex::new(size));
        Self { queue, shared, about, begun, terminal, size, is_closed: false }
    }

    /// The name of its file.
    pub(in crate::audit) fn file(&self) -> &str {
        &self.shared.file
    }

    pub(in crate::audit) fn continuation(&self) -> Continuation {
        Continuation { file: self.file().to_owned(), about: self.about.clone(), begun: self.begun }
    }

    /// Its execution runs.
    pub(in crate::audit) fn begin(&self) {
        self.shared.begin();
    }

    /// Its execution has this terminal.
    pub(in crate::audit) fn set_terminal(&self, terminal: ObservedTerminal) {
        let _ = self.terminal.set(terminal);
    }

    pub(in crate::audit) fn output(&self, stream: OutputStream, data: &[u8]) {
        self.add_data(|| Event::Output(stream, data.to_owned()));
    }

    pub(in crate::audit) fn input(&self, data: &[u8], is_hidden: bool) {
        self.add_data(|| Event::Input { data: data.to_owned(), is_hidden });
    }

    fn add_data(&self, event: impl FnOnce() -> Event) {
        if !self.shared.has_failed() {
            self.add_size();
            self.add(event());
        }
    }

    /// Records the size of the terminal if it is another one.
    fn add_size(&self) {
        let Some(size) = self.terminal.get().and_then(ObservedTerminal::size) else { return };
        let recorded = self.size.lock().unwrap_or_else(PoisonError::into_inner).replace(size);
        if recorded != Some(size) {
            self.add(Event::Resized(size));
        }
    }

    pub(super) fn add(&self, event: Event) {
        self.shared.queue();
        if self.queue.send(Job::Event(self.shared.number, self.elapsed(), event)).is_err() {
            self.shared.fail("a fault of the agent");
        }
    }

    fn elapsed(&self) -> Duration {
        boot_time().saturating_sub(self.begun)
    }

    /// See [`ExecutionObserver::safe`](telexec_engine::ExecutionObserver::safe).
    pub(in crate::audit) fn safe(&self) -> Option<BoxFuture<'_, bool>> {
        match (self.shared.has_failed(), self.shared.is_strict) {
            (true, true) => Some(ready(false).boxed()),
            (true, false) => None,
            (false, _) => (!self.shared.is_written()).then(|| self.shared.safe().boxed()),
        }
    }

    /// See [`ExecutionObserver::kill`](telexec_engine::ExecutionObserver::kill).
    pub(in crate::audit) fn kill(&self) -> Option<BoxFuture<'_, ()>> {
        self.shared.is_strict.then(|| self.shared.failed().boxed())
    }

    /// What is known of it while the disk does not answer.
    pub(in crate::audit) fn unwritten(&self) -> Recorded {
        let error = self.shared.reason().or_else(|| Some(NO_ANSWER.to_owned()));
        Recorded { file: self.file().to_owned(), bytes: 0, sha256: None, error, continued: false }
    }

    /// Closes the file, and gives its totals to `then`.
    pub(in crate::audit) fn finish(mut self, then: impl FnOnce(Recorded) + Send + 'static) {
        self.close(Box::new(then));
    }

    fn close(&mut self, then: Box<dyn FnOnce(Recorded) + Send>) {
        self.is_closed = true;
        let finish = Finish { number: self.shared.number, at: self.elapsed(), then };
        if let Err(SendError(Job::Finish(Finish { then, .. }))) = self.queue.send(Job::Finish(finish)) {
            let error = self.shared.reason().or_else(|| Some("a fault of the agent".to_owned()));
            then(Recorded { file: self.file().to_owned(), bytes: 0, sha256: None, error, continued: false });
        }
    }

    /// Removes the file: nothing ran.
    pub(in crate::audit) fn discard(mut self) {
        self.is_closed = true;
        let _ = self.queue.send(Job::Discard(self.shared.number));
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        match self.is_closed {
            true => {}
            false if self.shared.has_begun() => self.close(Box::new(drop)),
            false => drop(self.queue.send(Job::Discard(self.shared.number))),
        }
    }
}
