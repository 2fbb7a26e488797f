//! Limits the memory of requests, in bytes, per identity and in all: from the beginning of a message until its call no longer
//! needs it, or the command that it started has ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use telexec_engine::{ExecutionObserver, HELD_MEMORY, MainProcess};
use telexec_executor::{Command, ExecutorError, Program};

use crate::identity::Identity;

/// Limits on requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// In all: `max_request_bytes_in_flight`.
    pub(crate) all: usize,
    /// Per identity: `max_request_bytes_in_flight_per_identity`.
    pub(crate) each: usize,
    /// Arguments, variables, labels and other fields per request: `max_request_fields`.
    pub(crate) fields: usize,
}

/// Requests up to this size may exceed the limits by a quarter, so that a signal gets through while input is queued.
const SMALL_REQUEST_BYTES: usize = 64 * 1024;

/// The approximate cost of a call beside its request, while its response waits for the caller.
const BYTES_PER_CALL: usize = 64 * 1024;

/// A limit that was exceeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    setting: &'static str,
    limit: usize,
    /// Whether it would fit if there were no other requests.
    fits: bool,
}

impl From<Excess> for ExecutorError {
    fn from(Excess { setting, limit, fits }: Excess) -> Self {
        let reason = format!("requests would hold more than {limit} bytes of the agent's memory: {setting}");
        Self::Exhausted { reason, retry_after: fits.then_some(Duration::from_secs(1)) }
    }
}

/// The memory of all requests; clones share the counts.
#[derive(Clone)]
pub(crate) struct RequestMemory(Arc<Shared>);

struct Shared {
    limits: Limits,
    all: AtomicUsize,
    each: Mutex<HashMap<Identity, Weak<AtomicUsize>>>,
}

impl RequestMemory {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Shared { limits, all: AtomicUsize::new(0), each: Mutex::default() }))
    }

    /// The account of one identity.
    pub(crate) fn of(&self, identity: &Identity) -> Account {
        let mut each = self.0.each.lock().unwrap_or_else(PoisonError::into_inner);
        let known = each.get(identity).and_then(Weak::upgrade);
        let own = known.unwrap_or_else(|| {
            each.retain(|_, own| own.strong_count() > 0);
            let own = Arc::default();
            each.insert(identity.clone(), Arc::downgrade(&own));
            own
        });
        Account { shared: Arc::clone(&self.0), own }
    }
}

/// The memory of one identity's requests; clones share the count.
#[derive(Clone)]
pub(crate) struct Account {
    shared: Arc<Shared>,
    own: Arc<AtomicUsize>,
}

impl Account {
    pub(crate) fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// A reservation of nothing yet, for one request.
    pub(crate) fn reservation(&self) -> Reservation {
        Reservation::new(self, 0)
    }

    /// # Errors
    /// A limit would be exceeded.
    fn add(&self, more: usize, is_small: bool) -> Result<(), Excess> {
        let Limits { all, each, .. } = self.shared.limits;
        let room = |limit: usize| if is_small { limit.saturating_add(limit / 4) } else { limit };
        if !take(&self.own, more, room(each)) {
            return Err(Excess {
                setting: "max_request_bytes_in_flight_per_identity",
                limit: each,
                fits: more <= each,
            });
        }
        if !take(&self.shared.all, more, room(all)) {
            self.own.fetch_sub(more, Ordering::Relaxed);
            return Err(Excess { setting: "max_request_bytes_in_flight", limit: all, fits: more <= all });
        }
        HELD_MEMORY.rise(more);
        Ok(())
    }

    fn subtract(&self, less: usize) {
        self.own.fetch_sub(less, Ordering::Relaxed);
        self.shared.all.fetch_sub(less, Ordering::Relaxed);
        HELD_MEMORY.fall(less);
    }
}

fn take(counter: &AtomicUsize, more: usize, limit: usize) -> bool {
    let sum = |held: usize| held.checked_add(more).filter(|sum| *sum <= limit);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
}

/// The memory of one request, released when dropped.
pub(crate) struct Reservation {
    account: Account,
    bytes: AtomicUsize,
}

impl Reservation {
    /// For bytes that are counted already.
    fn new(account: &Account, bytes: usize) -> Self {
        HELD_MEMORY.rise(BYTES_PER_CALL);
        Self { account: account.clone(), bytes: AtomicUsize::new(bytes) }
    }

    /// For calls without a connection, in tests.
    #[cfg(test)]
    pub(crate) fn uncounted() -> Self {
        let limits = Limits { all: usize::MAX, each: usize::MAX, fields: usize::MAX };
        RequestMemory::new(limits).of(&Identity::anonymous()).reservation()
    }

    /// Changes its size.
    ///
    /// # Errors
    /// A limit would be exceeded; its size is unchanged.
    pub(crate) fn set(&self, bytes: usize) -> Result<(), Excess> {
        let before = self.bytes.load(Ordering::Relaxed);
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => self.account.add(more, bytes <= SMALL_REQUEST_BYTES)?,
            None => self.account.subtract(before - bytes),
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Releases all of it: the request was carried out.
    pub(crate) fn release(&self) {
        self.account.subtract(self.bytes.swap(0, Ordering::Relaxed));
    }

    /// Moves its bytes to a new reservation.
    pub(crate) fn take(&self) -> Self {
        Self::new(&self.account, self.bytes.swap(0, Ordering::Relaxed))
    }

    /// Adds to it, for the response.
    ///
    /// # Errors
    /// A limit would be exceeded; its size is unchanged.
    pub(crate) fn add(&self, bytes: usize) -> Result<(), Excess> {
        self.set(self.bytes.load(Ordering::Relaxed).saturating_add(bytes))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
        HELD_MEMORY.fall(BYTES_PER_CALL);
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reservation").field(&self.bytes).finish()
    }
}

/// The bytes that the engine keeps of a request while its command runs.
pub(crate) fn kept(command: &Command) -> usize {
    let program = match command.program() {
        Program::Shell { text, .. } => text.len(),
        Program::Argv(argv) => argv.iter().map(|argument| argument.len() + size_of::<String>()).sum(),
    };
    let labels: usize = command.labels().iter().map(|(key, value)| key.len() + value.len() + 64).sum();
    program + labels + command.stdin().len()
}

/// Keeps a reservation until its command has ended, and shrinks it to what is kept once the command has started.
pub(crate) struct ReservationHolder {
    pub(crate) reservation: Arc<Reservation>,
    /// In bytes.
    pub(crate) kept: usize,
}

impl ExecutionObserver for ReservationHolder {
    fn started(&self, _: &MainProcess) {
        // never more than the whole request, also of a named command that runs more than was asked with
        let _ = self.reservation.set(self.kept.min(self.reservation.bytes.load(Ordering::Relaxed)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { all: 4_000_000, each: 2_000_000, fields: 10 };

    fn memory() -> (RequestMemory, Account, Account) {
        let memory = RequestMemory::new(LIMITS);
        let (one, other) = (memory.of(&Identity::anonymous()), memory.of(&Identity::from_cid(3)));
        (memory, one, other)
    }

    #[test]
    fn what_is_held_is_bounded_for_each_identity_and_in_all() {
        let (memory, one, other) = memory();
        let reservation = one.reservation();
        reservation.set(2_000_000).unwrap();
        let more = memory.of(&Identity::anonymous()).reservation();
        assert_eq!(more.set(100_000).unwrap_err().setting, "max_request_bytes_in_flight_per_identity");
        // small ones still fit, but not any number of them
        let small: Vec<_> = (0..100)
            .map(|_| one.reservation())
            .take_while(|reservation| reservation.set(SMALL_REQUEST_BYTES).is_ok())
            .collect();
        assert_eq!(small.len(), 500_000 / SMALL_REQUEST_BYTES);
        let others = other.reservation();
        others.set(1_500_000).unwrap();
        assert_eq!(others.set(2_000_000).unwrap_err().setting, "max_request_bytes_in_flight");
        drop(small);
        others.set(2_000_000).unwrap();
        drop((reservation, others));
        assert_eq!((one.own.load(Ordering::Relaxed), memory.0.all.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn what_is_taken_is_held_once() {
        let (memory, one, _) = memory();
        let reservation = one.reservation();
        reservation.set(1000).unwrap();
        let taken = reservation.take();
        drop(reservation);
        assert_eq!(memory.0.all.load(Ordering::Relaxed), 1000);
        taken.set(10).unwrap();
        assert_eq!(memory.0.all.load(Ordering::Relaxed), 10);
        drop(taken);
        assert_eq!(memory.0.all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn identities_that_are_gone_are_forgotten() {
        let memory = RequestMemory::new(LIMITS);
        (0..100).for_each(|cid| drop(memory.of(&Identity::from_cid(cid))));
        assert!(memory.0.each.lock().unwrap().len() <= 1);
    }
}
