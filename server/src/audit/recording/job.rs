//! What the thread that writes is asked to do.

use std::sync::Arc;
use std::time::Duration;

use telexec_executor::TerminalSize;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::cast::{About, Event};
use super::directory::Entries;
use super::file::Recorded;
use super::shared::Shared;

/// A job for the thread.
pub(super) enum Job {
    Create(Box<Create>),
    /// What there was when the agent started.
    Found(Entries),
    /// Continue what an earlier agent has begun.
    Resume(Arc<Shared>, Box<About>),
    /// Remove what is too old: all that is in use is known.
    Clean,
    /// What happened this long after the start.
    Event(u64, Duration, Event),
    Finish(Finish),
    /// Remove the file: nothing ran.
    Discard(u64),
    /// Write everything, then reply.
    Close(oneshot::Sender<()>),
}

/// A recording to be created.
pub(super) struct Create {
    pub(super) shared: Arc<Shared>,
    pub(super) about: About,
    pub(super) size: Option<TerminalSize>,
    /// In seconds since 1970.
    pub(super) timestamp: u64,
    pub(super) reply: oneshot::Sender<Result<(), String>>,
    /// A slot in the queue.
    pub(super) slot: OwnedSemaphorePermit,
}

/// Close the file of a recording, which has ended this long after its start, and give its totals to `then`.
pub(super) struct Finish {
    pub(super) number: u64,
    pub(super) at: Duration,
    pub(super) then: Box<dyn FnOnce(Recorded) + Send>,
}
