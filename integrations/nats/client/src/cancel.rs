//! Ends commands whose callers have gone.

use std::sync::Arc;
use std::time::Duration;

use telexec_proto::v1::{GetExecutionRequest, SignalExecutionResponse};
use tokio_util::task::TaskTracker;
use tonic::Code;

use crate::nats::{Nats, Withdrawal};

/// Of an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// What an agent has taken and not started yet, it does not know.
const RETRY_DELAY: Duration = Duration::from_millis(100);
const RETRIES: u32 = 100;

/// Withdraws a request, or ends its command, when it is dropped.
pub(crate) struct CancelOnDrop {
    pending: Option<Cancellation>,
    tasks: TaskTracker,
}

/// What is to be ended.
#[derive(Clone)]
pub(crate) struct Cancellation {
    pub(crate) nats: Arc<Nats>,
    pub(crate) id: String,
}

impl CancelOnDrop {
    /// `None`: there is nothing to end.
    pub(crate) fn new(pending: Option<Cancellation>, tasks: TaskTracker) -> Self {
        Self { pending, tasks }
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
        if let Withdrawal::Withdrawn = self.nats.withdraw(&self.id).await {
            return;
        }
        let request = GetExecutionRequest { execution_id: self.id.clone() };
        for _ in 0..RETRIES {
            let Ok(Some(first)) = self.nats.first(&self.id).await else { return };
            let Some(agent) = first.agent else { return };
            let asked = self.nats.ask::<SignalExecutionResponse>(&agent, "Cancel", &request, TIMEOUT).await;
            match asked {
                Err(status) if status.code() == Code::NotFound => tokio::time::sleep(RETRY_DELAY).await,
                _ => return,
            }
        }
    }
}
