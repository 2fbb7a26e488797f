//! What ties an execution to the calls that follow it.

use std::sync::Arc;

use telexec_executor::OnDisconnect;

use crate::registry::Record;

/// A call that follows an execution. Dropping it is the call's end.
pub(crate) struct Binding {
    record: Arc<Record>,
    kind: Kind,
}

enum Kind {
    /// It has started the execution, which waits for it to read.
    Owner(OnDisconnect),
    /// It has asked for the same.
    Repeat(OnDisconnect),
    /// It came later.
    Follower(OnDisconnect),
}

impl Binding {
    pub(crate) fn owner(record: &Arc<Record>, on_disconnect: OnDisconnect) -> Self {
        Self::new(record, Kind::Owner(on_disconnect))
    }

    pub(crate) fn repeat(record: &Arc<Record>, on_disconnect: OnDisconnect) -> Self {
        Self::new(record, Kind::Repeat(on_disconnect))
    }

    pub(crate) fn follower(record: &Arc<Record>, on_disconnect: OnDisconnect) -> Self {
        Self::new(record, Kind::Follower(on_disconnect))
    }

    fn new(record: &Arc<Record>, kind: Kind) -> Self {
        if matches!(kind, Kind::Owner(OnDisconnect::Kill) | Kind::Repeat(OnDisconnect::Kill)) {
            record.bind();
        }
        Self { record: Arc::clone(record), kind }
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        if matches!(self.kind, Kind::Owner(_)) {
            self.record.transcript.leave();
        }
        match self.kind {
            Kind::Owner(OnDisconnect::Kill) | Kind::Repeat(OnDisconnect::Kill) => self.record.unbind(),
            // after the end that changes nothing
            Kind::Follower(OnDisconnect::Kill) => self.record.cancel.cancel(),
            Kind::Owner(OnDisconnect::Detach)
            | Kind::Repeat(OnDisconnect::Detach)
            | Kind::Follower(OnDisconnect::Detach) => {}
        }
    }
}
