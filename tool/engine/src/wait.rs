//! Waiting: before trying again, and until a moment.

use std::io;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Before a scan that failed, or a process that did not end, is tried again.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The machine is out of descriptors or memory: trying again helps.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    let numbers = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR, libc::EAGAIN];
    error.raw_os_error().is_some_and(|number| numbers.contains(&number))
}

/// Sleeps until this moment; forever, if there is none.
pub(crate) async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits for what `check` finds, which is called again after each notification.
pub(crate) async fn when<T>(news: &Notify, check: impl Fn() -> Option<T>) -> T {
    loop {
        let next = news.notified();
        tokio::pin!(next);
        // from here on nothing is missed
        next.as_mut().enable();
        if let Some(found) = check() {
            return found;
        }
        next.await;
    }
}
