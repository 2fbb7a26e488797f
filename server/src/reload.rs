//! Certificates that are replaced while the agent runs.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::pki_types::UnixTime;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::certificate::Expiry;
use crate::logging::one_line;
use crate::tls::{Credentials, TlsError, TlsFiles};

/// Between two looks at the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Asks an agent to read its certificates again, at once; its clones ask the same one.
#[derive(Clone, Debug, Default)]
pub struct Reload(Arc<Notify>);

impl Reload {
    /// Asks. What comes of it is in the log.
    pub fn ask(&self) {
        self.0.notify_one();
    }
}

/// The credentials that count now; its clones share them.
#[derive(Clone)]
pub(crate) struct Tls {
    files: Arc<TlsFiles>,
    current: Arc<RwLock<Arc<Credentials>>>,
    /// Of the files, before they were read first.
    stamps: Stamps,
}

impl Tls {
    pub(crate) fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let stamps = Stamps::of(&files);
        let credentials = files.load()?;
        tell(&credentials);
        Ok(Self { files: Arc::new(files), current: Arc::new(RwLock::new(Arc::new(credentials))), stamps })
    }

    pub(crate) fn current(&self) -> Arc<Credentials> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again whenever they have changed, or that is asked for; for ever.
    pub(crate) async fn follow(self, asked: Reload) {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut used, mut seen, mut refused) = (self.stamps.clone(), self.stamps.clone(), None);
        let mut expiry = Expiry::Far;
        loop {
            expiry = warn_of_expiry(&self.current(), expiry);
            let at_once = tokio::select! {
                () = asked.0.notified() => true,
                _ = looks.tick() => false,
            };
            let Some(stamps) = self.blocking(Stamps::of).await else { continue };
            // several files are not replaced at one moment: what still changes is left for the next look
            let settled = stamps == seen;
            seen = stamps;
            if !at_once && (!settled || seen == used) {
                continue;
            }
            match self.replace().await {
                Ok(()) => (used, refused, expiry) = (seen.clone(), None, Expiry::Far),
                // tried again at the next look, since what was wrong may not show in the files
                Err(_) if !at_once && refused.as_ref() == Some(&seen) => {}
                Err(error) => {
                    warn!(error, "certificates not reloaded: those from before stay in use");
                    refused = Some(seen.clone());
                }
            }
        }
    }

    /// Takes what the files hold now, if all of it can be used; else says why not.
    async fn replace(&self) -> Result<(), String> {
        let loaded = self.blocking(TlsFiles::load).await.ok_or("reading them was given up")?;
        let credentials = Arc::new(loaded.map_err(|error| one_line(&error))?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&credentials);
        tell(&credentials);
        Ok(())
    }

    /// Files may be on a network that is dead.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&TlsFiles) -> T + Send + 'static) -> Option<T> {
        let files = Arc::clone(&self.files);
        tokio::task::spawn_blocking(move || work(&files)).await.ok()
    }
}

/// Says what is in use from now on.
fn tell(credentials: &Credentials) {
    let certificate = &credentials.certificate;
    let revoked = credentials.revocation.as_ref().map(|revocation| revocation.revoked);
    info!(
        subject = certificate.subject,
        serial = certificate.serial,
        not_after = certificate.not_after,
        revoked,
        "certificates loaded"
    );
    if let Some(since) = credentials.revocation.as_ref().and_then(|revocation| revocation.outdated_since.as_ref()) {
        warn!(since, "a revocation list is out of date, and used all the same: replace it by a newer one");
    }
}

/// Says once that the agent's certificate is about to expire, and once that it has.
fn warn_of_expiry(credentials: &Credentials, told: Expiry) -> Expiry {
    let certificate = &credentials.certificate;
    let expiry = certificate.expiry(UnixTime::now());
    let (subject, not_after) = (&certificate.subject, &certificate.not_after);
    match expiry {
        Expiry::Near if told != expiry => warn!(subject, not_after, "the agent's certificate expires within 7 days"),
        Expiry::Past if told != expiry => {
            warn!(subject, not_after, "the agent's certificate has expired: callers will refuse it");
        }
        _ => {}
    }
    expiry
}

/// By which a change of the files is seen, links followed: also when a directory is swapped by a link to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamps(Vec<Option<[i128; 5]>>);

impl Stamps {
    fn of(files: &TlsFiles) -> Self {
        let paths = [&files.cert, &files.key, &files.client_ca].into_iter().chain(&files.client_crl);
        Self(paths.map(|path| stamp(path)).collect())
    }
}

/// The time of change is newer than any time of modification that `cp -p` or `tar` brings along.
fn stamp(path: &Path) -> Option<[i128; 5]> {
    let metadata = std::fs::metadata(path).ok()?;
    let (device, inode, size) = (metadata.dev().into(), metadata.ino().into(), metadata.size().into());
    Some([device, inode, size, metadata.ctime().into(), metadata.ctime_nsec().into()])
}
