//! Content of files, which are read again when they change.

use std::convert::Infallible;
use std::fs::{self, Metadata};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::output::{Failure, print_message};

/// Between two checks of the files for changes.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// What some files contain.
pub(super) struct Reloaded<T> {
    paths: Vec<PathBuf>,
    load: Arc<dyn Fn() -> Result<T, Failure> + Send + Sync>,
    /// Of the files when they were first read.
    stamps: Stamps,
    current: watch::Sender<Arc<T>>,
}

/// Shows changes of files.
type Stamps = Vec<Option<(u64, Option<SystemTime>, u64)>>;

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Reads these files.
    ///
    /// # Errors
    /// They cannot be used.
    pub(super) fn new(
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T, Failure> + Send + Sync + 'static,
    ) -> Result<Self, Failure> {
        let stamps = stamps(&paths);
        let current = watch::Sender::new(Arc::new(load()?));
        Ok(Self { paths, load: Arc::new(load), stamps, current })
    }

    pub(super) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.borrow())
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<T>> {
        self.current.subscribe()
    }

    /// Takes up changes of the files; while they cannot be used, the previous content stays. Never returns.
    pub(super) async fn follow(&self, what: &str) -> Infallible {
        let (mut used, mut refused) = (self.stamps.clone(), None);
        loop {
            sleep(POLL_INTERVAL).await;
            let (paths, load, before) = (self.paths.clone(), Arc::clone(&self.load), used.clone());
            // the files may be on a network file system that does not answer
            let changed = spawn_blocking(move || {
                let stamps = stamps(&paths);
                (stamps != before).then(|| (stamps, load()))
            });
            match changed.await {
                Ok(Some((stamps, Ok(content)))) => {
                    self.current.send_replace(Arc::new(content));
                    (used, refused) = (stamps, None);
                }
                Ok(Some((stamps, Err(failure)))) if refused.as_ref() != Some(&stamps) => {
                    print_message(&format!("cannot reload the {what}, keeping the previous content: {failure}"));
                    refused = Some(stamps);
                }
                _ => {}
            }
        }
    }
}

fn stamps(paths: &[PathBuf]) -> Stamps {
    paths.iter().map(|path| fs::metadata(path).ok().map(|metadata| stamp(&metadata))).collect()
}

/// `cp -p` and `tar` preserve the time of the last write, but not that of the last change.
#[cfg(unix)]
fn stamp(metadata: &Metadata) -> (u64, Option<SystemTime>, u64) {
    use std::os::unix::fs::MetadataExt;
    let [seconds, nanos] = [metadata.ctime(), metadata.ctime_nsec()].map(|part| u64::try_from(part).unwrap_or(0));
    (
        metadata.len(),
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_nanos(nanos)),
        metadata.ino(),
    )
}

#[cfg(not(unix))]
fn stamp(metadata: &Metadata) -> (u64, Option<SystemTime>, u64) {
    (metadata.len(), metadata.modified().ok(), 0)
}
