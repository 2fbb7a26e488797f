//! The place of a connection among those that are open: it is pending until it is known whose it is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::identity::Identity;
use crate::listen::connection_limiter::ConnectionPermit;
use crate::lock::lock;

/// Tokens that are verified on a connection that is nobody's yet.
const MAX_ATTEMPTS: u32 = 8;
/// From the handshake to a call that says whose connection it is.
const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// After a connection that is nobody's has sent as much as is read of it, without a call that is being verified.
const STARVED_TIMEOUT: Duration = Duration::from_secs(1);

/// `None`: too many connections.
pub(crate) type AcquirePermit = Box<dyn FnOnce(&Identity) -> Option<ConnectionPermit> + Send>;

/// The admission of one connection; clones share it.
#[derive(Clone)]
pub(crate) struct Admission {
    state: Arc<Mutex<State>>,
    /// Cancelled once it is not pending any more.
    settled: CancellationToken,
    /// Cancelled once nothing more is read of it while it is pending.
    full: CancellationToken,
    /// Calls that are being verified.
    verifying: Arc<AtomicUsize>,
}

/// A call that is being verified.
pub(super) struct Verifying(Arc<AtomicUsize>);

impl Drop for Verifying {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

enum State {
    Pending(Pending),
    Open {
        _permit: ConnectionPermit,
    },
    /// Too many connections, too many attempts, or the connection is gone.
    Closed,
}

/// Nobody's yet.
struct Pending {
    acquire_permit: AcquirePermit,
    attempts: u32,
    /// Who waits for the outcome.
    waker: Option<Waker>,
}

/// Why a connection that is nobody's is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Others take its place.
    Displaced,
    /// No call has said in time whose it is.
    Silent,
    /// Too many attempts, or too many connections.
    Exhausted,
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
        let pending = Pending { acquire_permit, attempts: 0, waker: None };
        let (state, verifying) = (Arc::new(Mutex::new(State::Pending(pending))), Arc::default());
        Self { state, settled: CancellationToken::new(), full: CancellationToken::new(), verifying }
    }

    /// Takes its place as a connection of this identity, unless it has one.
    pub(super) fn admit(&self, identity: &Identity) -> Admitted {
        self.settle(|pending| {
            let permit = (pending.acquire_permit)(identity);
            permit.map_or(State::Closed, |permit| State::Open { _permit: permit })
        })
    }

    /// Counts an attempt to say whose it is. With too many it is closed.
    pub(super) fn attempt(&self) -> Admitted {
        self.settle(|pending| match pending.attempts {
            MAX_ATTEMPTS.. => State::Closed,
            attempts => State::Pending(Pending { attempts: attempts + 1, ..pending }),
        })
    }

    /// Gives its place up.
    pub(super) fn close(&self) {
        *lock(&self.state) = State::Closed;
        self.settled.cancel();
    }

    pub(super) fn state(&self) -> Admitted {
        lock(&self.state).admitted()
    }

    /// A call is being verified, until this is dropped.
    pub(super) fn verifying(&self) -> Verifying {
        self.verifying.fetch_add(1, Ordering::Relaxed);
        Verifying(Arc::clone(&self.verifying))
    }

    /// Nothing more is read of it while it is pending.
    pub(super) fn fill(&self) {
        self.full.cancel();
    }

    /// The same; when it changes, the task is woken.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Admitted {
        let mut state = lock(&self.state);
        if let State::Pending(pending) = &mut *state {
            pending.waker = Some(cx.waker().clone());
        }
        state.admitted()
    }

    /// Why it is to be closed; never returns once it has a place.
    pub(super) async fn refused(&self, displaced: &CancellationToken) -> Refused {
        tokio::select! {
            biased;
            () = self.settled.cancelled() => match self.state() {
                Admitted::No => Refused::Exhausted,
                Admitted::Yes | Admitted::NotYet => std::future::pending().await,
            },
            () = displaced.cancelled() => Refused::Displaced,
            () = self.starved() => Refused::Exhausted,
            () = tokio::time::sleep(FIRST_CALL_TIMEOUT) => Refused::Silent,
        }
    }

    /// Returns when no call can come any more that says whose it is.
    async fn starved(&self) {
        self.full.cancelled().await;
        loop {
            tokio::time::sleep(STARVED_TIMEOUT).await;
            if self.verifying.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }

    /// What becomes of it, if it is pending.
    fn settle(&self, settle: impl FnOnce(Pending) -> State) -> Admitted {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Closed) {
            State::Pending(mut pending) => {
                let waker = pending.waker.take();
                *state = settle(pending);
                if state.admitted() != Admitted::NotYet {
                    self.settled.cancel();
                    waker.into_iter().for_each(Waker::wake);
                } else if let State::Pending(pending) = &mut *state {
                    pending.waker = waker;
                }
            }
            settled => *state = settled,
        }
        state.admitted()
    }
}

impl State {
    fn admitted(&self) -> Admitted {
        match self {
            Self::Pending(_) => Admitted::NotYet,
            Self::Open { .. } => Admitted::Yes,
            Self::Closed => Admitted::No,
        }
    }
}
