//! Repeating what a lost connection has interrupted.

use std::time::{Duration, Instant};

use telexec_client::Resume;
use telexec_executor::ExecutorError;

use crate::connect::is_lost;

/// Begins with the first loss, and again with each after some progress.
pub(super) struct Patience {
    resume: Resume,
    end: Option<Instant>,
    delay: Duration,
}

impl Patience {
    pub(super) fn new(resume: Resume) -> Self {
        Self { resume, end: None, delay: resume.initial_delay }
    }

    /// The connection was good for something.
    pub(super) fn progressed(&mut self) {
        self.end = None;
        self.delay = self.resume.initial_delay;
    }

    /// Waits until it is time to try again.
    ///
    /// # Errors
    /// `error`, if it is no loss or there were losses for too long.
    pub(super) async fn pause(&mut self, error: ExecutorError) -> Result<(), ExecutorError> {
        let lost = Err(error);
        if !is_lost::<()>(&lost) {
            return lost;
        }
        let now = Instant::now();
        if *self.end.get_or_insert(now + self.resume.give_up_after) <= now {
            return lost;
        }
        tokio::time::sleep(self.delay.mul_f64(fastrand::f64())).await;
        self.delay = self.delay.saturating_mul(2).min(self.resume.max_delay);
        Ok(())
    }

    /// Repeats a call that has no effect.
    ///
    /// # Errors
    /// As of [`pause`](Self::pause).
    pub(super) async fn repeat<T, F>(&mut self, mut call: impl FnMut() -> F) -> Result<T, ExecutorError>
    where
        F: Future<Output = Result<T, ExecutorError>>,
    {
        loop {
            match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.pause(error).await?,
            }
        }
    }
}
