//! What the thread and the observer of an execution share of its recording.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use telexec_executor::text::printable;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::audit::WRITE_TIMEOUT;

/// What is said of a disk that is waited for in vain.
pub(super) const NO_ANSWER: &str = "the disk does not answer";

/// One recording.
#[derive(Debug)]
pub(super) struct Shared {
    /// Tells it from the others of this agent.
    pub(super) number: u64,
    /// Its name in the directory.
    pub(super) file: String,
    /// What is not recorded does not run.
    pub(super) is_strict: bool,
    /// Events that were queued, and that were written.
    queued: AtomicU64,
    written: AtomicU64,
    progress: Notify,
    /// Nothing more is recorded.
    failed: CancellationToken,
    reason: OnceLock<String>,
    /// Those that have failed, of all.
    failures: Arc<AtomicU64>,
}

impl Shared {
    pub(super) fn new(number: u64, file: String, is_strict: bool, failures: Arc<AtomicU64>) -> Self {
        let [queued, written] = [0; 2].map(AtomicU64::new);
        let (progress, failed, reason) = (Notify::new(), CancellationToken::new(), OnceLock::new());
        Self { number, file, is_strict, queued, written, progress, failed, reason, failures }
    }

    /// It is incomplete from here on.
    pub(super) fn fail(&self, reason: &str) {
        if self.reason.set(reason.to_owned()).is_ok() {
            self.failures.fetch_add(1, Ordering::Relaxed);
            warn!(file = self.file, reason = printable(reason), "a recording is incomplete");
        }
        self.failed.cancel();
    }

    pub(super) fn reason(&self) -> Option<String> {
        self.reason.get().cloned()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_cancelled()
    }

    /// Completes when it is incomplete.
    pub(super) async fn failed(&self) {
        self.failed.cancelled().await;
    }

    /// An event is queued.
    pub(super) fn queue(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// No event was queued.
    pub(super) fn is_unused(&self) -> bool {
        self.queued.load(Ordering::Relaxed) == 0
    }

    /// So many events are written.
    pub(super) fn wrote(&self, events: u64) {
        self.written.fetch_add(events, Ordering::Release);
        self.progress.notify_waiters();
    }

    /// Whether there is nothing to wait for.
    pub(super) fn is_written(&self) -> bool {
        self.written.load(Ordering::Acquire) >= self.queued.load(Ordering::Relaxed)
    }

    /// Completes when all that was queued so far is written, or never will be; says whether what was queued may go on.
    pub(super) async fn safe(&self) -> bool {
        let queued = self.queued.load(Ordering::Relaxed);
        let written = async {
            loop {
                let progress = self.progress.notified();
                tokio::pin!(progress);
                progress.as_mut().enable();
                if self.written.load(Ordering::Acquire) >= queued {
                    return;
                }
                progress.await;
            }
        };
        tokio::select! {
            biased;
            () = self.failed() => {}
            waited = tokio::time::timeout(WRITE_TIMEOUT, written) => {
                if waited.is_err() {
                    self.fail(NO_ANSWER);
                }
            }
        }
        !(self.is_strict && self.has_failed())
    }
}
