//! Retries while the agent is out of reach: which errors count, when to try again, and when to give up.

use std::sync::Arc;

use telexec_executor::ExecutorError;
use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep_until, timeout_at};

use crate::Resume;

/// Longer times might overflow the clock.
const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Whether the agent itself did not answer. `Untrusted` counts too: a stuck tunnel also sends no greeting.
pub(crate) fn is_loss(error: &ExecutorError) -> bool {
    use ExecutorError::{Lost, Unreachable, Untrusted};
    matches!(error, Lost { .. } | Unreachable { .. } | Untrusted { .. })
}

impl Drop for Outage {
    fn drop(&mut self) {
        self.answered();
    }
}

/// Begins with the first loss that is passed to [`pause`](Self::pause).
pub(crate) struct Outage {
    resume: Resume,
    /// The command's deadline; nothing is tried after it.
    deadline: Option<Instant>,
    endpoint: String,
    /// When to give up.
    end: Option<Instant>,
    /// The upper limit of the next pause.
    pause: Duration,
    /// Whether there is one.
    report: Arc<watch::Sender<bool>>,
}

impl Outage {
    pub(crate) fn new(
        resume: Resume,
        deadline: Option<Instant>,
        endpoint: &str,
        report: Arc<watch::Sender<bool>>,
    ) -> Self {
        Self { resume, deadline, endpoint: endpoint.to_owned(), end: None, pause: resume.initial_delay, report }
    }

    /// Whether there was a loss that is not over.
    pub(crate) fn has_begun(&self) -> bool {
        self.end.is_some()
    }

    /// The agent has answered: the outage may be over.
    pub(crate) fn answered(&self) {
        self.report.send_if_modified(|lost| std::mem::replace(lost, false));
    }

    /// The agent is reachable again.
    pub(crate) fn is_over(&mut self) {
        self.end = None;
        self.pause = self.resume.initial_delay;
    }

    /// Waits until it is time to try again.
    ///
    /// # Errors
    /// `error`, if it is no loss or the outage has lasted too long; or the deadline has passed.
    pub(crate) async fn pause(&mut self, error: ExecutorError) -> Result<(), ExecutorError> {
        if !is_loss(&error) {
            return Err(error);
        }
        self.report.send_if_modified(|lost| !std::mem::replace(lost, true));
        let now = Instant::now();
        let end = *self.end.get_or_insert(now + self.resume.give_up_after.min(MAX_TIME));
        let next = now + self.pause.min(self.resume.max_delay).min(MAX_TIME).mul_f64(fastrand::f64());
        self.pause = self.pause.saturating_mul(2);
        sleep_until(self.deadline.unwrap_or(next).min(next).min(end)).await;
        match self.deadline {
            Some(deadline) if deadline <= Instant::now() => Err(ExecutorError::DeadlineExceeded),
            _ if end <= next => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes a call; during an outage, with the time that is left as its timeout.
    pub(crate) async fn limit<T>(
        &self,
        call: impl Future<Output = Result<T, ExecutorError>>,
    ) -> Result<T, ExecutorError> {
        let Some(end) = self.end else { return call.await };
        let end = self.deadline.unwrap_or(end).min(end);
        match timeout_at(end, call).await {
            Ok(answer) => answer,
            Err(late) => Err(ExecutorError::Unreachable { endpoint: self.endpoint.clone(), source: late.into() }),
        }
    }

    /// Repeats a call until it is answered; only for calls without side effects.
    pub(crate) async fn repeat<T, F>(&mut self, call: impl Fn() -> F) -> Result<T, ExecutorError>
    where
        F: Future<Output = Result<T, ExecutorError>>,
    {
        loop {
            match self.limit(call()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.pause(error).await?,
            }
        }
    }
}
