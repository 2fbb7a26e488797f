//! The permission of a call while it lasts: decided again whenever the policy, the certificates or the keys of tokens have changed, by what
//! decided at its start, so that an open stream is worth no more than a new call.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, ready};

use futures_util::stream::Skip;
use futures_util::{FutureExt, Stream, StreamExt};
use telexec_executor::{Event, Execution, ExecutionId, ExecutorError};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, info};

use crate::admission::Stack;
use crate::audit::Operation;
use crate::call::{Call, Rpc};
use crate::lock::lock;
use crate::policy::{Decision, Detail, Facts, FileUse, PortUse, Subject};
use crate::reload::{Watched, next_change};
use crate::request_memory::Reservation;

/// What a call was permitted. It holds as long as nothing changes.
pub(crate) struct Permission {
    stack: Stack,
    call: Call,
    subject: Permitted,
    id: OnceLock<ExecutionId>,
    /// The rules for which another identity has approved it.
    approved: Option<BTreeSet<String>>,
    verdict: Mutex<Verdict>,
}

/// What was permitted.
pub(crate) enum Permitted {
    /// To start a command; `None`: there is no policy that looks at it.
    Start(Option<Judged>),
    /// To do this to an execution, which is of this owner.
    Use(Rpc, ExecutionId, String),
    /// To use a port.
    Port(PortUse),
    /// To use a file.
    File(FileUse),
}

/// A command that may be judged again, and what it holds of the memory until then.
pub(crate) struct Judged {
    pub(crate) facts: Box<Facts>,
    pub(crate) _reservation: Arc<Reservation>,
}

struct Verdict {
    /// The digest of the policy that permitted it last; `None`: there is none.
    permitted_by: Option<Arc<str>>,
    /// It was refused later, and the logs have it.
    recorded: bool,
}

impl Permission {
    /// A permission by this decision.
    pub(crate) fn new(stack: &Stack, call: &Call, subject: Permitted, decision: &Decision) -> Arc<Self> {
        let id = match &subject {
            Permitted::Use(_, id, _) => OnceLock::from(id.clone()),
            Permitted::Start(_) | Permitted::Port(_) | Permitted::File(_) => OnceLock::new(),
        };
        let verdict = Mutex::new(Verdict { permitted_by: decision.policy.clone(), recorded: false });
        let approval = decision.approval.as_ref().filter(|_| decision.allowed);
        let approved = approval.map(|approval| approval.rules.clone());
        Arc::new(Self { stack: stack.clone(), call: call.clone(), subject, id, approved, verdict })
    }

    /// From now on it is decided again as well while a command waits for this call, which has lost its connection.
    pub(crate) fn outlive_connection(self: &Arc<Self>) {
        if !self.may_change() {
            return;
        }
        // what holds this is dropped after the execution, and the call holds the connection
        let this = Arc::downgrade(self);
        self.call.connection.wait_until(move || {
            let this = this.upgrade();
            let refused = async move {
                if let Some(this) = this {
                    this.ended().await;
                }
            };
            refused.in_current_span().boxed()
        });
    }

    fn may_change(&self) -> bool {
        self.stack.policy.is_some() || self.call.caller.may_change()
    }

    /// Whether it is to follow what was started before, and no more.
    pub(crate) fn is_of_attach(&self) -> bool {
        matches!(self.subject, Permitted::Use(Rpc::Attach, ..))
    }

    /// The identity that the execution belongs to.
    pub(crate) fn owner(&self) -> &str {
        match &self.subject {
            Permitted::Start(_) | Permitted::Port(_) | Permitted::File(_) => self.call.caller.identity.as_str(),
            Permitted::Use(_, _, owner) => owner,
        }
    }

    /// Whether it holds now. The first refusal is in the logs.
    ///
    /// # Errors
    /// What a new call would be refused with.
    pub(crate) fn check(&self) -> Result<(), ExecutorError> {
        match self.call.caller.check_open_call() {
            Err(unknown) => self.settle(Decision::default(), Err(unknown)),
            Ok(()) if self.is_as_permitted() => Ok(()),
            Ok(()) => {
                let (decision, checked) = self.decide(Detail::Verdict);
                self.settle(decision, checked)
            }
        }
    }

    /// The policy is the one that permitted it last.
    fn is_as_permitted(&self) -> bool {
        self.policy() == lock(&self.verdict).permitted_by
    }

    /// Remembers what was decided, and logs the first refusal.
    fn settle(&self, decision: Decision, checked: Result<(), ExecutorError>) -> Result<(), ExecutorError> {
        let mut verdict = lock(&self.verdict);
        match &checked {
            Ok(()) => verdict.permitted_by = decision.policy,
            Err(_) if verdict.recorded => {}
            Err(error) => {
                verdict.recorded = true;
                self.record_refusal(&decision, error);
            }
        }
        checked
    }

    /// Does this while the permission holds.
    ///
    /// # Errors
    /// Those of `work`, which is dropped when the permission is over, and what a new call would be refused with then.
    pub(crate) async fn during<T>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T, ExecutorError>>,
    ) -> Result<T, ExecutorError> {
        tokio::select! {
            biased;
            refused = self.ended() => Err(refused),
            // it may have failed since another call of the same caller was refused already
            done = work => done.map_err(|error| self.check().err().unwrap_or(error)),
        }
    }

    /// The same execution, while the permission holds. When it is over the execution is dropped at once, whether anyone
    /// reads it or not, and the last event is what a new call would be refused with.
    pub(crate) fn limit(self: &Arc<Self>, execution: Execution) -> Execution {
        let _ = self.id.set(execution.id().clone());
        if !self.may_change() {
            return execution;
        }
        let started = execution.started().clone();
        // its start is reported by the new one
        let open: Open = Arc::new(Mutex::new(Some(execution.skip(1))));
        let (this, closing) = (Arc::clone(self), Arc::clone(&open));
        let ended = async move {
            let refused = this.ended().await;
            let closed = lock(&closing).take();
            drop(closed);
            refused
        };
        let ended = AbortOnDropHandle::new(tokio::spawn(ended.in_current_span()));
        Execution::new(started, Limited { open, ended: Some(ended), _permission: Arc::clone(self) })
    }

    /// Returns when it holds no more, with what a new call would be refused with; never, if nothing can change that.
    pub(crate) async fn ended(self: &Arc<Self>) -> ExecutorError {
        // from before the first look
        let mut policy = self.stack.policy.as_ref().map(Watched::changes);
        let mut caller = self.call.caller.changes();
        loop {
            if let Err(refused) = self.check_in_turn().await {
                return refused;
            }
            tokio::select! {
                () = next_change(&mut policy) => {}
                () = caller.next() => {}
            }
        }
    }

    /// The same as [`check`](Self::check). Many calls may be decided again at once: each identity's in its turn.
    async fn check_in_turn(self: &Arc<Self>) -> Result<(), ExecutorError> {
        if self.call.caller.check_open_call().is_err() || self.is_as_permitted() {
            return self.check();
        }
        let this = Arc::clone(self);
        let decided = self
            .stack
            .evaluator
            .in_turn(self.call.caller.identity.as_str(), move || this.decide(Detail::Explained))
            .await;
        let (decision, checked) = decided?;
        self.settle(decision, checked)
    }

    fn decide(&self, detail: Detail) -> (Decision, Result<(), ExecutorError>) {
        match &self.subject {
            Permitted::Start(None) => (Decision::without_policy(), Ok(())),
            Permitted::Start(Some(judged)) => {
                let facts = judged.facts.anew();
                let subject = Subject::Command(&facts);
                let mut decision = self.stack.decide(&self.call.caller, self.call.rpc, &subject, detail);
                // an approval holds as long as the same rules ask for it
                if let Some(approval) = &decision.approval
                    && self.approved.as_ref() == Some(&approval.rules)
                {
                    decision.allowed = true;
                }
                let permitted = decision.permitted();
                (decision, permitted)
            }
            Permitted::Port(used) => {
                let decision = self.stack.decide(&self.call.caller, self.call.rpc, &Subject::Port(used), detail);
                let permitted = decision.permitted();
                (decision, permitted)
            }
            Permitted::File(file) => {
                let decision = self.stack.decide(&self.call.caller, self.call.rpc, &Subject::File(file), detail);
                let permitted = decision.permitted();
                (decision, permitted)
            }
            Permitted::Use(rpc, id, owner) => {
                let (decision, reached) =
                    self.stack.decide_use(&self.call, *rpc, id, std::slice::from_ref(owner), detail);
                (decision, reached.map(drop))
            }
        }
    }

    fn record_refusal(&self, decision: &Decision, error: &ExecutorError) {
        let id = self.id.get();
        let identity = &self.call.caller.identity;
        info!(%identity, id = id.map(ExecutionId::as_str), reason = %error, "ending a call that is no longer permitted");
        let action = match self.subject {
            Permitted::Start(_) | Permitted::Port(_) | Permitted::File(_) => self.call.rpc,
            Permitted::Use(rpc, ..) => rpc,
        };
        self.stack.metrics.decided(action, false);
        let (port, file) = match &self.subject {
            Permitted::Port(used) => (Some(used), None),
            Permitted::File(file) => (None, Some(file)),
            Permitted::Start(_) | Permitted::Use(..) => (None, None),
        };
        let operation = Operation { action: Some(action), execution_id: id, port, file, ..Operation::default() };
        self.stack.audit.record_ended(&self.call, operation, decision, error);
    }

    fn policy(&self) -> Option<Arc<str>> {
        self.stack.policy.as_ref().map(|policy| Arc::clone(&policy.current().digest))
    }
}

/// The events of an execution, until a permission is over.
struct Limited {
    open: Open,
    /// `None`: the last event was sent.
    ended: Option<AbortOnDropHandle<ExecutorError>>,
    /// May be asked for when the execution is dropped.
    _permission: Arc<Permission>,
}

impl Drop for Limited {
    fn drop(&mut self) {
        let closed = lock(&self.open).take();
        drop(closed);
    }
}

/// `None`: the permission is over.
type Open = Arc<Mutex<Option<Skip<Execution>>>>;

impl Stream for Limited {
    type Item = Result<Event, ExecutorError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(ended) = &mut self.ended else { return Poll::Ready(None) };
        let event = match ended.poll_unpin(cx) {
            Poll::Ready(Ok(refused)) => Some(Err(refused)),
            Poll::Ready(Err(error)) => Some(Err(ExecutorError::Internal(error.to_string()))),
            Poll::Pending => match lock(&self.open).as_mut() {
                Some(execution) => ready!(execution.poll_next_unpin(cx)),
                None => return Poll::Pending,
            },
        };
        if !matches!(&event, Some(Ok(event)) if !event.is_last()) {
            // what has ended is not refused any more
            self.ended = None;
        }
        Poll::Ready(event)
    }
}
