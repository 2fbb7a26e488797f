//! Whether a keeper responds: one that is stopped, or whose cgroup is frozen, takes no requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tokio::sync::watch;
use tracing::{error, info};

use crate::wait::RETRY_DELAY;

/// Between two looks, and how many in a row find requests that it has not read.
const LOOK_DELAY: Duration = Duration::from_secs(1);
const LOOKS: u32 = 3;

#[derive(Debug)]
pub(crate) struct Responding {
    /// What it has reported so far.
    reports: AtomicU64,
    responds: watch::Sender<bool>,
}

impl Responding {
    pub(crate) fn new() -> Self {
        Self { reports: AtomicU64::new(0), responds: watch::Sender::new(true) }
    }

    /// It has reported something.
    pub(crate) fn reported(&self) {
        self.reports.fetch_add(1, Ordering::AcqRel);
        let resumed = self.responds.send_if_modified(|responds| !std::mem::replace(responds, true));
        if resumed {
            info!("the keeper responds again");
        }
    }

    /// How much it has reported.
    pub(crate) fn reports(&self) -> u64 {
        self.reports.load(Ordering::Acquire)
    }

    /// Whether it does, as far as is known.
    pub(crate) fn responds(&self) -> bool {
        *self.responds.borrow()
    }

    /// The same, and each change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<bool> {
        self.responds.subscribe()
    }

    /// Returns when it does not: it has reported nothing since there were so many reports, and does not read what it is asked.
    pub(crate) async fn lost(&self, mut reports: u64, has_unread: impl Fn() -> bool) {
        let mut looks = 0;
        while looks < LOOKS {
            tokio::time::sleep(LOOK_DELAY).await;
            let now = self.reports();
            let is_silent = std::mem::replace(&mut reports, now) == now && has_unread();
            looks = if is_silent { looks + 1 } else { 0 };
        }
        // unless it has reported something in the meantime
        let is_lost = |responds: &mut bool| self.reports() == reports && std::mem::replace(responds, false);
        if self.responds.send_if_modified(is_lost) {
            error!("the keeper does not respond: nothing can be started; is it stopped, or its cgroup frozen?");
        }
    }
}

/// By a signal or a debugger. See proc_pid_stat(5).
pub(super) fn is_stopped(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// For how long a keeper must not respond that is about to be asked to hand over.
const STUCK_TIME: Duration = Duration::from_secs(1);

/// Whether this holds for so long. Blocks.
pub(super) fn stays(is_stuck: impl Fn() -> bool) -> bool {
    let until = Instant::now() + STUCK_TIME;
    while is_stuck() {
        if Instant::now() >= until {
            return true;
        }
        std::thread::sleep(RETRY_DELAY);
    }
    false
}
