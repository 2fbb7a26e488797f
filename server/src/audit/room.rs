//! Room for a record: what a caller's share of the log has left, and the totals of what is left out.

use std::sync::Arc;

use telexec_executor::{Command, ExecutorError};

use super::command::{self, Asked, CommandDescriber};
use super::record::Origin;
use super::{CLEANUP_SIZE, Inner, json, omitted};
use crate::analysis::CommandAnalysis;
use crate::call::Call;

/// Longer commands, in bytes, are described on another thread: they may have to be analysed.
const MAX_QUICK_BYTES: u64 = 512;
/// So are those with more variables.
const MAX_QUICK_VARIABLES: usize = 64;

impl Inner {
    /// Describes a command to be started, and takes room for it and `rest` bytes of its records: shortened if the caller's
    /// share is nearly used up.
    ///
    /// # Errors
    /// [`ExecutorError::Exhausted`]: the share is used up.
    pub(super) async fn room_for(
        self: &Arc<Self>,
        call: &Call,
        command: &Command,
        analysis: &Arc<CommandAnalysis>,
        rest: u64,
    ) -> Result<Box<Asked>, ExecutorError> {
        let identity = call.caller.identity.as_str();
        let asked = self.describe(call, command, analysis, CommandDescriber::full).await?;
        if self.volume.takes_whole(identity, json::length(&asked) + rest) {
            return Ok(asked);
        }
        let asked = self.describe(call, command, analysis, CommandDescriber::shortened).await?;
        self.volume.take(identity, json::length(&asked) + rest).map_err(|wait| {
            self.leave_out(identity, true, || Origin::of(call));
            let reason =
                format!("{identity} has filled its share of the audit log, audit.max_bytes_per_identity; nothing ran");
            ExecutorError::Exhausted { reason, retry_after: Some(wait) }
        })?;
        Ok(asked)
    }

    /// Describes a command.
    pub(super) async fn describe(
        &self,
        call: &Call,
        command: &Command,
        analysis: &Arc<CommandAnalysis>,
        describe: fn(&CommandDescriber, &Command, &CommandAnalysis) -> Box<Asked>,
    ) -> Result<Box<Asked>, ExecutorError> {
        let is_short = command::length(command.program()) <= MAX_QUICK_BYTES;
        if is_short && command.environment().len() <= MAX_QUICK_VARIABLES {
            return Ok(describe(&self.describer, command, analysis));
        }
        let (describer, command, analysis) = (Arc::clone(&self.describer), command.clone(), Arc::clone(analysis));
        let asked =
            self.workers.run(call.caller.identity.as_str(), move || describe(&describer, &command, &analysis)).await;
        asked.map_err(|lost| ExecutorError::Internal(format!("no audit record was made of the command: {lost}")))
    }

    /// Whether a refusal of this caller is still recorded: repeated refusals must not fill the log.
    pub(super) fn spares(self: &Arc<Self>, identity: &str, origin: impl FnOnce() -> Arc<Origin>) -> bool {
        if self.refusals.len() > CLEANUP_SIZE {
            self.refusals.retain_recent();
        }
        let spares = self.refusals.check_key(&identity.to_owned()).is_ok();
        if !spares {
            self.leave_out(identity, true, origin);
        }
        spares
    }

    /// Takes room for a record of this size, if there is any.
    pub(super) fn fits(
        self: &Arc<Self>,
        identity: &str,
        bytes: u64,
        was_denied: bool,
        origin: impl FnOnce() -> Arc<Origin>,
    ) -> bool {
        let fits = self.volume.take(identity, bytes).is_ok();
        if !fits {
            self.leave_out(identity, was_denied, origin);
        }
        fits
    }

    /// Counts a record that is not written, and schedules the record with the totals.
    pub(super) fn leave_out(self: &Arc<Self>, identity: &str, was_denied: bool, origin: impl FnOnce() -> Arc<Origin>) {
        if !self.omitted.count(identity, origin, was_denied) {
            return;
        }
        let (this, identity) = (Arc::clone(self), identity.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(omitted::DELAY).await;
            if let Some(record) = this.omitted.take(&identity) {
                this.write(record).await;
            }
        });
    }
}
