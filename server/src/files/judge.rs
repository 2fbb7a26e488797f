//! What a caller may do with a file: decided by the policy, and recorded.

use std::sync::Arc;

use telexec_executor::ExecutorError;

use crate::admission::Stack;
use crate::admission::permission::{Permission, Permitted};
use crate::audit::{FileOutcome, Operation};
use crate::call::Call;
use crate::policy::{Detail, FileAction, FileUse, Subject};

/// A use of a file that was permitted. Its outcome goes to the audit log: when it is dropped, that it was given up.
pub(super) struct Use {
    stack: Stack,
    call: Call,
    file: FileUse,
    permission: Arc<Permission>,
    is_reported: bool,
    /// Of a search in files: what is looked for.
    pattern: Option<String>,
    /// Bytes of content, as far as they were sent or received.
    pub(super) bytes: u64,
}

/// Whether the caller may do something of this with some file: whoever may not has no process started.
///
/// # Errors
/// [`ExecutorError::Denied`], also if its certificate is no longer valid [`ExecutorError::Unauthenticated`].
pub(super) async fn admit(
    stack: &Stack,
    call: &Call,
    actions: &[FileAction],
    path: Option<String>,
) -> Result<(), ExecutorError> {
    call.caller.check_open_call()?;
    let (Some(policy), Some(first)) = (&stack.policy, actions.first()) else { return Ok(()) };
    let may = |action: &FileAction| policy.current().may_use_files(&call.caller, *action);
    if actions.iter().any(may) {
        return Ok(());
    }
    let file = FileUse { action: *first, path, user: None };
    Use::permit(stack, call, file).await.map(Use::reported_elsewhere)
}

impl Use {
    /// Whether the caller may do this with this file. What changes or reveals content is recorded before it happens.
    ///
    /// # Errors
    /// [`ExecutorError::Denied`]; or the audit log cannot be written.
    pub(super) async fn permit(stack: &Stack, call: &Call, file: FileUse) -> Result<Self, ExecutorError> {
        Self::decide(stack, call, file, None).await
    }

    /// Whether the caller may search this directory, or file, for `pattern`. That reveals content, so it is recorded.
    ///
    /// # Errors
    /// As of [`permit`](Self::permit).
    pub(super) async fn permit_search(
        stack: &Stack,
        call: &Call,
        file: FileUse,
        pattern: String,
    ) -> Result<Self, ExecutorError> {
        Self::decide(stack, call, file, Some(pattern)).await
    }

    /// Whether what was permitted may use this too. It may be one of very many, and is not recorded.
    ///
    /// # Errors
    /// [`ExecutorError::Denied`], without an explanation.
    pub(super) fn permit_quietly(stack: &Stack, call: &Call, file: FileUse) -> Result<Self, ExecutorError> {
        call.caller.check_open_call()?;
        let decision = stack.decide(&call.caller, call.rpc, &Subject::File(&file), Detail::Verdict);
        stack.metrics.decided(call.rpc, decision.allowed);
        decision.permitted()?;
        let permission = Permission::new(stack, call, Permitted::File(file.clone()), &decision);
        let (stack, call) = (stack.clone(), call.clone());
        Ok(Self { stack, call, file, permission, is_reported: true, pattern: None, bytes: 0 })
    }

    async fn decide(stack: &Stack, call: &Call, file: FileUse, pattern: Option<String>) -> Result<Self, ExecutorError> {
        call.caller.check_open_call()?;
        let asked = file.clone();
        let decide = move |stack: &Stack, call: &Call, detail| {
            let decision = stack.decide(&call.caller, call.rpc, &Subject::File(&asked), detail);
            let permitted = decision.permitted();
            (decision, permitted)
        };
        let (decision, permitted) = stack.explain_denial(call, decide).await;
        // names and attributes are not worth a record of their own
        let is_recorded = file.action != FileAction::List || pattern.is_some();
        let permitted = permitted.and_then(|()| if is_recorded { stack.audit.check_writable() } else { Ok(()) });
        stack.metrics.decided(call.rpc, decision.allowed);
        if permitted.is_err() || is_recorded {
            let operation = Operation { file: Some(&file), pattern: pattern.as_deref(), ..Operation::default() };
            stack.audit.record_access(call, operation, &decision, permitted.as_ref().err()).await;
        }
        permitted?;
        let permission = Permission::new(stack, call, Permitted::File(file.clone()), &decision);
        let (stack, call) = (stack.clone(), call.clone());
        Ok(Self { stack, call, file, permission, is_reported: !is_recorded, pattern, bytes: 0 })
    }

    /// Holds while that is permitted.
    pub(super) fn permission(&self) -> &Arc<Permission> {
        &self.permission
    }

    /// It was done, with content of this SHA-256.
    pub(super) fn done(mut self, sha256: Option<String>) {
        self.report(FileOutcome { bytes: self.bytes, sha256, ..FileOutcome::default() });
    }

    /// What comes of it is reported by others.
    pub(super) fn reported_elsewhere(mut self) {
        self.is_reported = true;
    }

    /// It was not done.
    pub(super) fn failed(mut self, error: &ExecutorError) {
        self.report(FileOutcome::failed(self.bytes, Some(error)));
    }

    fn report(&mut self, outcome: FileOutcome) {
        if !std::mem::replace(&mut self.is_reported, true) {
            let outcome = FileOutcome { pattern: self.pattern.take(), ..outcome };
            self.stack.audit.record_file(&self.call, &self.file, outcome);
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        // a watch has no other end
        let outcome = match self.file.action {
            FileAction::Watch => FileOutcome::default(),
            _ => FileOutcome::failed(self.bytes, None),
        };
        self.report(outcome);
    }
}
