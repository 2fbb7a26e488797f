//! Connections that were accepted and wait to be taken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use telexec_executor::ExecutionId;
use tokio::sync::OwnedSemaphorePermit;

use super::limiter::ForwardPermit;
use super::socket::Socket;
use crate::identity::Identity;
use crate::policy::PortUse;

/// Clones share them.
#[derive(Clone, Default)]
pub(super) struct AcceptedConnections(Arc<Mutex<HashMap<(Identity, String), AcceptedConnection>>>);

/// One of them.
pub(super) struct AcceptedConnection {
    pub(super) socket: Socket,
    /// That of the Listen.
    pub(super) used: PortUse,
    pub(super) permit: ForwardPermit,
    /// Of its listener.
    pub(super) _place: OwnedSemaphorePermit,
}

impl AcceptedConnections {
    /// Returns its id.
    pub(super) fn add(&self, identity: &Identity, connection: AcceptedConnection) -> String {
        let id = ExecutionId::generate().to_string();
        self.all().insert((identity.clone(), id.clone()), connection);
        id
    }

    /// `None`: there is none of this caller.
    pub(super) fn take(&self, identity: &Identity, id: &str) -> Option<AcceptedConnection> {
        self.all().remove(&(identity.clone(), id.to_owned()))
    }

    fn all(&self) -> MutexGuard<'_, HashMap<(Identity, String), AcceptedConnection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
