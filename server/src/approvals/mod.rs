//! Starts that another identity has to approve: what is asked for, and what was approved and not used yet.
//!
//! `start` is what is approved, `service` the RPCs.

pub(crate) mod service;
pub(crate) mod start;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::rand;
use rustix::time::{ClockId, clock_gettime};
use telexec_executor::{ExecutionId, ExecutorError};

use self::start::Start;
use crate::digest::hex;
use crate::identity::Identity;
use crate::policy::RequiredApproval;

/// A request that nobody approves or rejects is dropped after this.
const PENDING_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// Approvals of one identity, and of all.
const MAX_EACH: usize = 16;
const MAX_ALL: usize = 1024;
/// As short as can be typed, and long enough not to be met by chance.
const ID_BYTES: usize = 5;

/// The approvals of this agent, in memory; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Approvals(Arc<Mutex<Vec<Entry>>>);

struct Entry {
    approval: Arc<Approval>,
    /// On the clock that counts while the machine sleeps, too.
    expires_at: Duration,
    /// Of it once it is approved.
    lifetime: Duration,
}

/// A request for an approval.
#[derive(Clone)]
pub(crate) struct Approval {
    pub(crate) id: String,
    /// Who has asked.
    pub(crate) identity: Identity,
    pub(crate) start: Arc<Start>,
    /// The rules that ask for it.
    pub(crate) rules: BTreeSet<String>,
    pub(crate) created: SystemTime,
    /// When it is dropped, if the clock is not set until then.
    pub(crate) expires: SystemTime,
    pub(crate) state: State,
}

#[derive(Clone)]
pub(crate) enum State {
    Pending,
    Approved(Review),
    Rejected(Review),
    /// It was approved, and used for this execution.
    Used(Review, ExecutionId),
}

/// Who has approved or rejected it.
#[derive(Clone)]
pub(crate) struct Review {
    pub(crate) reviewer: Identity,
    pub(crate) reason: String,
    pub(crate) time: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Approve,
    Reject,
}

impl Approvals {
    /// What has become of the request for the approval of this start; if there is none yet, it is made. `is_known`: whether
    /// this identity has an execution of this id already.
    ///
    /// # Errors
    /// Why it cannot be made, in words for the caller.
    pub(crate) fn ask(
        &self,
        identity: &Identity,
        start: Start,
        required: &RequiredApproval,
        is_known: impl Fn(&ExecutionId) -> bool,
    ) -> Result<Arc<Approval>, String> {
        let mut entries = self.entries();
        let is_same = |approval: &Approval| {
            let is_open = match &approval.state {
                State::Pending | State::Approved(_) | State::Rejected(_) => true,
                // a repeat of that start
                State::Used(_, id) => start.execution_id.as_ref() == Some(id) && is_known(id),
            };
            is_open
                && approval.identity == *identity
                && approval.rules == required.rules
                && approval.start.is_same(&start)
        };
        if let Some(entry) = entries.iter_mut().find(|entry| is_same(&entry.approval)) {
            entry.shorten(required.lifetime);
            return Ok(Arc::clone(&entry.approval));
        }
        make_room(&mut entries, identity)?;
        let entry = Entry::new(identity, start, required, new_id(&entries)?);
        let approval = Arc::clone(&entry.approval);
        entries.push(entry);
        Ok(approval)
    }

    /// Uses an approval for the start of this execution.
    ///
    /// # Errors
    /// [`ExecutorError::Denied`]: it was used for another one, was rejected, or has expired.
    pub(crate) fn take(&self, approval_id: &str, execution_id: &ExecutionId) -> Result<(), ExecutorError> {
        let mut entries = self.entries();
        let entry = entries.iter_mut().find(|entry| entry.approval.id == approval_id);
        let taken = entry.and_then(|entry| match &entry.approval.state {
            State::Approved(review) => {
                entry.set(State::Used(review.clone(), execution_id.clone()));
                Some(())
            }
            State::Used(_, id) => (id == execution_id).then_some(()),
            State::Pending | State::Rejected(_) => None,
        });
        taken.ok_or_else(|| {
            ExecutorError::denied(format!("approval {approval_id} has just been used, or has expired: try again"))
        })
    }

    /// Nothing has started: the approval can be used again.
    pub(crate) fn give_back(&self, approval_id: &str, execution_id: &ExecutionId) {
        let mut entries = self.entries();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.approval.id == approval_id)
            && let State::Used(review, id) = &entry.approval.state
            && id == execution_id
        {
            entry.set(State::Approved(review.clone()));
        }
    }

    /// Approves or rejects a request.
    ///
    /// # Errors
    /// [`ExecutorError::NoApproval`]; [`ExecutorError::FailedPrecondition`]: that was done before.
    pub(crate) fn review(&self, id: &str, verdict: Verdict, review: Review) -> Result<Arc<Approval>, ExecutorError> {
        let mut entries = self.entries();
        let entry = entries.iter_mut().find(|entry| entry.approval.id == id);
        let entry = entry.ok_or_else(|| ExecutorError::NoApproval(id.to_owned()))?;
        let state = match (&entry.approval.state, verdict) {
            (State::Pending, Verdict::Approve) => {
                entry.expire_after(entry.lifetime);
                State::Approved(review)
            }
            (State::Pending | State::Approved(_), Verdict::Reject) => {
                entry.expire_after(PENDING_LIFETIME);
                State::Rejected(review)
            }
            (State::Approved(by), Verdict::Approve) => return Err(reviewed(id, "approved", by)),
            (State::Rejected(by), _) => return Err(reviewed(id, "rejected", by)),
            (State::Used(by, _), _) => return Err(reviewed(id, "approved, and used,", by)),
        };
        entry.set(state);
        Ok(Arc::clone(&entry.approval))
    }

    /// All of them, the oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Approval>> {
        self.entries().iter().map(|entry| Arc::clone(&entry.approval)).collect()
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Approval>> {
        self.entries().iter().map(|entry| &entry.approval).find(|approval| approval.id == id).cloned()
    }

    /// Those that have not expired.
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        // a panic while it was held leaves nothing half done
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = boot_time();
        entries.retain(|entry| now < entry.expires_at);
        entries
    }
}

impl Entry {
    fn new(identity: &Identity, start: Start, required: &RequiredApproval, id: String) -> Self {
        let approval = Approval {
            id,
            identity: identity.clone(),
            start: Arc::new(start),
            rules: required.rules.clone(),
            created: SystemTime::now(),
            expires: SystemTime::now(),
            state: State::Pending,
        };
        let mut entry = Self { approval: Arc::new(approval), expires_at: Duration::ZERO, lifetime: required.lifetime };
        entry.expire_after(PENDING_LIFETIME);
        entry
    }

    fn set(&mut self, state: State) {
        Arc::make_mut(&mut self.approval).state = state;
    }

    fn expire_after(&mut self, time: Duration) {
        self.expires_at = boot_time().saturating_add(time);
        let now = SystemTime::now();
        Arc::make_mut(&mut self.approval).expires = now.checked_add(time).unwrap_or(now);
    }

    /// The rules may have been changed since.
    fn shorten(&mut self, lifetime: Duration) {
        self.lifetime = self.lifetime.min(lifetime);
        let is_approved = matches!(self.approval.state, State::Approved(_));
        if is_approved && self.expires_at > boot_time().saturating_add(lifetime) {
            self.expire_after(lifetime);
        }
    }
}

impl Approval {
    /// Who has approved or rejected it, if anyone has.
    pub(crate) fn review(&self) -> Option<&Review> {
        match &self.state {
            State::Pending => None,
            State::Approved(review) | State::Rejected(review) | State::Used(review, _) => Some(review),
        }
    }
}

/// The oldest that waits is dropped for a new one of the same identity.
fn make_room(entries: &mut Vec<Entry>, identity: &Identity) -> Result<(), String> {
    let own = |entry: &&Entry| entry.approval.identity == *identity;
    if entries.iter().filter(own).count() >= MAX_EACH {
        // what was approved or rejected stays so
        let is_spare = |entry: &Entry| own(&entry) && matches!(entry.approval.state, State::Pending | State::Used(..));
        let at = entries.iter().position(is_spare);
        drop(entries.remove(at.ok_or_else(|| full("of this identity are approved or rejected", MAX_EACH))?));
    }
    if entries.len() >= MAX_ALL {
        return Err(full("of all identities wait", MAX_ALL));
    }
    Ok(())
}

fn full(which: &str, max: usize) -> String {
    format!("another identity has to approve this first, but no further approval can be asked for: {max} {which}")
}

fn reviewed(id: &str, what: &str, by: &Review) -> ExecutorError {
    ExecutorError::FailedPrecondition { reason: format!("approval {id} was {what} by {} before", by.reviewer) }
}

fn new_id(entries: &[Entry]) -> Result<String, String> {
    loop {
        let mut bytes = [0; ID_BYTES];
        rand::fill(&mut bytes).map_err(|_| "there are no random numbers".to_owned())?;
        let id = hex(&bytes);
        if entries.iter().all(|entry| entry.approval.id != id) {
            return Ok(id);
        }
    }
}

fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
