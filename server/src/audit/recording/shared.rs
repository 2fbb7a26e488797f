//! What the thread and the observer of an execution share of its recording.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Bytes of events that wait to be written, before the execution has to wait.
const MAX_WAITING: usize = 256 * 1024;
/// After this the disk is taken to be stuck.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// One recording.
#[derive(Debug)]
pub(super) struct Shared {
    /// Tells it from the others of this agent.
    pub(super) number: u64,
    /// Its name in the directory.
    pub(super) file: String,
    waiting: AtomicUsize,
    written: Notify,
    /// Nothing more is recorded.
    failed: CancellationToken,
    reason: OnceLock<String>,
    /// Those that have failed, of all.
    failures: Arc<AtomicU64>,
}

impl Shared {
    pub(super) fn new(number: u64, file: String, failures: Arc<AtomicU64>) -> Self {
        let (waiting, written, failed) = (AtomicUsize::new(0), Notify::new(), CancellationToken::new());
        Self { number, file, waiting, written, failed, reason: OnceLock::new(), failures }
    }

    /// It is incomplete from here on.
    pub(super) fn fail(&self, reason: &str) {
        if self.reason.set(reason.to_owned()).is_ok() {
            self.failures.fetch_add(1, Ordering::Relaxed);
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

    /// Something is to be written.
    pub(super) fn gave(&self, bytes: usize) {
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
    }

    /// It is written.
    pub(super) fn took(&self, bytes: usize) {
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        self.written.notify_waiters();
    }

    pub(super) fn has_room(&self) -> bool {
        self.has_failed() || self.waiting.load(Ordering::Relaxed) < MAX_WAITING
    }

    /// Completes when there is room, or nothing more is recorded: for that there is a limit.
    pub(super) async fn room(&self) {
        let room = async {
            loop {
                let written = self.written.notified();
                tokio::pin!(written);
                written.as_mut().enable();
                if self.has_room() {
                    return;
                }
                written.await;
            }
        };
        tokio::select! {
            () = self.failed() => {}
            waited = tokio::time::timeout(WRITE_TIMEOUT, room) => {
                if waited.is_err() {
                    self.fail("the disk does not answer");
                }
            }
        }
    }
}
