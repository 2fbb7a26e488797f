//! What the thread and the observer of an execution share of its recording.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use telexec_engine::boot_time;
use telexec_executor::text::printable;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::audit::WRITE_TIMEOUT;

/// What is said of a disk that is waited for in vain.
pub(super) const NO_ANSWER: &str = "the disk does not answer";

/// However slow the disk is, nothing waits longer for it.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How often it is looked whether the disk has answered.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

fn now() -> u64 {
    u64::try_from(boot_time().as_micros()).unwrap_or(u64::MAX)
}

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
    /// Since when one waits, at the longest: microseconds of [`boot_time`]; 0: none does.
    waits_since: AtomicU64,
    progress: Notify,
    /// Nothing more is recorded.
    failed: CancellationToken,
    reason: OnceLock<String>,
    /// Its execution runs, or has run.
    has_begun: AtomicBool,
    thread: Arc<Thread>,
}

/// What all recordings share with the thread.
#[derive(Debug, Default)]
pub(super) struct Thread {
    /// When it was last seen to work: microseconds of [`boot_time`].
    progress: AtomicU64,
    /// Recordings that have failed.
    failures: AtomicU64,
}

impl Thread {
    /// It works.
    pub(super) fn works(&self) {
        self.progress.store(now(), Ordering::Relaxed);
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl Shared {
    pub(super) fn new(number: u64, file: String, is_strict: bool, thread: Arc<Thread>) -> Self {
        let [queued, written, waits_since] = [0; 3].map(AtomicU64::new);
        let (progress, failed, reason) = (Notify::new(), CancellationToken::new(), OnceLock::new());
        let has_begun = AtomicBool::new(false);
        Self { number, file, is_strict, queued, written, waits_since, progress, failed, reason, has_begun, thread }
    }

    /// It is incomplete from here on.
    pub(super) fn fail(&self, reason: &str) {
        if self.reason.set(reason.to_owned()).is_ok() {
            self.thread.failures.fetch_add(1, Ordering::Relaxed);
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

    /// Completes when it is incomplete, which it is too if the disk does not answer.
    pub(super) async fn failed(&self) {
        while tokio::time::timeout(LOOK_INTERVAL, self.failed.cancelled()).await.is_err() {
            if self.waits_in_vain() {
                self.fail(NO_ANSWER);
            }
        }
    }

    /// Whether an event waits while nothing at all is written, or has waited for very long.
    fn waits_in_vain(&self) -> bool {
        if self.is_written() {
            return false;
        }
        let now = now();
        // 0 if it was queued in the moment in which the one before was written
        let unset = self.waits_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let since = unset.map_or_else(|since| since, |_| now);
        let progress = self.thread.progress.load(Ordering::Relaxed).max(since);
        let exceeds = |since: u64, most: Duration| Duration::from_micros(now.saturating_sub(since)) > most;
        exceeds(progress, WRITE_TIMEOUT) || exceeds(since, MAX_WAIT)
    }

    /// An event is queued.
    pub(super) fn queue(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let _ = self.waits_since.compare_exchange(0, now(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Its execution runs.
    pub(super) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// So many events are written.
    pub(super) fn wrote(&self, events: u64) {
        self.written.fetch_add(events, Ordering::Release);
        // if one was queued just now, it waits since now
        self.waits_since.store(if self.is_written() { 0 } else { now() }, Ordering::Relaxed);
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
            () = written => {}
            () = self.failed() => {}
        }
        !(self.is_strict && self.has_failed())
    }
}
