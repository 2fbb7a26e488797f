//! What requests hold of the agent's memory, in bytes, counted for each identity and in all: from the moment that a message
//! begins to arrive until its call needs it no more, or the command that it started has ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use telexec_engine::{ExecutionObserver, MainProcess};
use telexec_executor::{Command, ExecutionId, ExecutorError, Exited, OutputStream, Program};
use tokio::sync::Notify;

use crate::identity::Identity;

/// What requests may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// All of them: `max_request_bytes_in_flight`.
    pub(crate) all: usize,
    /// Those of one identity: `max_request_bytes_in_flight_per_identity`.
    pub(crate) each: usize,
    /// Arguments, variables, labels and other fields of one: `max_request_fields`.
    pub(crate) fields: usize,
}

/// So small a request may take a quarter more than the limits: a signal gets through where input waits.
const SMALL: usize = 64 * 1024;

/// A flood: when it is over, the allocator is asked to give back what it keeps.
const FLOOD: usize = 16 * 1024 * 1024;
/// What a call costs beside its request, about, whose answer waits for its caller.
const CALL: usize = 64 * 1024;

/// The first request that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    setting: &'static str,
    limit: usize,
    /// It would, if there were no others.
    fits: bool,
}

impl From<Excess> for ExecutorError {
    fn from(Excess { setting, limit, fits }: Excess) -> Self {
        let reason = format!("requests would hold more than {limit} bytes of the agent's memory: {setting}");
        Self::Exhausted { reason, retry_after: fits.then_some(Duration::from_secs(1)) }
    }
}

/// The requests of all callers. Clones count together.
#[derive(Clone)]
pub(crate) struct RequestMemory(Arc<Shared>);

struct Shared {
    limits: Limits,
    all: AtomicUsize,
    /// What the allocator is asked for, about: for requests, and for each call.
    used: AtomicUsize,
    /// The most of that since the last flood was over.
    most: AtomicUsize,
    is_over: Notify,
    each: Mutex<HashMap<Identity, Weak<AtomicUsize>>>,
}

impl RequestMemory {
    pub(crate) fn new(limits: Limits) -> Self {
        let (all, used, most) = Default::default();
        Self(Arc::new(Shared { limits, all, used, most, is_over: Notify::new(), each: Mutex::default() }))
    }

    /// Those of one identity.
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

    /// Gives back to the system what the allocator keeps, after each flood. Never returns.
    pub(crate) async fn give_back(self) {
        loop {
            self.0.is_over.notified().await;
            // what was counted is dropped soon, and more of them may be on their way
            tokio::time::sleep(Duration::from_secs(1)).await;
            // it walks through all that is free, which takes its time; without a thread it is done after the next flood
            let _ = std::thread::Builder::new().name("memory".into()).spawn(telexec_engine::give_back_memory);
        }
    }
}

/// What one identity's requests hold. Clones count together.
#[derive(Clone)]
pub(crate) struct Account {
    shared: Arc<Shared>,
    own: Arc<AtomicUsize>,
}

impl Account {
    pub(crate) fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// A request that holds nothing yet.
    pub(crate) fn reservation(&self) -> Reservation {
        Reservation::new(self, 0)
    }

    /// # Errors
    /// So many are too many.
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
        self.shared.rise(more);
        Ok(())
    }

    fn subtract(&self, less: usize) {
        self.own.fetch_sub(less, Ordering::Relaxed);
        self.shared.all.fetch_sub(less, Ordering::Relaxed);
        self.shared.fall(less);
    }
}

impl Shared {
    fn rise(&self, more: usize) {
        let used = self.used.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        self.most.fetch_max(used, Ordering::Relaxed);
    }

    fn fall(&self, less: usize) {
        let left = self.used.fetch_sub(less, Ordering::Relaxed).saturating_sub(less);
        let most = self.most.load(Ordering::Relaxed);
        if most >= FLOOD && left < most / 4 {
            self.most.store(left, Ordering::Relaxed);
            self.is_over.notify_one();
        }
    }
}

fn take(counter: &AtomicUsize, more: usize, limit: usize) -> bool {
    let sum = |held: usize| held.checked_add(more).filter(|sum| *sum <= limit);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
}

/// What one request holds; nothing any more once it is dropped.
pub(crate) struct Reservation {
    account: Account,
    bytes: AtomicUsize,
}

impl Reservation {
    /// Its bytes are counted already.
    fn new(account: &Account, bytes: usize) -> Self {
        account.shared.rise(CALL);
        Self { account: account.clone(), bytes: AtomicUsize::new(bytes) }
    }

    /// Of a call that did not come over a connection.
    #[cfg(test)]
    pub(crate) fn uncounted() -> Self {
        let limits = Limits { all: usize::MAX, each: usize::MAX, fields: usize::MAX };
        RequestMemory::new(limits).of(&Identity::anonymous()).reservation()
    }

    /// From now on it holds so much.
    ///
    /// # Errors
    /// That is too much; it holds what it held.
    pub(crate) fn set(&self, bytes: usize) -> Result<(), Excess> {
        let before = self.bytes.load(Ordering::Relaxed);
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => self.account.add(more, bytes <= SMALL)?,
            None => self.account.subtract(before - bytes),
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// It holds nothing any more: what was asked for is done.
    pub(crate) fn release(&self) {
        self.account.subtract(self.bytes.swap(0, Ordering::Relaxed));
    }

    /// What it holds, held by something else from now on.
    pub(crate) fn take(&self) -> Self {
        Self::new(&self.account, self.bytes.swap(0, Ordering::Relaxed))
    }

    /// It holds so much more: what it is answered with.
    ///
    /// # Errors
    /// That is too much; it holds what it held.
    pub(crate) fn add(&self, bytes: usize) -> Result<(), Excess> {
        self.set(self.bytes.load(Ordering::Relaxed).saturating_add(bytes))
    }
}

/// Held until the command has ended, or longer by others; once it has started, no more than what is kept of it. Passes on what
/// it sees.
pub(crate) fn watch(
    reservation: Arc<Reservation>,
    kept: usize,
    others: Option<(ExecutionId, Box<dyn ExecutionObserver>)>,
) -> (ExecutionId, Box<dyn ExecutionObserver>) {
    let (id, next) = others.unzip();
    (id.unwrap_or_else(ExecutionId::generate), Box::new(UntilEnd { kept, reservation, next }))
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
        self.account.shared.fall(CALL);
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reservation").field(&self.bytes).finish()
    }
}

/// What the engine keeps of a request while its command runs.
pub(crate) fn kept(command: &Command) -> usize {
    let program = match command.program() {
        Program::Shell { text, .. } => text.len(),
        Program::Argv(argv) => argv.iter().map(|argument| argument.len() + size_of::<String>()).sum(),
    };
    let labels: usize = command.labels().iter().map(|(key, value)| key.len() + value.len() + 64).sum();
    program + labels + command.stdin().len()
}

/// Sees a command to its end.
struct UntilEnd {
    kept: usize,
    reservation: Arc<Reservation>,
    next: Option<Box<dyn ExecutionObserver>>,
}

impl ExecutionObserver for UntilEnd {
    fn started(&self, main: &MainProcess) {
        // never more than the whole request
        let _ = self.reservation.set(self.kept.min(self.reservation.bytes.load(Ordering::Relaxed)));
        self.next.iter().for_each(|next| next.started(main));
    }

    fn output(&self, stream: OutputStream, data: &[u8]) {
        self.next.iter().for_each(|next| next.output(stream, data));
    }

    fn ended(self: Box<Self>, exited: &Exited) {
        self.next.into_iter().for_each(|next| next.ended(exited));
    }

    fn not_started(self: Box<Self>, error: &ExecutorError) {
        self.next.into_iter().for_each(|next| next.not_started(error));
    }

    fn repeated(self: Box<Self>) {
        self.next.into_iter().for_each(|next| next.repeated());
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
        // a small one has its place all the same, but not any number of them
        let small: Vec<_> =
            (0..100).map(|_| one.reservation()).take_while(|reservation| reservation.set(SMALL).is_ok()).collect();
        assert_eq!(small.len(), 500_000 / SMALL);
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
