//! What ties an execution to the calls that follow it.

use std::sync::Arc;
use std::time::Duration;

use telexec_executor::OnDisconnect;

use crate::grant::ConnectionState;
use crate::registry::{Place, Record};

/// A call that follows an execution. Dropping it is the call's end.
pub(crate) struct Binding {
    record: Arc<Record>,
    ends: Ends,
    connection: ConnectionState,
    /// Which owner of the transcript the call is, for which the execution waits to read; `None`: it is none.
    owner: Option<u64>,
    /// It takes the owner's place once that is free.
    is_heir: bool,
    /// How many calls there had been when it was bound.
    all: u64,
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
    /// As a follower, but it would have taken the starter's place, and ends nothing in the background.
    Heir,
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
        let all = if ends.is_counted() { record.bind(owner.map(|_| &connection)) } else { 0 };
        Self { record: Arc::clone(record), ends, connection, owner, is_heir: false, all }
    }

    /// If the execution waits for its caller after a lost connection, this call takes the place of the one that had it, as if
    /// it had started it; returns which owner of the transcript it is then. While that one's connection is live, it becomes
    /// its heir.
    pub(crate) fn take_over(&mut self, position: Option<u64>) -> Option<u64> {
        let Ends::Execution(whose, grace) = &mut self.ends else { return None };
        if grace.is_zero() {
            return None;
        }
        match self.record.take_over(position, &self.connection, self.is_heir) {
            Place::Taken(owner) => (*whose, self.owner, self.is_heir) = (Whose::Starter, Some(owner), false),
            Place::Occupied => {
                if *whose == Whose::Follower {
                    *whose = Whose::Heir;
                }
                self.is_heir = true;
            }
            Place::None => self.is_heir = false,
        }
        self.owner
    }

    /// Returns when this call may [take over](Self::take_over); never, if it is no heir.
    pub(crate) async fn vacated(&self) {
        match self.is_heir {
            true => self.record.vacated().await,
            false => std::future::pending().await,
        }
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
        if self.is_heir {
            // nobody else is there for what the owner has left
            self.take_over(None);
        }
        if self.is_heir {
            self.record.resign();
        }
        match self.ends {
            Ends::Execution(whose, grace) if !grace.is_zero() && self.connection.is_lost() => {
                // who comes later has asked for the end of a command that may be in the background already
                let also_in_background = whose == Whose::Follower;
                return self.record.unbind_after(
                    self.owner,
                    (whose == Whose::Heir).then_some(self.all),
                    grace,
                    also_in_background,
                    self.connection.refused(),
                );
            }
            Ends::Execution(whose, _) => {
                if self.ends.is_counted() {
                    self.record.unbind(self.owner);
                }
                // after the end that changes nothing
                if whose == Whose::Follower || (whose == Whose::Heir && !self.record.is_released()) {
                    self.record.cancel.cancel();
                }
            }
            Ends::Nothing => {}
        }
        if let Some(owner) = self.owner {
            self.record.leave(owner);
        }
    }
}
