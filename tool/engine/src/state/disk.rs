//! File operations in the state directory: on threads of their own, each with a timeout. A file system that does not
//! answer takes these threads, and holds up nothing else.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::warn;

use crate::workers::Workers;

/// How many operations run at once, and how many threads may be stuck.
const THREADS: usize = 8;
/// How long an operation may take, or wait for its turn while no other one is done.
pub(crate) const DISK_TIMEOUT: Duration = Duration::from_secs(5);
/// The same while the file system does not answer.
const SHORT_TIMEOUT: Duration = Duration::from_millis(500);
/// How many may wait while the file system does not answer.
const MAX_WAITING: usize = 1024;

/// The threads. Clones share them.
#[derive(Clone)]
pub(crate) struct Disk {
    workers: Workers,
    health: Arc<Health>,
}

#[derive(Default)]
struct Health {
    /// Operations that were done.
    done: AtomicU64,
    /// Operations whose turn has not come.
    waiting: AtomicUsize,
    /// One was given up, and none was done since.
    is_stalled: AtomicBool,
}

/// An operation was given up; it may be done later all the same.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the file system of the state directory does not answer")]
pub(crate) struct NoAnswer;

impl From<NoAnswer> for io::Error {
    fn from(error: NoAnswer) -> Self {
        Self::new(io::ErrorKind::TimedOut, error)
    }
}

impl Disk {
    /// # Errors
    /// There are no threads.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { workers: Workers::new("state", 1, THREADS)?, health: Arc::default() })
    }

    /// Does work in the turn of `owner`. It is not done if it is no longer awaited when its turn comes; then what it holds
    /// is dropped here, which must not block.
    ///
    /// # Errors
    /// It takes longer than [`DISK_TIMEOUT`], or its turn does not come.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        self.run_within(self.timeout(DISK_TIMEOUT)?, owner, work).await
    }

    /// The same with another limit, also while the file system does not answer.
    ///
    /// # Errors
    /// It takes longer than this, or its turn does not come.
    pub(crate) async fn run_within<T: Send + 'static>(
        &self,
        limit: Duration,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let begun = Arc::new(OnceLock::new());
        let answered = self.workers.run(owner, self.counted(Arc::clone(&begun), work));
        tokio::pin!(answered);
        let (mut done, mut since) = (self.done(), Instant::now());
        loop {
            if let Ok(answer) = tokio::time::timeout(limit / 8, &mut answered).await {
                return answer.map_err(|_| NoAnswer);
            }
            // a slow disk with many waiting operations is not one that does not answer
            if done != self.done() {
                (done, since) = (self.done(), Instant::now());
            }
            if begun.get().unwrap_or(&since).elapsed() >= limit {
                self.stalled();
                return Err(NoAnswer);
            }
        }
    }

    /// The same on a thread that may block.
    ///
    /// # Errors
    /// It takes longer than this, its turn included.
    pub(crate) fn run_blocking<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let limit = self.timeout(limit)?;
        let (answer, answered) = mpsc::sync_channel(1);
        drop(self.spawn("", move || answer.send(work())));
        answered.recv_timeout(limit).map_err(|_| {
            self.stalled();
            NoAnswer
        })
    }

    /// Does work in the turn of `owner`, also if it is no longer awaited.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        self.workers.spawn(owner, self.counted(Arc::default(), work))
    }

    fn done(&self) -> u64 {
        self.health.done.load(Ordering::Relaxed)
    }

    /// # Errors
    /// Too many wait already.
    fn timeout(&self, limit: Duration) -> Result<Duration, NoAnswer> {
        if !self.health.is_stalled.load(Ordering::Relaxed) {
            return Ok(limit);
        }
        match self.health.waiting.load(Ordering::Relaxed) < MAX_WAITING {
            true => Ok(limit.min(SHORT_TIMEOUT)),
            false => Err(NoAnswer),
        }
    }

    fn stalled(&self) {
        if !self.health.is_stalled.swap(true, Ordering::Relaxed) {
            warn!("{NoAnswer}");
        }
    }

    fn counted<T, W: FnOnce() -> T>(&self, begun: Arc<OnceLock<Instant>>, work: W) -> impl FnOnce() -> T + use<T, W> {
        let waiting = Waiting::new(Arc::clone(&self.health));
        move || {
            let health = waiting.over();
            let _ = begun.set(Instant::now());
            let result = work();
            health.done.fetch_add(1, Ordering::Relaxed);
            if health.is_stalled.swap(false, Ordering::Relaxed) {
                warn!("the file system of the state directory answers again");
            }
            result
        }
    }
}

/// Counts an operation until its turn comes, or it is dropped.
struct Waiting(Arc<Health>);

impl Waiting {
    fn new(health: Arc<Health>) -> Self {
        health.waiting.fetch_add(1, Ordering::Relaxed);
        Self(health)
    }

    fn over(self) -> Arc<Health> {
        Arc::clone(&self.0)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
