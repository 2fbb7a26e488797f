//! Reaps orphaned processes, also as the init of a container or VM.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use telexec_engine::Reaper;
use telexec_engine::Workers;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;
use tracing::warn;

/// Between two scans, so that many exits at once cost one.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// Between two scans that fail, at most: each may read all of `/proc`.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Reaps the orphans that are reparented to this process, until dropped.
#[derive(Debug)]
pub struct Orphans {
    reaper: Arc<Reaper>,
    reaping: AbortHandle,
}

impl Orphans {
    /// Adopts orphans from now on. Needs a Tokio runtime, and a process with no other children to wait for: see [`Reaper`].
    ///
    /// # Errors
    /// The kernel lacks it, or signal handlers or the thread cannot be set up.
    pub fn adopt() -> io::Result<Self> {
        let reaper = Arc::new(Reaper::new()?);
        // made in advance: orphans may be the result of running out of threads
        let workers = Workers::new("reap", 1, 1)?;
        // the parent may have set SIGCHLD to be ignored, and then exit statuses would be lost
        let mut ended = signal(SignalKind::child())?;
        let reaping = tokio::spawn({
            let reaper = Arc::clone(&reaper);
            async move {
                let mut delay = BATCH_DELAY;
                loop {
                    let reaper = Arc::clone(&reaper);
                    // off the runtime's threads: it may have to scan all processes
                    let reaped =
                        workers.run("", move || reaper.reap()).await.unwrap_or_else(|lost| Err(io::Error::other(lost)));
                    match reaped {
                        Ok(is_all) => {
                            delay = BATCH_DELAY;
                            if is_all {
                                ended.recv().await;
                            }
                        }
                        Err(error) => {
                            warn!(%error, "orphans could not be reaped");
                            delay = (2 * delay).min(RETRY_DELAY);
                        }
                    }
                    tokio::time::sleep(delay).await;
                }
            }
        });
        Ok(Self { reaper, reaping: reaping.abort_handle() })
    }

    /// If this is the init of a container or VM: sends SIGTERM to all other processes and waits for their exits, at most
    /// `grace`; the kernel kills the rest when this one exits.
    pub async fn end_if_init(&self, grace: Duration) {
        self.reaper.end_all(grace).await;
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        self.reaping.abort();
    }
}
