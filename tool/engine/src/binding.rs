//! What ties an execution to the calls that follow it.

use std::sync::Arc;
use std::time::Duration;

use telexec_executor::OnDisconnect;

use crate::grant::ConnectionState;
use crate::registry::Record;

/// A call that follows an execution. Dropping it is the call's end.
pub(crate) struct Binding {
    record: Arc<Record>,
    ends: Ends,
    connection: ConnectionState,
    /// Which owner of the transcript the call is, for which the execution waits to read; `None`: it is none.
    owner: Option<u64>,
}

/// What the end of a call does to the execution.
#[derive(Clone, Copy)]
enum Ends {
    Nothing,
    /// It ends it.
    Execution(Whose, Duration),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The call asked for its start: it ends it unless another such call is left.
    Starter,
    /// It came later: it ends it whoever else follows it, unless it has lost its connection and waits for the grace.
    Follower,
}

impl Binding {
    /// For the call that has started the execution.
    pub(crate) fn owner(
        record: &Arc<Record>,
        on_disconnect: OnDisconnect,
        grace: Duration,
        connection: ConnectionState,
    ) -> Self {
        Self::new(record, Ends::of(Whose::Starter, on_disconnect, grace), connection, Some(0))
    }

    /// For a call that has asked for the same.
    pub(crate) fn repeat(
        record: &Arc<Record>,
        on_disconnect: OnDisconnect,
        grace: Duration,
        connection: ConnectionState,
    ) -> Self {
        Self::new(record, Ends::of(Whose::Starter, on_disconnect, grace), connection, None)
    }

    /// For a call that has come later.
    pub(crate) fn follower(
        record: &Arc<Record>,
        on_disconnect: OnDisconnect,
        grace: Duration,
        connection: ConnectionState,
    ) -> Self {
        Self::new(record, Ends::of(Whose::Follower, on_disconnect, grace), connection, None)
    }

    fn new(record: &Arc<Record>, ends: Ends, connection: ConnectionState, owner: Option<u64>) -> Self {
        if ends.is_counted() {
            record.bind(owner.is_some());
        }
        Self { record: Arc::clone(record), ends, connection, owner }
    }

    /// If it waits for its caller after a lost connection, this call takes the place of the one that had it, as if it had
    /// started it; returns which owner of the transcript it is then.
    pub(crate) fn take_over(&mut self, position: u64) -> Option<u64> {
        if let Ends::Execution(whose, grace) = &mut self.ends
            && !grace.is_zero()
            && let Some(owner) = self.record.take_over(position)
        {
            *whose = Whose::Starter;
            self.owner = Some(owner);
        }
        self.owner
    }
}

impl Ends {
    fn of(whose: Whose, on_disconnect: OnDisconnect, grace: Duration) -> Self {
        match on_disconnect {
            OnDisconnect::Kill => Self::Execution(whose, grace),
            OnDisconnect::Detach => Self::Nothing,
        }
    }

    /// Without a grace, a follower keeps nothing from ending.
    fn is_counted(self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Execution(whose, grace) => whose == Whose::Starter || !grace.is_zero(),
        }
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        match self.ends {
            Ends::Execution(whose, grace) if !grace.is_zero() && self.connection.is_lost() => {
                // who comes later has asked for the end of a command that may be in the background already
                let also_in_background = whose == Whose::Follower;
                return self.record.unbind_after(self.owner, grace, also_in_background, self.connection.refused());
            }
            Ends::Execution(whose, _) => {
                if self.ends.is_counted() {
                    self.record.unbind(self.owner);
                }
                // after the end that changes nothing
                if whose == Whose::Follower {
                    self.record.cancel.cancel();
                }
            }
            Ends::Nothing => {}
        }
        if let Some(owner) = self.owner {
            self.record.transcript.leave(owner);
        }
    }
}
