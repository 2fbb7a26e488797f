//! How many calls each caller may have at once, over all of its connections.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};
use telexec_executor::ExecutorError;
use telexec_proto::convert::error_to_status;
use tonic::Status;

use crate::identity::Identity;
use crate::request_memory::Held;

/// Counts the calls of each identity; its clones count together.
#[derive(Clone)]
pub(crate) struct Calls(Arc<Shared>);

struct Shared {
    most: u32,
    each: Mutex<HashMap<Identity, u32>>,
}

/// A call that is counted, until it is dropped.
pub(crate) struct Counted {
    calls: Calls,
    identity: Identity,
}

impl Calls {
    pub(crate) fn new(most: NonZeroU32) -> Self {
        Self(Arc::new(Shared { most: most.get(), each: Mutex::default() }))
    }

    /// Counts a call.
    ///
    /// # Errors
    /// The caller has as many as one may have.
    pub(crate) fn count(&self, identity: &Identity) -> Result<Counted, Status> {
        let mut each = self.each();
        let count = each.entry(identity.clone()).or_default();
        if *count >= self.0.most {
            let reason =
                format!("{identity} has {count} calls at once already, which is the limit (max_calls_per_identity)");
            return Err(error_to_status(&ExecutorError::Exhausted { reason, retry_after: None }));
        }
        *count += 1;
        Ok(Counted { calls: self.clone(), identity: identity.clone() })
    }

    fn each(&self) -> MutexGuard<'_, HashMap<Identity, u32>> {
        self.0.each.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut each = self.calls.each();
        match each.get_mut(&self.identity) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(each.remove(&self.identity)),
        }
    }
}

/// The body of an answer. Its call, and what that holds, are counted until it was sent, or given up.
pub(crate) struct Answer<B> {
    body: B,
    /// `None`: it was refused.
    _counted: Option<Counted>,
    /// What it holds of the memory; `None`: its request was not read.
    _held: Option<Arc<Held>>,
}

/// The answer to a call.
pub(crate) fn answer<B>(
    response: Response<B>,
    counted: Option<Counted>,
    held: Option<Arc<Held>>,
) -> Response<Answer<B>> {
    response.map(|body| Answer { body, _counted: counted, _held: held })
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
