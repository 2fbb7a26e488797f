//! Starts that another identity has to approve: what is asked for, and what was approved and not used yet.
//!
//! `start` is what is approved, `service` the RPCs.

pub(crate) mod service;
pub(crate) mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::rand;
use telexec_engine::boot_time;
use telexec_executor::{ExecutionId, ExecutorError};

use self::start::Start;
use crate::digest::hex;
use crate::identity::Identity;
use crate::policy::RequiredApproval;

/// A request that nobody approves or rejects is dropped after this.
const PENDING_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// Requests of one identity, and of all.
const MAX_EACH: usize = 16;
const MAX_ALL: usize = 1024;
/// All that is kept of what would run.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// What is kept beside that, about.
const ENTRY_BYTES: usize = 512;
/// As short as can be typed, and long enough not to be met by chance.
const ID_BYTES: usize = 5;

/// The approvals of this agent, in memory; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Approvals(Arc<Mutex<Vec<Entry>>>);

struct Entry {
    approval: Arc<Approval>,
    /// On the clock that counts while the machine sleeps, too; likewise the next one.
    expires_at: Duration,
    approved_at: Option<Duration>,
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
    /// When it is dropped, by the clock of this machine as it is now.
    pub(crate) expires: SystemTime,
    pub(crate) state: State,
}

#[derive(Clone)]
pub(crate) enum State {
    Pending,
    Approved(Review),
    Rejected(Review),
    /// It was approved, and this execution is being started.
    Starting(Review, ExecutionId),
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
    /// The request that was approved for the start of this execution.
    pub(crate) fn used(
        &self,
        identity: &Identity,
        start: &Start,
        execution_id: &ExecutionId,
        required: &RequiredApproval,
    ) -> Option<Arc<Approval>> {
        let is_it = |approval: &Approval| {
            matches!(&approval.state, State::Starting(_, id) | State::Used(_, id) if id == execution_id)
                && approval.is_for(identity, start, required)
        };
        self.entries().iter().map(|entry| &entry.approval).find(|approval| is_it(approval)).cloned()
    }

    /// What has become of the request for the approval of this start; if there is none yet, it is made.
    ///
    /// # Errors
    /// [`ExecutorError::Exhausted`]: there is no room for it.
    pub(crate) fn ask(
        &self,
        identity: &Identity,
        start: Start,
        required: &RequiredApproval,
    ) -> Result<Arc<Approval>, ExecutorError> {
        let mut entries = self.entries();
        let is_same = |approval: &Approval| !is_used(&approval.state) && approval.is_for(identity, &start, required);
        if let Some(entry) = entries.iter_mut().find(|entry| is_same(&entry.approval)) {
            entry.shorten(required.lifetime);
            // it may have been too long ago
            if boot_time() < entry.expires_at {
                return Ok(Arc::clone(&entry.approval));
            }
            entries.retain(|entry| !is_same(&entry.approval));
        }
        make_room(&mut entries, identity, &start)?;
        let entry = Entry::new(identity, start, required, new_id(&entries)?);
        let approval = Arc::clone(&entry.approval);
        entries.push(entry);
        Ok(approval)
    }

    /// Uses an approval for the start of this execution; `None`: another call has done that for the same execution.
    ///
    /// # Errors
    /// [`ExecutorError::Denied`]: it was used for another one, was rejected, or has expired.
    pub(crate) fn take(&self, approval_id: &str, execution_id: &ExecutionId) -> Result<Option<Taken>, ExecutorError> {
        let mut entries = self.entries();
        let entry = entries.iter_mut().find(|entry| entry.approval.id == approval_id);
        let used = entry.and_then(|entry| match &entry.approval.state {
            State::Approved(review) => {
                entry.set(State::Starting(review.clone(), execution_id.clone()));
                let (approvals, approval_id) = (self.clone(), approval_id.to_owned());
                Some(Some(Taken { approvals, approval_id, has_started: false }))
            }
            State::Starting(_, id) | State::Used(_, id) => (id == execution_id).then_some(None),
            State::Pending | State::Rejected(_) => None,
        });
        used.ok_or_else(|| {
            ExecutorError::denied(format!("request {approval_id} has just been used, or has expired: try again"))
        })
    }

    /// Whether this may be done to a request now.
    ///
    /// # Errors
    /// As [`review`](Self::review).
    pub(crate) fn check(&self, id: &str, verdict: Verdict) -> Result<(), ExecutorError> {
        let entries = self.entries();
        let entry = entries.iter().find(|entry| entry.approval.id == id);
        entry.ok_or_else(|| ExecutorError::NoApproval(id.to_owned()))?.check(verdict)
    }

    /// Approves or rejects a request.
    ///
    /// # Errors
    /// [`ExecutorError::NoApproval`]; [`ExecutorError::FailedPrecondition`]: that was done before.
    pub(crate) fn review(&self, id: &str, verdict: Verdict, review: Review) -> Result<Arc<Approval>, ExecutorError> {
        let mut entries = self.entries();
        let entry = entries.iter_mut().find(|entry| entry.approval.id == id);
        let entry = entry.ok_or_else(|| ExecutorError::NoApproval(id.to_owned()))?;
        entry.check(verdict)?;
        let state = match verdict {
            Verdict::Approve => {
                entry.approved_at = Some(boot_time());
                entry.expire_after(entry.lifetime);
                State::Approved(review)
            }
            Verdict::Reject => {
                entry.expire_after(PENDING_LIFETIME);
                State::Rejected(review)
            }
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
        let (approval, lifetime) = (Arc::new(approval), required.lifetime);
        let mut entry = Self { approval, expires_at: Duration::ZERO, approved_at: None, lifetime };
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
        if let Some(approved_at) = self.approved_at
            && matches!(self.approval.state, State::Approved(_))
            && approved_at.saturating_add(self.lifetime) < self.expires_at
        {
            self.expire_after(approved_at.saturating_add(self.lifetime).saturating_sub(boot_time()));
        }
    }

    fn check(&self, verdict: Verdict) -> Result<(), ExecutorError> {
        let id = &self.approval.id;
        match (&self.approval.state, verdict) {
            (State::Pending, _) | (State::Approved(_) | State::Starting(..), Verdict::Reject) => Ok(()),
            (State::Approved(by) | State::Starting(by, _), Verdict::Approve) => Err(reviewed(id, "approved", by)),
            (State::Rejected(by), _) => Err(reviewed(id, "rejected", by)),
            (State::Used(by, _), _) => Err(reviewed(id, "used; it was approved", by)),
        }
    }
}

/// An approval that a start uses. Dropped before [`started`](Self::started), it can be used again, unless it was rejected.
pub(crate) struct Taken {
    approvals: Approvals,
    approval_id: String,
    has_started: bool,
}

impl Taken {
    /// From now on the command may run.
    pub(crate) fn started(&mut self) {
        self.has_started = true;
    }

    /// It is certain that nothing has run.
    pub(crate) fn not_started(&mut self) {
        self.has_started = false;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut entries = self.approvals.entries();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.approval.id == self.approval_id)
            && let State::Starting(review, id) = &entry.approval.state
        {
            entry.set(match self.has_started {
                true => State::Used(review.clone(), id.clone()),
                false => State::Approved(review.clone()),
            });
        }
    }
}

impl Approval {
    fn is_for(&self, identity: &Identity, start: &Start, required: &RequiredApproval) -> bool {
        self.identity == *identity && self.rules == required.rules && *self.start == *start
    }

    /// Who has approved or rejected it, if anyone has.
    pub(crate) fn review(&self) -> Option<&Review> {
        match &self.state {
            State::Pending => None,
            State::Approved(review) | State::Rejected(review) => Some(review),
            State::Starting(review, _) | State::Used(review, _) => Some(review),
        }
    }
}

/// For a new one of an identity that has no place left one of its own is dropped: the oldest that is used, or else that is pending,
/// or else that is rejected. Beyond what is kept of all, those that are used are, and then those of the identity that has most.
fn make_room(entries: &mut Vec<Entry>, identity: &Identity, start: &Start) -> Result<(), ExecutorError> {
    let own = |entry: &Entry| entry.approval.identity == *identity;
    if entries.iter().filter(|entry| own(entry)).count() >= MAX_EACH {
        let oldest =
            |is_one: fn(&State) -> bool| entries.iter().position(|entry| own(entry) && is_one(&entry.approval.state));
        let spare = oldest(is_used).or_else(|| oldest(is_pending)).or_else(|| oldest(is_rejected));
        let all_approved =
            || exhausted(format!("{MAX_EACH} requests of this identity are approved, which is the limit"));
        entries.remove(spare.ok_or_else(all_approved)?);
    }
    while !has_room(entries, start) {
        let used = entries.iter().position(|entry| is_used(&entry.approval.state));
        let spare = used.or_else(|| oldest_of_most(entries, identity));
        let all = entries.len();
        entries.remove(
            spare.ok_or_else(|| exhausted(format!("the agent holds {all} requests, and has no room for more")))?,
        );
    }
    Ok(())
}

fn is_used(state: &State) -> bool {
    matches!(state, State::Used(..))
}

fn is_pending(state: &State) -> bool {
    matches!(state, State::Pending)
}

fn is_rejected(state: &State) -> bool {
    matches!(state, State::Rejected(_))
}

fn has_room(entries: &[Entry], start: &Start) -> bool {
    let bytes: usize = entries.iter().map(|entry| entry.approval.start.bytes()).sum();
    entries.len() < MAX_ALL && bytes.saturating_add(start.bytes()) <= MAX_BYTES
}

/// The oldest pending request of the identity whose pending requests take the most, if this one's take less.
fn oldest_of_most(entries: &[Entry], identity: &Identity) -> Option<usize> {
    let pending = |entry: &&Entry| is_pending(&entry.approval.state);
    let mut weights = BTreeMap::<&str, usize>::new();
    for entry in entries.iter().filter(pending) {
        *weights.entry(entry.approval.identity.as_str()).or_default() += ENTRY_BYTES + entry.approval.start.bytes();
    }
    let own = weights.get(identity.as_str()).copied().unwrap_or_default();
    let (most, _) = weights.iter().filter(|(_, weight)| **weight > own).max_by_key(|(_, weight)| **weight)?;
    entries.iter().position(|entry| pending(&entry) && entry.approval.identity.as_str() == *most)
}

fn exhausted(reason: String) -> ExecutorError {
    let reason = format!("another identity's approval is required, but {reason}; nothing ran");
    ExecutorError::Exhausted { reason, retry_after: None }
}

fn reviewed(id: &str, what: &str, by: &Review) -> ExecutorError {
    ExecutorError::FailedPrecondition { reason: format!("request {id} has been {what} by {}", by.reviewer) }
}

fn new_id(entries: &[Entry]) -> Result<String, ExecutorError> {
    loop {
        let mut bytes = [0; ID_BYTES];
        rand::fill(&mut bytes).map_err(|_| ExecutorError::Internal("there are no random numbers".into()))?;
        let id = hex(&bytes);
        if entries.iter().all(|entry| entry.approval.id != id) {
            return Ok(id);
        }
    }
}
