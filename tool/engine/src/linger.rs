//! What an execution has left running, after its end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tracing::error;

use crate::containment::KillOnDrop;
use crate::registry::Record;
use crate::shared::Shared;
use crate::streams::source::{self, Source};
use crate::wait::until;

/// Follows what an execution has left running, until `limit`, and takes what that writes. When the engine ends it stays.
pub(crate) async fn linger(
    shared: &Arc<Shared>,
    record: &Record,
    containment: &KillOnDrop,
    rests: Vec<Source>,
    (limit, grace): (Option<Instant>, Duration),
) {
    containment.outlive_call(&shared.journal, record.identity()).await;
    let rests = rests.into_iter().map(source::discard);
    let outlive = async {
        tokio::join!(containment.outlive(), futures_util::future::join_all(rests));
    };
    let limited = async {
        until(limit).await;
        containment.end(grace, shared.hurry.cancelled()).await;
        std::future::pending().await
    };
    let outlived = async {
        tokio::select! {
            () = outlive => true,
            never = limited => never,
            // they were asked to stay; only this executor ends
            () = shared.shutdown.cancelled() => false,
        }
    };
    let outlived = AssertUnwindSafe(outlived).catch_unwind().await;
    if outlived.is_err() {
        error!("what was left running is ended, by a fault of the agent");
        containment.end(Duration::ZERO, std::future::pending()).await;
    }
    if outlived.unwrap_or(true) {
        if let Some(checkpoint) = record.transcript.checkpoint() {
            checkpoint.set_lingers(false);
        }
        shared.registry.outlived(record);
        containment.release();
    }
}
