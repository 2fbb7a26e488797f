//! The deadlines of calls (grpc-timeout), counted from the moment their headers were received.
//!
//! One place keeps them, around all calls alike: [`Deadline::keep`]. What starts a command gives its deadline away with it
//! ([`Deadline::hand_over`]): from then on the engine keeps it, since there is a command to be ended and an end to report.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::stream::PollNext;
use hyper::HeaderMap;
use telexec_executor::{Command, ExecutorError};
use telexec_proto::convert::{command_from_wire, error_to_status};
use telexec_proto::timeout;
use telexec_proto::v1::ExecuteRequest;
use tonic::Status;

use crate::call::events::{EventStream, ended_by};
use crate::call::status::invalid;

/// When a call is to be answered. Clones are the same call's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadline {
    /// `None`: it may take for ever.
    at: Option<Instant>,
    handed_over: Arc<AtomicBool>,
}

impl Deadline {
    /// That of a call whose headers were received now.
    ///
    /// # Errors
    /// The header is malformed.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Status> {
        let received = Instant::now();
        let Some(value) = headers.get(timeout::HEADER) else { return Ok(Self::default()) };
        // so long a time that no clock holds it is no deadline
        let at = received.checked_add(timeout::parse(value.as_bytes()).map_err(invalid)?);
        Ok(Self { at, ..Self::default() })
    }

    /// The command that is asked for, to be ended at the deadline.
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

    /// The engine keeps it from now on.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// The answer, unless the deadline passes first: then the work at the answer is dropped.
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

    /// The same events, until the deadline: of calls that only follow a command.
    pub(crate) fn until(&self, events: EventStream) -> EventStream {
        match self.at {
            Some(_) => ended_by(events, passed(self.at), PollNext::Right),
            None => events,
        }
    }
}

/// The status of a deadline, once it has passed.
async fn passed(at: Option<Instant>) -> Status {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
    error_to_status(&ExecutorError::DeadlineExceeded)
}
