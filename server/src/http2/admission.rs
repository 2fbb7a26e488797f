//! The place of a connection among those that are open: it is pending until it is known whose it is.

use std::sync::{Arc, Mutex};

use crate::identity::Identity;
use crate::listen::connection_limiter::ConnectionPermit;
use crate::lock::lock;

/// Calls without a valid token on a connection that is nobody's yet. Each costs the time of a signature.
const MAX_REFUSED_CALLS: u32 = 8;

/// `None`: too many connections.
pub(crate) type AcquirePermit = Box<dyn FnOnce(&Identity) -> Option<ConnectionPermit> + Send>;

/// The admission of one connection; clones share it.
#[derive(Clone)]
pub(crate) struct Admission(Arc<Mutex<State>>);

enum State {
    /// Nobody's yet, with the number of calls that were refused.
    Pending(AcquirePermit, u32),
    Open {
        _permit: ConnectionPermit,
    },
    /// Too many connections, too many refused calls, or the connection is gone.
    Closed,
}

/// Whether a connection may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    Yes,
    NotYet,
    No,
}

impl Admission {
    pub(crate) fn new(acquire_permit: AcquirePermit) -> Self {
        Self(Arc::new(Mutex::new(State::Pending(acquire_permit, 0))))
    }

    /// Takes its place as a connection of this identity, unless it has one.
    pub(super) fn admit(&self, identity: &Identity) -> Admitted {
        let mut state = lock(&self.0);
        *state = match std::mem::replace(&mut *state, State::Closed) {
            State::Pending(acquire_permit, _) => {
                acquire_permit(identity).map_or(State::Closed, |permit| State::Open { _permit: permit })
            }
            settled => settled,
        };
        state.admitted()
    }

    /// Counts a call that was refused.
    pub(super) fn refuse_call(&self) {
        let mut state = lock(&self.0);
        if let State::Pending(_, refused) = &mut *state {
            *refused += 1;
            if *refused >= MAX_REFUSED_CALLS {
                *state = State::Closed;
            }
        }
    }

    pub(super) fn state(&self) -> Admitted {
        lock(&self.0).admitted()
    }

    /// Gives its place up.
    pub(super) fn close(&self) {
        *lock(&self.0) = State::Closed;
    }
}

impl State {
    fn admitted(&self) -> Admitted {
        match self {
            Self::Pending(..) => Admitted::NotYet,
            Self::Open { .. } => Admitted::Yes,
            Self::Closed => Admitted::No,
        }
    }
}
