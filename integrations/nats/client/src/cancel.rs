//! Ends commands whose callers have gone.

use std::sync::Arc;
use std::time::Duration;

use telexec_proto::v1::{GetExecutionRequest, SignalExecutionResponse};
use tokio_util::task::TaskTracker;
use tonic::Code;

use crate::nats::{Message, Nats, Withdrawal};

/// Of an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// While the server or the agent does not answer, or the agent is about to start the command.
const RETRY_DELAY: Duration = Duration::from_millis(200);
const RETRIES: u32 = 100;

/// Withdraws a request, or ends its command, when it is dropped.
pub(crate) struct CancelOnDrop {
    pending: Option<Cancellation>,
    tasks: TaskTracker,
}

/// What is to be ended.
pub(crate) struct Cancellation {
    pub(crate) nats: Arc<Nats>,
    pub(crate) id: String,
    /// The request, and no other command with its ID is ended; `None`: whichever it is.
    pub(crate) request: Option<Arc<Message>>,
    /// Of the request in its queue, if the server has said it.
    pub(crate) sequence: Option<u64>,
}

impl CancelOnDrop {
    /// `None`: there is nothing to end.
    pub(crate) fn new(pending: Option<Cancellation>, tasks: TaskTracker) -> Self {
        Self { pending, tasks }
    }

    /// The request is in its queue.
    pub(crate) fn queued(&mut self, sequence: u64) {
        if let Some(pending) = &mut self.pending {
            pending.sequence = Some(sequence);
        }
    }

    /// The command has ended, or is to continue.
    pub(crate) fn disarm(&mut self) {
        self.pending = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        // without a runtime nothing can be sent any more
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.tasks.spawn_on(pending.run(), &runtime);
        }
    }
}

impl Cancellation {
    async fn run(self) {
        for _ in 0..RETRIES {
            if self.try_once().await {
                return;
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Whether there is nothing more to be done.
    async fn try_once(&self) -> bool {
        // what nobody has put into a queue cannot be withdrawn
        if let Some(request) = &self.request
            && let Withdrawal::Withdrawn = self.nats.withdraw(&self.id).await
        {
            let sequence = match self.sequence {
                Some(sequence) => Ok(sequence),
                // it may be there: the answer to a repeat is the sequence of the first
                None => self.nats.publish(request).await,
            };
            if let Ok(sequence) = sequence {
                self.nats.remove(sequence).await;
            }
            return true;
        }
        let Ok(first) = self.nats.first(&self.id).await else { return false };
        let Some(first) = first else { return false };
        let is_other =
            |sent: &Arc<Message>| first.request.as_ref().is_some_and(|digest| !sent.digests.contains(digest));
        let Some(agent) = first.agent.filter(|_| !self.request.as_ref().is_some_and(is_other)) else { return true };
        let request = GetExecutionRequest { execution_id: self.id.clone() };
        match self.nats.ask::<SignalExecutionResponse>(&agent, "Cancel", &request, TIMEOUT).await {
            Ok(_) => true,
            Err(status) => !matches!(status.code(), Code::NotFound | Code::Unavailable | Code::ResourceExhausted),
        }
    }
}
