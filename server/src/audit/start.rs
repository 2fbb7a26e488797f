//! The records of starts, which are written before a command runs, and the observers of what they start.

use std::sync::Arc;

use telexec_engine::ExecutionObserver;
use telexec_executor::{Command, ExecutionId, ExecutorError};

use super::record::{Body, Origin, Record, StartedRecording};
use super::recording::{About, Recording};
use super::writer::{self, ExecutionRecorder, Job, Start};
use super::{Audit, Inner, RETRY_AFTER, WhenFull, command, rest};
use crate::analysis::CommandAnalysis;
use crate::call::Call;
use crate::hostname::hostname;
use crate::policy::Decision;

/// An upper bound of what the records of a start and its end say about a recording.
const RECORDING_BYTES: u64 = 1024;

impl Audit {
    /// Records the start of a command, and waits until that is written. `analysis` is that of the command, as the policy saw
    /// it. Returns the observer for the engine; `None`: there is no log.
    ///
    /// # Errors
    /// [`ExecutorError::Exhausted`]: the record cannot be written, the caller's share is used up, or the command is to be
    /// recorded and cannot be; [`ExecutorError::FailedPrecondition`]: it is to be recorded, and there is no log. The command
    /// must not run.
    pub(crate) async fn record_start(
        &self,
        call: &Call,
        id: &ExecutionId,
        command: &Command,
        analysis: &Arc<CommandAnalysis>,
        decision: &Decision,
    ) -> Result<Option<Box<dyn ExecutionObserver>>, ExecutorError> {
        let Some(inner) = &self.0 else {
            let reason = "the policy requires a recording, and the agent keeps no audit log (audit.file); nothing ran";
            let refused = ExecutorError::FailedPrecondition { reason: reason.into() };
            return if decision.record { Err(refused) } else { Ok(None) };
        };
        let rest = rest(call.caller.identity.as_str()) + if decision.record { RECORDING_BYTES } else { 0 };
        let asked = inner.room_for(call, command, analysis, rest).await?;
        let (recording, started) = match decision.record {
            true => match inner.begin_recording(call, id, command).await {
                Ok(begun) => begun,
                Err(error) => {
                    self.record_refused(call, command, analysis, decision, &error).await;
                    return Err(error);
                }
            },
            false => (None, None),
        };
        let origin = Origin::of(call);
        let body = Body::Start { decision: decision.into(), recording: started, asked };
        let record = Record::new(body).of(&origin).about(Some(id));
        let recorder = || inner.recorder(&origin, id);
        let (recorder, reason) = match inner.begin(record, recorder().with_recording(recording)).await {
            Some((recorder, Ok(()))) => (recorder, None),
            Some((recorder, Err(reason))) => (recorder, Some(reason)),
            None => {
                inner.state.lose();
                (recorder(), Some("the disk does not answer".to_owned()))
            }
        };
        match reason {
            Some(reason) if inner.when_full == WhenFull::Refuse => Err(ExecutorError::Exhausted {
                reason: format!("the audit log cannot be written: {reason}; nothing ran"),
                retry_after: Some(RETRY_AFTER),
            }),
            _ => Ok(Some(Box::new(recorder))),
        }
    }
}

impl Inner {
    /// The recording of a command that is to be started, and what its record says of it.
    ///
    /// # Errors
    /// [`ExecutorError::Exhausted`]: it cannot be recorded, and must not run.
    async fn begin_recording(
        &self,
        call: &Call,
        id: &ExecutionId,
        command: &Command,
    ) -> Result<(Option<Recording>, Option<StartedRecording>), ExecutorError> {
        let about = About {
            identity: command::clip(call.caller.identity.as_str()),
            execution_id: id.to_string(),
            agent: hostname(),
            terminal: command.terminal().is_some(),
        };
        match self.recordings.create(about, command.terminal()).await {
            Ok(recording) => {
                let file = recording.file().to_owned();
                Ok((Some(recording), Some(StartedRecording::File(file))))
            }
            Err(reason) if self.when_full == WhenFull::Refuse => Err(ExecutorError::Exhausted {
                reason: format!("the policy requires a recording, which cannot be begun: {reason}; nothing ran"),
                retry_after: Some(RETRY_AFTER),
            }),
            Err(reason) => Ok((None, Some(StartedRecording::Missing(reason)))),
        }
    }

    fn recorder(&self, origin: &Arc<Origin>, id: &ExecutionId) -> ExecutionRecorder {
        let (queue, state) = (self.queue.clone(), Arc::clone(&self.state));
        ExecutionRecorder::new(queue, state, Arc::clone(origin), id.clone(), self.containment, self.output_digest)
    }

    /// Has a start written; `None`: it timed out, and will not be written.
    async fn begin(&self, record: Record, recorder: ExecutionRecorder) -> Option<writer::StartOutcome> {
        self.answered(|slot, reply| Job::Start(Box::new(Start { record, recorder, reply, slot }))).await
    }
}
