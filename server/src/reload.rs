//! What is read from files, and read again while the agent runs.

use std::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use telexec_engine::Workers;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::warn;

use telexec_executor::text::error_chain;

/// Between two looks at the files.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Asks an agent to look at its files again, at once; its clones ask the same one.
#[derive(Clone, Debug)]
pub struct Reload {
    asks: watch::Sender<()>,
    /// Has seen no ask yet, so that whoever begins to wait later misses none.
    asked: watch::Receiver<()>,
}

impl Default for Reload {
    fn default() -> Self {
        let (asks, asked) = watch::channel(());
        Self { asks, asked }
    }
}

impl Reload {
    /// Asks. What comes of it is in the log.
    pub fn ask(&self) {
        self.asks.send_replace(());
    }

    /// Returns when that was asked for since the last time, or the beginning.
    pub(crate) async fn asked(&mut self) {
        // it has a sender itself
        let _ = self.asked.changed().await;
    }
}

/// Where something is read from.
pub(crate) trait Source: Send + Sync + 'static {
    type Loaded: Send + Sync + 'static;
    type Error: Error + Send + Sync + 'static;
    /// What it is, for the log.
    const WHAT: &'static str;

    fn files(&self) -> Vec<&Path>;

    /// Reads the files; slow, if they are far.
    fn load(&self) -> Result<Self::Loaded, Self::Error>;

    /// Says in the log what is in use from now on.
    fn log_loaded(loaded: &Self::Loaded);
}

/// What the files held when they were last read and could be used; its clones share it.
pub(crate) struct Watched<S: Source> {
    source: Arc<S>,
    current: watch::Sender<Arc<S::Loaded>>,
    /// Of the files, before they were read first.
    stamps: Stamps,
}

impl<S: Source> Clone for Watched<S> {
    fn clone(&self) -> Self {
        Self { source: self.source.clone(), current: self.current.clone(), stamps: self.stamps.clone() }
    }
}

impl<S: Source> Watched<S> {
    pub(crate) fn load(source: S) -> Result<Self, S::Error> {
        let stamps = Stamps::of(&source);
        let loaded = source.load()?;
        S::log_loaded(&loaded);
        Ok(Self { source: Arc::new(source), current: watch::Sender::new(Arc::new(loaded)), stamps })
    }

    pub(crate) fn current(&self) -> Arc<S::Loaded> {
        Arc::clone(&self.current.borrow())
    }

    /// Sees what is taken from now on.
    pub(crate) fn changes(&self) -> Changes<S::Loaded> {
        Changes(self.current.subscribe())
    }

    /// Reads the files again whenever they have changed, or that is asked for; for ever.
    pub(crate) async fn follow(self, mut reload: Reload, workers: Workers) {
        let mut polls = tokio::time::interval(POLL_INTERVAL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut used, mut seen, mut refused) = (self.stamps.clone(), self.stamps.clone(), None);
        loop {
            let at_once = tokio::select! {
                () = reload.asked() => true,
                _ = polls.tick() => false,
            };
            let Some(stamps) = self.blocking(&workers, Stamps::of).await else { continue };
            // several files are not replaced at one moment: what still changes is left for the next look
            let settled = stamps == seen;
            seen = stamps;
            if !at_once && (!settled || seen == used) {
                continue;
            }
            match self.replace(&workers).await {
                Ok(()) => (used, refused) = (seen.clone(), None),
                // tried again at the next look, since what was wrong may not show in the files
                Err(_) if !at_once && refused.as_ref() == Some(&seen) => {}
                Err(error) => {
                    warn!(error, "{} reload failed, keeping the previous one", S::WHAT);
                    refused = Some(seen.clone());
                }
            }
        }
    }

    /// Takes what the files hold now, if all of it can be used; else says why not.
    async fn replace(&self, workers: &Workers) -> Result<(), String> {
        let loaded = self.blocking(workers, S::load).await.ok_or("reading them was given up")?;
        let loaded = Arc::new(loaded.map_err(|error| error_chain(&error))?);
        S::log_loaded(&loaded);
        self.current.send_replace(loaded);
        Ok(())
    }

    /// Files may be on a network that is dead.
    async fn blocking<T: Send + 'static>(
        &self,
        workers: &Workers,
        work: impl FnOnce(&S) -> T + Send + 'static,
    ) -> Option<T> {
        let source = Arc::clone(&self.source);
        workers.run(S::WHAT, move || work(&source)).await.ok()
    }
}

/// Whether something else has been taken from the files.
pub(crate) struct Changes<T>(watch::Receiver<Arc<T>>);

impl<T> Changes<T> {
    /// Returns when that has happened since the last time, or the beginning.
    pub(crate) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // nobody is left who could
            std::future::pending().await
        }
    }
}

/// By which a change of the files is seen, links followed: also when a directory is swapped by a link to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamps(Vec<Option<[i128; 5]>>);

impl Stamps {
    fn of(source: &impl Source) -> Self {
        Self(source.files().into_iter().map(stamp).collect())
    }
}

/// The time of change is newer than any time of modification that `cp -p` or `tar` brings along.
fn stamp(path: &Path) -> Option<[i128; 5]> {
    let metadata = std::fs::metadata(path).ok()?;
    let (device, inode, size) = (metadata.dev().into(), metadata.ino().into(), metadata.size().into());
    Some([device, inode, size, metadata.ctime().into(), metadata.ctime_nsec().into()])
}
