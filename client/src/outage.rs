//! A time without the agent: which errors begin it, when to try again, and when to give up.

use telexec_executor::ExecutorError;
use tokio::time::{Duration, Instant, sleep_until, timeout_at};

use crate::Resume;

/// More than that cannot be added to a clock for sure.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Whether the agent itself did not answer. A tunnel that is stuck does not greet either, so that is no proof of mistrust.
pub(crate) fn is_loss(error: &ExecutorError) -> bool {
    use ExecutorError::{Lost, Unreachable, Untrusted};
    matches!(error, Lost { .. } | Unreachable { .. } | Untrusted { .. })
}

/// Begins with the first loss that is told to it.
pub(crate) struct Outage {
    resume: Resume,
    /// Of the command; nothing is tried after it.
    deadline: Option<Instant>,
    endpoint: String,
    /// When it has lasted too long.
    end: Option<Instant>,
    /// The next pause is no longer.
    pause: Duration,
}

impl Outage {
    pub(crate) fn new(resume: Resume, deadline: Option<Instant>, endpoint: &str) -> Self {
        Self { resume, deadline, endpoint: endpoint.to_owned(), end: None, pause: resume.first_pause }
    }

    /// A loss was told, and made up for or not.
    pub(crate) fn has_begun(&self) -> bool {
        self.end.is_some()
    }

    /// The agent is there again.
    pub(crate) fn is_over(&mut self) {
        self.end = None;
        self.pause = self.resume.first_pause;
    }

    /// Waits until it is time to try again.
    ///
    /// # Errors
    /// This one, if it is no loss or it has lasted too long; or the deadline has passed.
    pub(crate) async fn pause(&mut self, error: ExecutorError) -> Result<(), ExecutorError> {
        if !is_loss(&error) {
            return Err(error);
        }
        let now = Instant::now();
        let end = *self.end.get_or_insert(now + self.resume.patience.min(LONGEST));
        let next = now + self.pause.min(self.resume.max_pause).min(LONGEST).mul_f64(fastrand::f64());
        self.pause = self.pause.saturating_mul(2);
        sleep_until(self.deadline.unwrap_or(next).min(next).min(end)).await;
        match self.deadline {
            Some(deadline) if deadline <= Instant::now() => Err(ExecutorError::DeadlineExceeded),
            _ if end <= next => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes a call, while there is no outage for as long as it takes.
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

    /// Makes a call until it is answered; only for those that change nothing.
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
