//! What goes with a forward: it is permitted, counted and recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use telexec_executor::ExecutorError;

use super::Forwards;
use super::limiter::{ForwardLimiter, ForwardPermit};
use crate::admission::Stack;
use crate::admission::permission::{Permission, Permitted};
use crate::audit::{ForwardOutcome, Operation};
use crate::call::Call;
use crate::metrics::Refusal;
use crate::policy::{PortAction, PortUse, Subject};

/// A forward that was permitted. Its end goes to the audit log: when it is dropped, that it was given up.
pub(super) struct Passage {
    stack: Stack,
    call: Call,
    pub(super) used: PortUse,
    pub(super) permission: Arc<Permission>,
    limiter: ForwardLimiter,
    begun: Instant,
    received: AtomicU64,
    sent: AtomicU64,
    is_recorded: bool,
    _permit: ForwardPermit,
}

impl Passage {
    /// Asks all who may refuse a forward, and records it. `permit`: it is counted already.
    ///
    /// # Errors
    /// [`ExecutorError::Denied`], [`ExecutorError::Exhausted`] or [`ExecutorError::ShuttingDown`].
    pub(super) async fn permit(
        stack: &Stack,
        forwards: &Forwards,
        call: &Call,
        used: PortUse,
        permit: Option<ForwardPermit>,
    ) -> Result<Self, ExecutorError> {
        call.caller.check_open_call()?;
        if forwards.closing.is_cancelled() {
            return Err(ExecutorError::ShuttingDown);
        }
        let asked = used.clone();
        let decide = move |stack: &Stack, call: &Call, detail| {
            let decision = stack.decide(&call.caller, call.rpc, &Subject::Port(&asked), detail);
            let permitted = decision.permitted();
            (decision, permitted)
        };
        let (decision, permitted) = stack.explain_denial(call, decide).await;
        let permitted = permitted.and_then(|()| forwards.check_reach(stack, &used));
        stack.metrics.decided(call.rpc, permitted.is_ok());
        let counted = permitted.and_then(|()| {
            stack.audit.check_writable().inspect_err(|_| stack.metrics.refused(Refusal::Audit))?;
            let acquire = || forwards.limiter.acquire(&call.caller.identity);
            permit.map_or_else(acquire, Ok).inspect_err(|_| stack.metrics.refused(Refusal::Exhausted))
        });
        let operation = Operation { port: Some(&used), ..Operation::default() };
        stack.audit.record_access(call, operation, &decision, counted.as_ref().err()).await;
        let permit = counted?;
        let permission = Permission::new(stack, call, Permitted::Port(used.clone()), &decision);
        Ok(Self {
            stack: stack.clone(),
            call: call.clone(),
            used,
            permission,
            limiter: forwards.limiter.clone(),
            begun: Instant::now(),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            is_recorded: false,
            _permit: permit,
        })
    }

    /// The caller sent this many bytes.
    pub(super) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.limiter.add_received(bytes as u64);
    }

    /// This many bytes were sent to the caller.
    pub(super) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.limiter.add_sent(bytes as u64);
    }

    /// It has ended for this reason, with this error of the system.
    pub(super) fn end(mut self, cause: &'static str, errno: Option<&str>) {
        self.record(cause, errno);
    }

    fn record(&mut self, cause: &'static str, errno: Option<&str>) {
        if std::mem::replace(&mut self.is_recorded, true) {
            return;
        }
        let outcome = ForwardOutcome {
            received: self.received.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            wall_time: self.begun.elapsed(),
            cause,
            errno,
        };
        self.stack.audit.record_forward(&self.call, &self.used, outcome);
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.record("given_up", None);
    }
}

impl Forwards {
    /// Without a policy listening is for this machine alone, unless that is configured.
    fn check_reach(&self, stack: &Stack, used: &PortUse) -> Result<(), ExecutorError> {
        let is_ruled = stack.policy.is_some() || self.allow_remote_bind;
        match used.action == PortAction::Listen && !used.endpoint.is_local() && !is_ruled {
            false => Ok(()),
            true => {
                let reason = format!(
                    "{} is not a loopback address: without a policy, listening there needs allow_remote_bind in the \
                     agent's configuration",
                    used.endpoint
                );
                Err(ExecutorError::denied(reason))
            }
        }
    }
}
