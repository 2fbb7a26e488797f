//! Continuing what an earlier agent has started: see [`LocalExecutor::continue_executions`].

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::process::Pid;
use telexec_executor::{ExecutionId, Exited};
use tracing::{Instrument, info, info_span, warn};

use crate::LocalExecutor;
use crate::cgroup::LeafRecord;
use crate::containment::{ExecutionName, KillOnDrop};
use crate::grant::ConnectionState;
use crate::key::Key;
use crate::linger::linger;
use crate::lock::lock;
use crate::observer::{ExecutionObserver, MainProcess, Observers};
use crate::output::pump::Totals;
use crate::output::transcript::Transcript;
use crate::process::own::{EndSource, KeptHandle, OwnChild};
use crate::recovery::handed_over::HandedOver;
use crate::recovery::unfinished::Start;
use crate::registry::{Channels, Ended, Inherited, Record, Restored};
use crate::shared::Shared;
use crate::spawn::working_directory::Report;
use crate::start::Main;
use crate::streams::{self, input};
use crate::supervise::Supervisor;
use crate::survive::RestoredStreams;

/// An execution that an earlier agent has started, and that goes on.
#[derive(Clone, Debug)]
pub struct ContinuedExecution {
    /// Its id.
    pub id: ExecutionId,
    /// Owns it.
    pub identity: String,
    /// Its main process, which may have ended meanwhile.
    pub main: MainProcess,
    /// How it has ended, if the earlier agent has seen that.
    pub exited: Option<Exited>,
    /// What the [`state`](ExecutionObserver::state)s of its observers were, by their names.
    pub states: BTreeMap<String, Vec<u8>>,
}

impl LocalExecutor {
    /// Continues the executions that an earlier agent, which was killed, has left with the [`keeper`](crate::LocalConfig::keeper):
    /// they are found under their ids from then on, with all of their output. `observers` makes those of each, in their order;
    /// those of one that has ended get that at once, since the earlier agent may not have got round to it. For the beginning,
    /// before anything is started or asked for; does nothing when it is called again.
    ///
    /// What is bound to its caller waits for that as after a lost connection. Inside of a runtime.
    pub fn continue_executions(
        &self,
        observers: impl FnOnce(&[ContinuedExecution]) -> Vec<Vec<Box<dyn ExecutionObserver>>>,
    ) {
        let mut all = std::mem::take(&mut *lock(&self.shared.handed_over));
        all.iter_mut().for_each(HandedOver::claim);
        self.shared.spool.directory().keep();
        let (all, handed_over): (Vec<_>, Vec<_>) =
            all.into_iter().filter_map(|one| Some((ContinuedExecution::of(&one).ok()?, one))).unzip();
        let mut running = 0;
        let mut observers = observers(&all).into_iter();
        for (ContinuedExecution { id, main, exited, .. }, one) in all.into_iter().zip(handed_over) {
            let mut observers = Observers::new(observers.next().unwrap_or_default());
            let continued = match exited {
                Some(exited) => {
                    observers.ended(&exited);
                    if one.lingers { self.shared.continue_lingering(one) } else { self.shared.remember(one) }
                }
                None => self.shared.continue_one(one, main, observers).map(|()| running += 1),
            };
            if let Err(error) = continued {
                warn!(%id, %error, "an execution of an earlier agent cannot be continued");
            }
        }
        if running > 0 {
            info!(executions = running, "continued what an earlier agent has started");
        }
    }
}

impl ContinuedExecution {
    fn of(one: &HandedOver) -> io::Result<Self> {
        let pid = one.main.and_then(|main| u32::try_from(main.as_raw_nonzero().get()).ok()).unwrap_or_default();
        let (main, exited) = match &one.ended {
            Some(ended) => (ended.main.clone(), Some(ended.exited.clone())),
            None => (one.unfinished.start()?.main_process(pid)?, None),
        };
        let (id, identity) = (one.unfinished.id()?, one.unfinished.asked().identity);
        Ok(Self { id, identity, main, exited, states: one.unfinished.observers() })
    }
}

impl Shared {
    /// One that has ended.
    fn remember(self: &Arc<Self>, one: HandedOver) -> io::Result<()> {
        let grace = self.grace(&one)?;
        let HandedOver { checkpoint, saved, ended, file, .. } = one;
        let Some(ended) = ended else { return Ok(()) };
        let (identity, id) = (ended.asked.identity.clone(), ended.id.clone());
        let saved = Some((checkpoint, saved, !grace.is_zero()));
        self.registry.inherit(vec![Inherited { ended, file, saved }]);
        if let Ok(record) = self.registry.get(&identity, &id) {
            self.wait_for_caller(&record, grace);
            record.release_retained_after(grace);
        }
        Ok(())
    }

    /// One that has ended, and has left others running.
    fn continue_lingering(self: &Arc<Self>, one: HandedOver) -> io::Result<()> {
        let grace = self.grace(&one)?;
        let HandedOver { unfinished, checkpoint, saved, ended, handle, main, files, file, .. } = one;
        let Some(Ended { id, asked, labels, fingerprint, main: info, exited, .. }) = ended else { return Ok(()) };
        let (start, allowance) = (unfinished.start()?, unfinished.allowance()?);
        let name = ExecutionName { id: id.clone(), key: Key::inherited(&start.key), identity: asked.identity.clone() };
        let (leaf, started) = (start.leaf().cloned().and_then(LeafRecord::restore), start.started()?);
        let pid = i32::try_from(info.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("its process is not known"))?;
        let (own, reaped) = if main.is_some() { (Some(OwnChild::Kept(handle)), None) } else { (None, Some(handle)) };
        let containment = KillOnDrop::new(pid, own, leaf, name, started, Arc::clone(&self.context));
        match reaped {
            Some(handle) => containment.survives(handle),
            None => containment.leave_alone(),
        }
        let rests = streams::rests(files, &self.stream_threads)?;
        let retained_for = (!grace.is_zero()).then_some(&*asked.identity);
        let restored = Restored {
            id: id.clone(),
            transcript: Transcript::restored(checkpoint, saved, file, retained_for, Some(exited.clone())),
            asked,
            labels,
            fingerprint,
            waits_for_caller: !grace.is_zero(),
            is_detached: unfinished.is_detached(),
        };
        let record = self.registry.restore(restored).ok_or_else(|| io::Error::other("its id is in use"))?;
        record.started(info, containment.clone(), Channels::default());
        self.registry.ended(&record, exited, true);
        self.wait_for_caller(&record, grace);
        record.release_retained_after(grace);
        let span = info_span!("execution", %id, identity = record.identity());
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok();
        let limit = allowance.timeout.and_then(|most| started.checked_add(most));
        let (shared, grace) = (Arc::clone(self), self.kill_grace(&unfinished.command()?));
        let run = async move {
            let _permit = permit;
            linger(&shared, &record, &containment, rests, (limit, grace)).await;
        };
        tokio::spawn(run.instrument(span));
        Ok(())
    }

    fn grace(&self, one: &HandedOver) -> io::Result<Duration> {
        let command = one.unfinished.command()?;
        Ok(self.disconnect_grace(command.on_disconnect(), command.disconnect_grace()))
    }

    /// Its caller has lost the connection, as far as this engine knows.
    fn wait_for_caller(&self, record: &Arc<Record>, grace: Duration) {
        if grace.is_zero() {
            return;
        }
        let connection = ConnectionState::default();
        connection.set_lost();
        record.bind(Some(&connection));
        record.unbind_after(Some(0), None, grace, false, std::future::pending());
    }

    fn continue_one(self: &Arc<Self>, one: HandedOver, info: MainProcess, observers: Observers) -> io::Result<()> {
        let grace = self.grace(&one)?;
        let HandedOver { unfinished, checkpoint, saved, handle, main, files, file, .. } = one;
        let (id, asked, command) = (unfinished.id()?, unfinished.asked(), unfinished.command()?);
        let (allowance, start) = (unfinished.allowance()?, unfinished.start()?);
        let pid = main.ok_or_else(|| io::Error::other("its process is not known"))?;
        let identity = asked.identity.clone();
        let name = ExecutionName { id: id.clone(), key: Key::inherited(&start.key), identity: identity.clone() };
        // from here on a failure ends it
        let main = self.restored_main((pid, handle), name, start, &info)?;
        let (ends, first, input) = streams::reopen(files, &checkpoint, unfinished.stdin(), &self.stream_threads)?;
        let (sender, inputs) = unfinished.accepts_input().then(input::channel).unzip();
        let totals = Totals::restored(saved.kept, saved.unkept);
        let retained_for = (!grace.is_zero()).then_some(&*identity);
        let restored = Restored {
            id: id.clone(),
            asked,
            labels: unfinished.labels(),
            fingerprint: unfinished.fingerprint()?,
            transcript: Transcript::restored(checkpoint, saved, file, retained_for, None),
            waits_for_caller: !grace.is_zero(),
            is_detached: unfinished.is_detached(),
        };
        let record = self.registry.restore(restored).ok_or_else(|| io::Error::other("its id is in use"))?;
        let supervisor = Supervisor {
            shared: Arc::clone(self),
            record: Arc::clone(&record),
            first_timeout: command.timeout(),
            command,
            allowance,
            observers,
            abandoned: self.hurry.child_token(),
            tracked: self.tracker.token(),
            permit: Arc::clone(&self.permits).try_acquire_owned().ok(),
            forced: OnceLock::new(),
            totals,
        };
        let channels = Channels { input: sender, terminal: ends.terminal.clone() };
        record.started(info.clone(), main.containment.clone(), channels);
        let span = info_span!("execution", %id, identity);
        span.in_scope(|| info!(pid = info.pid, "continued"));
        self.wait_for_caller(&record, grace);
        let (shared, is_background) = (Arc::clone(self), unfinished.is_detached() || record.transcript.is_promoted());
        let run = async move {
            if is_background {
                // if this agent is killed too, without its keeper
                main.containment.outlive_call(&shared.journal, record.identity()).await;
            }
            supervisor.run_restored(main, RestoredStreams { ends, first, input, inputs }).await;
        };
        tokio::spawn(run.instrument(span));
        Ok(())
    }

    fn restored_main(
        &self,
        (pid, handle): (Pid, KeptHandle),
        name: ExecutionName,
        start: &Start,
        info: &MainProcess,
    ) -> io::Result<Main> {
        let (child, started) = (Arc::clone(handle.child()), start.started()?);
        let leaf = start.leaf().cloned().and_then(LeafRecord::restore);
        let context = Arc::clone(&self.context);
        let containment = KillOnDrop::new(pid, Some(OwnChild::Kept(handle)), leaf, name, started, context);
        let disk = || self.spool.directory().disk().clone();
        Ok(Main {
            pid,
            end: EndSource::Kept(child).watch()?,
            containment,
            started,
            start_time: info.start_time,
            oom_kills_before: None,
            user: info.user.clone(),
            working_directory: info.working_directory.clone(),
            report: start.report().map(|files| Report::restored(disk(), files.clone())),
        })
    }
}
