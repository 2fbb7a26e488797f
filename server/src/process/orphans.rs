//! What an agent owes to processes that have lost their parents, also as the first process of a container or VM.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use telexec_engine::Reaper;
use telexec_engine::Workers;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;
use tracing::warn;

/// Many ends at once cost one look.
const BATCH_DELAY: Duration = Duration::from_millis(20);

/// The orphans of this machine or container that are given to this process. They are reaped until it is dropped.
#[derive(Debug)]
pub struct Orphans {
    reaper: Arc<Reaper>,
    reaping: AbortHandle,
}

impl Orphans {
    /// Adopts orphans from now on. Needs a Tokio runtime, and is for a program that is an agent and nothing else: see
    /// [`Reaper`].
    ///
    /// # Errors
    /// The kernel does not know it, signals cannot be handled, or there is no thread for it.
    pub fn adopt() -> io::Result<Self> {
        let reaper = Arc::new(Reaper::new()?);
        // there before it is needed: orphans may come because there is no thread to be had
        let workers = Workers::new("reap", 1, 1)?;
        // whoever started this may have had it ignored, and then the ends of children could not be told
        let mut ended = signal(SignalKind::child())?;
        let reaping = tokio::spawn({
            let reaper = Arc::clone(&reaper);
            async move {
                loop {
                    let reaper = Arc::clone(&reaper);
                    // off the runtime's threads: it may have to look at all processes
                    match workers.run("", move || reaper.reap()).await {
                        Ok(Ok(true)) => {
                            ended.recv().await;
                        }
                        Ok(Ok(false)) => {}
                        Ok(Err(error)) => warn!(%error, "orphans could not be reaped"),
                        Err(error) => warn!(%error, "orphans could not be reaped"),
                    }
                    tokio::time::sleep(BATCH_DELAY).await;
                }
            }
        });
        Ok(Self { reaper, reaping: reaping.abort_handle() })
    }

    /// If this is the first process of a container or VM: passes the request to end (SIGTERM) on to all others, and waits
    /// for their ends, at the most `grace`; the kernel kills the rest when this one exits.
    pub async fn end_if_init(&self, grace: Duration) {
        self.reaper.end_all(grace).await;
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        self.reaping.abort();
    }
}
