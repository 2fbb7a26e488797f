//! Files that are reloaded while the agent runs.

use std::collections::BTreeMap;
use std::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use telexec_engine::Workers;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::warn;

use telexec_executor::text::error_chain;

/// Between two checks of the files for changes.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Makes an agent reload its files at once; clones belong to the same agent.
#[derive(Clone, Debug)]
pub struct Reload {
    asks: watch::Sender<()>,
    /// Never marked as seen, so that a clone made later misses no request.
    asked: watch::Receiver<()>,
}

impl Default for Reload {
    fn default() -> Self {
        let (asks, asked) = watch::channel(());
        Self { asks, asked }
    }
}

impl Reload {
    /// Requests a reload. The result is logged.
    pub fn ask(&self) {
        self.asks.send_replace(());
    }

    /// Returns when a reload was requested since the last call, or the beginning.
    pub(crate) async fn asked(&mut self) {
        // cannot fail: `self` holds a sender
        let _ = self.asked.changed().await;
    }
}

/// Something that is loaded from files.
pub(crate) trait Source: Send + Sync + 'static {
    type Loaded: Send + Sync + 'static;
    type Error: Error + Send + Sync + 'static;
    /// Its name in the log.
    const WHAT: &'static str;

    fn files(&self) -> Vec<&Path>;

    /// Reads the files. May block on network file systems.
    fn load(&self) -> Result<Self::Loaded, Self::Error>;

    /// Logs what is in use from now on.
    fn log_loaded(loaded: &Self::Loaded);
}

/// Whether the last reload of files failed, and what was loaded before is still in use; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ReloadState {
    /// What is in the files, as in the log.
    what: &'static str,
    fails: Arc<AtomicBool>,
}

impl ReloadState {
    fn set(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    fn fails(&self) -> bool {
        self.fails.load(Ordering::Relaxed)
    }
}

/// The states of all that an agent reloads.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReloadStates(Vec<ReloadState>);

impl ReloadStates {
    pub(crate) fn new(states: impl IntoIterator<Item = ReloadState>) -> Self {
        Self(states.into_iter().collect())
    }

    /// What is reloaded, each once and in order, and whether that fails.
    pub(crate) fn all(&self) -> BTreeMap<&'static str, bool> {
        let mut all = BTreeMap::new();
        for state in &self.0 {
            *all.entry(state.what).or_default() |= state.fails();
        }
        all
    }

    /// What could not be reloaded.
    pub(crate) fn failing(&self) -> Vec<String> {
        self.all().into_iter().filter(|(_, fails)| *fails).map(|(what, _)| what.to_owned()).collect()
    }
}

/// The last content of the files that could be loaded; clones share it.
pub(crate) struct Watched<S: Source> {
    source: Arc<S>,
    current: watch::Sender<Arc<S::Loaded>>,
    state: ReloadState,
    /// Of the files, from before they were first read.
    stamps: Stamps,
}

impl<S: Source> Clone for Watched<S> {
    fn clone(&self) -> Self {
        let Self { source, current, state, stamps } = self;
        Self { source: source.clone(), current: current.clone(), state: state.clone(), stamps: stamps.clone() }
    }
}

impl<S: Source> Watched<S> {
    pub(crate) fn load(source: S) -> Result<Self, S::Error> {
        let this = Self::load_unlogged(source)?;
        S::log_loaded(&this.current());
        Ok(this)
    }

    pub(crate) fn load_unlogged(source: S) -> Result<Self, S::Error> {
        let stamps = Stamps::of(&source);
        let loaded = source.load()?;
        let state = ReloadState { what: S::WHAT, fails: Arc::default() };
        Ok(Self { source: Arc::new(source), current: watch::Sender::new(Arc::new(loaded)), state, stamps })
    }

    pub(crate) fn state(&self) -> ReloadState {
        self.state.clone()
    }

    pub(crate) fn current(&self) -> Arc<S::Loaded> {
        Arc::clone(&self.current.borrow())
    }

    /// Notifies of replacements from now on.
    pub(crate) fn changes(&self) -> Changes<S::Loaded> {
        Changes::of(&self.current)
    }

    /// Reloads the files when they have changed or a reload is requested. Never returns.
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
            // several files are not replaced atomically: while they still change, wait for the next check
            let settled = stamps == seen;
            seen = stamps;
            // one that failed may have been about files that were away for a while
            if !at_once && (!settled || (seen == used && !self.state.fails())) {
                continue;
            }
            let replaced = self.replace(&workers).await;
            self.state.set(replaced.is_err());
            match replaced {
                Ok(()) => (used, refused) = (seen.clone(), None),
                // tried again at the next check: the cause may not show in the files' stamps
                Err(_) if !at_once && refused.as_ref() == Some(&seen) => {}
                Err(error) => {
                    warn!(error, "{} reload failed, keeping what was read before", S::WHAT);
                    refused = Some(seen.clone());
                }
            }
        }
    }

    /// Loads the files, and replaces the current content if that succeeds.
    async fn replace(&self, workers: &Workers) -> Result<(), String> {
        let loaded = self.blocking(workers, S::load).await.ok_or("reading the files was abandoned")?;
        let loaded = Arc::new(loaded.map_err(|error| error_chain(&error))?);
        S::log_loaded(&loaded);
        self.current.send_replace(loaded);
        Ok(())
    }

    /// On a worker thread: the files may be on a network file system that does not answer.
    async fn blocking<T: Send + 'static>(
        &self,
        workers: &Workers,
        work: impl FnOnce(&S) -> T + Send + 'static,
    ) -> Option<T> {
        let source = Arc::clone(&self.source);
        workers.run(S::WHAT, move || work(&source)).await.ok()
    }
}

/// Notifies of replaced content.
pub(crate) struct Changes<T>(watch::Receiver<Arc<T>>);

impl<T> Changes<T> {
    /// From now on.
    pub(crate) fn of(current: &watch::Sender<Arc<T>>) -> Self {
        Self(current.subscribe())
    }

    /// Returns when the content was replaced since the last call, or the beginning.
    pub(crate) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // the sender is gone: no more changes
            std::future::pending().await
        }
    }
}

/// Returns when this content was replaced since the last call, or the beginning; never, if there is none.
pub(crate) async fn next_change<T>(changes: &mut Option<Changes<T>>) {
    match changes {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}

/// Metadata that shows changes of the files. Follows links, so that swapping a linked directory shows too.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamps(Vec<Option<[i128; 5]>>);

impl Stamps {
    fn of(source: &impl Source) -> Self {
        Self(source.files().into_iter().map(stamp).collect())
    }
}

/// Uses ctime, since `cp -p` and `tar` preserve mtime.
fn stamp(path: &Path) -> Option<[i128; 5]> {
    let metadata = std::fs::metadata(path).ok()?;
    let (device, inode, size) = (metadata.dev().into(), metadata.ino().into(), metadata.size().into());
    Some([device, inode, size, metadata.ctime().into(), metadata.ctime_nsec().into()])
}
