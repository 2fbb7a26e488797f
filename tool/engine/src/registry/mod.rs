//! The executions that this executor knows of: running, lingering, and, for a while, ended.

mod active;
mod bindings;
mod inherited;
mod kept_program;
mod record;
mod remembered;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, getrlimit};
use telexec_executor::{
    Command, DuplicatePolicy, ExecutionId, ExecutorError, Exited, InvalidCommand, ListQuery, OnDisconnect, Program,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::active::Active;
pub(crate) use self::bindings::Place;
pub(crate) use self::inherited::{Ended, Inherited, Restored};
pub(crate) use self::kept_program::KeptProgram;
pub(crate) use self::record::{Asked, Channels, Record};
use self::record::{Key, State};
use self::remembered::Remembered;
use crate::Retention;
use crate::lock::lock;
use crate::output::spool::{Full, SpoolFile};
use crate::output::transcript::{MakeRoom, Transcript};
use crate::wait::when;

/// A page of a list fits the 4 MiB that gRPC clients accept by default.
const PAGE_BYTES: usize = 2 * 1024 * 1024;

/// Whose execution it becomes.
pub(crate) struct Owner {
    pub(crate) identity: String,
    /// How many executions of it may run or linger; `None`: as many as of any identity.
    pub(crate) concurrent: Option<u32>,
    /// See [`Grant::internal_of`](crate::Grant::internal_of).
    pub(crate) internal_of: Option<String>,
    /// See [`Grant::repeats`](crate::Grant::repeats).
    pub(crate) repeats: bool,
}

impl Owner {
    /// The identity that the execution counts for.
    fn counts_for(&self) -> &str {
        self.internal_of.as_deref().unwrap_or(&self.identity)
    }
}

/// The execution that answers a request.
pub(crate) enum Reserved {
    /// It is to be started.
    New(Arc<Record>),
    /// It was asked for before, with the same id.
    Repeated(Arc<Record>),
    /// The same runs already, and another one is not wanted.
    Duplicate(Arc<Record>),
}

/// How many ended executions a keeper holds, as a part of the descriptors that a process may have: the others are for what runs.
const HELD_PART: u64 = 4;

/// All records.
pub(crate) struct Registry {
    retention: Retention,
    /// How many executions of one identity may run or linger at once.
    max_per_identity: u32,
    entries: Mutex<Entries>,
    /// One has ended or was not started, or does not end with this agent any more.
    ended: Notify,
}

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<Key, Arc<Record>>,
    active: Active,
    ended: Remembered<Key>,
    /// Of these, those that the keeper holds, from the oldest on.
    held: VecDeque<Key>,
    next_sequence: u64,
}

impl Registry {
    pub(crate) fn new(retention: Retention, max_per_identity: u32) -> Self {
        Self { retention, max_per_identity, entries: Mutex::default(), ended: Notify::new() }
    }

    /// Remembers what has ended under earlier engines, for as long as if it had ended here.
    pub(crate) fn inherit(&self, inherited: Vec<Inherited>) {
        let mut entries = self.entries();
        let first = entries.next_sequence;
        for one in inherited {
            let key = Key::new(&one.ended.asked.identity, &one.ended.id);
            if entries.by_key.contains_key(&key) {
                continue;
            }
            // those that a keeper had come one by one, in the order that counts
            let sequence = match one.saved {
                Some(_) => entries.next_sequence,
                None => first.saturating_add(one.ended.sequence),
            };
            entries.next_sequence = entries.next_sequence.max(sequence.saturating_add(1));
            let age = SystemTime::now().duration_since(one.ended.exited.end_time).unwrap_or_default();
            let when = Instant::now();
            let record = Arc::new(Record::inherited(one, sequence));
            record.asked.program.cut();
            entries.remember(&record, when.checked_sub(age).unwrap_or(when));
            entries.by_key.insert(key, record);
            entries.forget(&self.retention);
        }
    }

    /// Adds an execution that goes on; `None`: its identity has another one with its id.
    pub(crate) fn restore(&self, restored: Restored) -> Option<Arc<Record>> {
        let mut entries = self.entries();
        let key = Key::new(&restored.asked.identity, &restored.id);
        if entries.by_key.contains_key(&key) {
            return None;
        }
        let record = Arc::new(Record::restored(restored, entries.next_sequence));
        entries.add(key, &record);
        Some(record)
    }

    /// What the next engine is to know of these, in the order of the ends.
    pub(crate) fn to_leave(&self, of: impl Fn(&Record) -> bool) -> Vec<Ended> {
        let entries = self.entries();
        let records = entries.by_key.values().filter(|record| of(record));
        let mut left: Vec<_> = records.filter_map(|record| record.to_leave()).collect();
        left.sort_by_key(|ended| ended.exited.end_time);
        left
    }

    /// Takes the command's id for its identity, or `fresh` if it has none; or finds the execution that answers the
    /// request. A new one is visible once it has [`started`](Record::started). `file` is for its output, if that may be
    /// kept on disk. `grace` is what it waits for its caller after a lost connection.
    ///
    /// # Errors
    /// The identity has used the id for something else.
    pub(crate) fn reserve(
        &self,
        command: &Command,
        program: Program,
        owner: &Owner,
        fresh: &ExecutionId,
        grace: Duration,
        file: impl FnOnce() -> SpoolFile,
    ) -> Result<Reserved, ExecutorError> {
        let asked = Asked {
            identity: owner.identity.clone(),
            program: KeptProgram::new(program),
            working_directory: command.working_directory().map(str::to_owned),
            user: command.user().map(str::to_owned),
            terminal: command.terminal().is_some(),
            receipt: command.receipt(),
        };
        let fingerprint = command.execution_id().map(|_| command.fingerprint(&owner.identity));
        let key = Key::new(&asked.identity, command.execution_id().unwrap_or(fresh));
        let mut entries = self.entries();
        if let Some(record) = command.execution_id().and_then(|_| entries.by_key.get(&key)) {
            return match record.fingerprint == fingerprint {
                true => Ok(Reserved::Repeated(Arc::clone(record))),
                false => Err(ExecutorError::AlreadyExists(record.id.clone())),
            };
        }
        if owner.repeats {
            let reason = format!("execution {} is being started, or is forgotten: try again", key.id);
            return Err(ExecutorError::FailedPrecondition { reason });
        }
        if command.duplicate_policy() == DuplicatePolicy::ReuseRunning
            && let Some(record) =
                entries.active.of(owner.counts_for()).find(|record| record.asked == asked && record.may_run())
        {
            return Ok(Reserved::Duplicate(Arc::clone(record)));
        }
        self.check_count(&entries, owner)?;
        // clients generate one to attach again after a lost connection, and for nothing else
        let is_chosen = command.execution_id().is_some_and(|id| grace.is_zero() || !id.is_uuid());
        let may_be_kept = command.may_go_to_background() || is_chosen;
        let retained_for = (!grace.is_zero()).then_some(&*owner.identity);
        let record = Arc::new(Record {
            id: key.id.clone(),
            sequence: entries.next_sequence,
            asked,
            labels: command.labels().clone(),
            fingerprint,
            transcript: Arc::new(Transcript::new(may_be_kept.then(file), retained_for)),
            kill: CancellationToken::new(),
            cancel: CancellationToken::new(),
            shutdown: CancellationToken::new(),
            bindings: Mutex::default(),
            bound: Notify::new(),
            waits_for_caller: !grace.is_zero(),
            is_detached: command.on_disconnect() == OnDisconnect::Detach,
            internal_of: owner.internal_of.clone(),
            settled: CancellationToken::new(),
            state: Mutex::new(State::Starting),
        });
        entries.add(key, &record);
        Ok(Reserved::New(record))
    }

    /// # Errors
    /// [`ExecutorError::Exhausted`]: the identity has as many executions as one may have.
    fn check_count(&self, entries: &Entries, owner: &Owner) -> Result<(), ExecutorError> {
        let (identity, concurrent) = (owner.counts_for(), owner.concurrent);
        let most = concurrent.map_or(self.max_per_identity, |most| most.min(self.max_per_identity));
        // one whose end is about to be remembered does not count
        let has_room = |active: usize| active < most as usize;
        let active = &entries.active;
        if has_room(active.count_of(identity)) || has_room(active.of(identity).filter(|one| !one.has_ended()).count()) {
            return Ok(());
        }
        let limit = match concurrent {
            Some(allowed) if allowed < self.max_per_identity => "the limit of the policy's rule (@max_concurrent)",
            _ => "the limit per caller (max_executions_per_identity)",
        };
        Err(ExecutorError::Exhausted {
            reason: format!("{identity} already has {most} running, {limit}"),
            retry_after: Some(Duration::from_secs(1)),
        })
    }

    /// No other one was asked for since.
    pub(crate) fn is_newest(&self, record: &Record) -> bool {
        self.entries().next_sequence == record.sequence + 1
    }

    /// It could not be started: its id is free again.
    pub(crate) fn release(&self, record: &Record) {
        self.entries().remove(record);
        record.transcript.forget_checkpoint();
        record.settled.cancel();
        self.ended.notify_waiters();
    }

    /// Its main process has ended.
    pub(crate) fn ended(&self, record: &Record, exited: Exited, lingers: bool) {
        record.ended(exited, lingers);
        record.asked.program.cut();
        if !lingers {
            self.entries().remember(record, Instant::now());
        }
        self.ended.notify_waiters();
    }

    /// Whether an execution ends with this agent may have changed.
    pub(crate) fn changed(&self) {
        self.ended.notify_waiters();
    }

    /// Those that run, and that the next agent of the keeper will not continue.
    pub(crate) fn bound(&self) -> Vec<Arc<Record>> {
        self.entries().active.all().filter(|record| record.may_run() && !record.survives()).cloned().collect()
    }

    /// Returns when there are none of these.
    pub(crate) async fn none_bound(&self) {
        when(&self.ended, || self.bound().is_empty().then_some(())).await;
    }

    /// Its last process has ended.
    pub(crate) fn outlived(&self, record: &Record) {
        record.outlived();
        self.entries().remember(record, Instant::now());
    }

    /// # Errors
    /// [`ExecutorError::NotFound`]: the identity has none with this id.
    pub(crate) fn get(&self, identity: &str, id: &ExecutionId) -> Result<Arc<Record>, ExecutorError> {
        let found = self.entries().by_key.get(&Key::new(identity, id)).cloned();
        found.ok_or_else(|| ExecutorError::NotFound(id.clone()))
    }

    /// The identities that have an execution with this id.
    pub(crate) fn owners(&self, id: &ExecutionId) -> Vec<String> {
        let entries = self.entries();
        let from = entries.by_key.range(Key::new("", id)..);
        let these = from.take_while(|(key, _)| key.id == *id).filter(|(_, record)| !record.is_internal());
        these.map(|(key, _)| key.identity.clone()).collect()
    }

    /// A page of records, and the token of the next.
    ///
    /// # Errors
    /// The page token was not made here.
    pub(crate) fn list(&self, query: &ListQuery) -> Result<(Vec<Arc<Record>>, String), InvalidCommand> {
        let from: u64 = match query.page_token.as_str() {
            "" => 0,
            token => token.parse().map_err(|_| InvalidCommand::new("page_token", "was not made by this agent"))?,
        };
        let size = match query.page_size {
            0 => 100,
            size => size.min(1000) as usize,
        };
        let mut found: Vec<_> =
            self.entries().by_key.values().filter(|r| r.sequence >= from && r.matches(query)).cloned().collect();
        found.sort_by_key(|record| record.sequence);
        let mut bytes = 0;
        let fits = found.iter().take_while(|record| {
            bytes += record.size();
            bytes <= PAGE_BYTES
        });
        // at least one, or paging would never end
        let size = size.min(fits.count().max(1));
        let next = found.get(size).map(|record| record.sequence.to_string()).unwrap_or_default();
        found.truncate(size);
        Ok((found, next))
    }

    /// How many run now.
    pub(crate) fn running(&self) -> usize {
        let entries = self.entries();
        entries.active.all().filter(|record| matches!(*lock(&record.state), State::Running(..))).count()
    }

    /// The entries, without those whose time is over.
    fn entries(&self) -> MutexGuard<'_, Entries> {
        let mut entries = lock(&self.entries);
        entries.forget(&self.retention);
        entries
    }
}

impl MakeRoom for Registry {
    /// Gives up what is kept on disk of the execution that ended first, of the first owner that has one. False: none has, or it
    /// cannot be done now.
    async fn make_room(&self, full: &Full) -> bool {
        let oldest = {
            let entries = self.entries();
            let is_kept = |record: &&Arc<Record>| record.transcript.is_on_disk();
            let of_owner =
                |owner: &String| entries.ended.keys_of(owner).filter_map(|key| entries.by_key.get(key)).find(is_kept);
            full.owners.iter().find_map(of_owner).map(|record| Arc::clone(&record.transcript))
        };
        match oldest {
            Some(transcript) => transcript.forget_spool().await,
            None => false,
        }
    }
}

fn max_held() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / HELD_PART;
        usize::try_from(files).unwrap_or(usize::MAX)
    })
}

impl Entries {
    fn add(&mut self, key: Key, record: &Arc<Record>) {
        self.next_sequence += 1;
        self.active.insert(record);
        self.by_key.insert(key, Arc::clone(record));
    }

    fn remove(&mut self, record: &Record) {
        self.active.remove(record);
        self.by_key.remove(&record.key());
    }

    /// It has ended, and is remembered for a while.
    fn remember(&mut self, record: &Record, when: Instant) {
        if record.is_internal() {
            self.remove(record);
            return;
        }
        self.active.remove(record);
        self.ended.push(record.key(), &record.asked.identity, record.bytes(), when);
        if record.transcript.checkpoint().is_some() {
            self.held.push_back(record.key());
        }
    }

    /// Forgets those whose time is over, and what is too much.
    fn forget(&mut self, retention: &Retention) {
        while let Some(key) = self.ended.pop(retention) {
            if let Some(record) = self.by_key.remove(&key) {
                // others may hold the record for a while, and nobody finds it again
                record.transcript.forget_checkpoint();
            }
            // usually it is the first
            match self.held.front() == Some(&key) {
                true => drop(self.held.pop_front()),
                false => self.held.retain(|held| *held != key),
            }
        }
        while self.held.len() > max_held() {
            // without it the next agent does not know it
            let key = self.held.pop_front();
            let record = key.and_then(|key| self.by_key.get(&key)).filter(|record| record.has_ended());
            record.into_iter().for_each(|record| record.transcript.forget_checkpoint());
        }
    }
}
