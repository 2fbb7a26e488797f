//! The deadlines of calls (grpc-timeout), counted from the moment their headers were received.
//!
//! [`Deadline::keep`] enforces them for all calls alike. A call that starts a command hands its deadline over to the engine
//! ([`Deadline::hand_over`]), which ends the command and reports that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::stream::PollNext;
use hyper::HeaderMap;
use telexec_engine::ConnectionState;
use telexec_executor::{Command, ExecutorError};
use telexec_proto::convert::{command_from_wire, error_to_status};
use telexec_proto::timeout;
use telexec_proto::v1::ExecuteRequest;
use tonic::Status;

use crate::call::events::{Responses, ended_by};
use crate::call::status::invalid;

/// The deadline of one call; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadline {
    /// `None`: no deadline.
    at: Option<Instant>,
    handed_over: Arc<AtomicBool>,
}

impl Deadline {
    /// From the headers of a call received now.
    ///
    /// # Errors
    /// The header is malformed.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Status> {
        let received = Instant::now();
        let Some(value) = headers.get(timeout::HEADER) else { return Ok(Self::default()) };
        // a time that overflows the clock is no deadline
        let at = received.checked_add(timeout::parse(value.as_bytes()).map_err(invalid)?);
        Ok(Self { at, ..Self::default() })
    }

    /// The requested command, with this deadline.
    ///
    /// # Errors
    /// It is malformed, or the deadline has passed already.
    pub(crate) fn command(&self, request: ExecuteRequest) -> Result<Command, Status> {
        let command = command_from_wire(request, self.at).map_err(invalid)?;
        match self.at {
            Some(at) if at <= Instant::now() => Err(error_to_status(&ExecutorError::DeadlineExceeded)),
            _ => Ok(command),
        }
    }

    /// From now on the engine enforces it.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// The response, unless the deadline passes first: then `answer` is dropped.
    ///
    /// # Errors
    /// The deadline has passed, and was not handed over.
    pub(crate) async fn keep<T>(&self, answer: impl Future<Output = T>) -> Result<T, Status> {
        let mut answer = std::pin::pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => return Ok(answer),
            status = passed(self.at) => if !self.handed_over.load(Ordering::Relaxed) {
                return Err(status);
            },
        }
        Ok(answer.await)
    }

    /// Waits for it, and returns its status; never, if there is none.
    pub(crate) async fn passed(&self) -> Status {
        passed(self.at).await
    }

    /// After a lost connection too, a command waits for a call that only follows it no longer than this.
    pub(crate) fn outlive(&self, connection: &ConnectionState) {
        if let Some(at) = self.at {
            connection.wait_until(move || tokio::time::sleep_until(at.into()).boxed());
        }
    }

    /// The same responses until the deadline, for calls that have not handed it over.
    pub(crate) fn until<T: Send + 'static>(&self, responses: Responses<T>) -> Responses<T> {
        match self.at {
            Some(_) => ended_by(responses, passed(self.at), PollNext::Right),
            None => responses,
        }
    }
}

/// Waits for the deadline, and returns its status.
async fn passed(at: Option<Instant>) -> Status {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
    error_to_status(&ExecutorError::DeadlineExceeded)
}
