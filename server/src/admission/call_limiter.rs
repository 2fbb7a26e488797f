//! Limits the concurrent calls of each caller, over all of its connections.

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
use crate::request_memory::Reservation;

/// Counts the calls of each identity; clones share the counts.
#[derive(Clone)]
pub(crate) struct CallLimiter(Arc<Shared>);

struct Shared {
    max: u32,
    each: Mutex<HashMap<Identity, u32>>,
}

/// One counted call, until it is dropped.
pub(crate) struct CallPermit {
    limiter: CallLimiter,
    identity: Identity,
}

impl CallLimiter {
    pub(crate) fn new(max: NonZeroU32) -> Self {
        Self(Arc::new(Shared { max: max.get(), each: Mutex::default() }))
    }

    /// Counts a call.
    ///
    /// # Errors
    /// The caller has reached the limit.
    pub(crate) fn acquire(&self, identity: &Identity) -> Result<CallPermit, Status> {
        let mut each = self.each();
        let count = each.entry(identity.clone()).or_default();
        if *count >= self.0.max {
            let reason = format!("{identity} already has {count} calls open, the limit (max_calls_per_identity)");
            return Err(error_to_status(&ExecutorError::Exhausted { reason, retry_after: None }));
        }
        *count += 1;
        Ok(CallPermit { limiter: self.clone(), identity: identity.clone() })
    }

    fn each(&self) -> MutexGuard<'_, HashMap<Identity, u32>> {
        self.0.each.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut each = self.limiter.each();
        match each.get_mut(&self.identity) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(each.remove(&self.identity)),
        }
    }
}

/// The body of a response. Its call and the memory of that are counted until the body was sent or dropped.
pub(crate) struct CountedBody<B> {
    body: B,
    /// `None`: the call was refused.
    _permit: Option<CallPermit>,
    /// `None`: the request was not read.
    _reservation: Option<Arc<Reservation>>,
}

/// Keeps the counts of a call until its response was sent.
pub(crate) fn count_until_sent<B>(
    response: Response<B>,
    permit: Option<CallPermit>,
    reservation: Option<Arc<Reservation>>,
) -> Response<CountedBody<B>> {
    response.map(|body| CountedBody { body, _permit: permit, _reservation: reservation })
}

impl<B: Body + Unpin> Body for CountedBody<B> {
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
