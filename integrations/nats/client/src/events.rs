//! What the messages of an execution say.

use async_nats::HeaderMap;
use async_nats::jetstream::Message;
use telexec_proto::v1::{ExecutionEvent, execution_event};
use tonic::{Code, Status};

use crate::headers::{self, AGENT, DETAILS, MESSAGE, REQUEST, STATE, STATUS};
use crate::payload::Format;
use crate::subjects::token;

/// The first message.
pub(crate) struct First {
    /// The agent that has it; `None`: it was withdrawn.
    pub(crate) agent: Option<String>,
    /// Which request it was: see [`request_digest`](crate::signature::request_digest).
    pub(crate) request: Option<String>,
}

/// A message.
pub(crate) enum Item {
    /// An agent has it, and may have started it.
    Claimed(First),
    Event(Box<ExecutionEvent>),
    /// The last: there is no further event.
    Failed(Status),
    /// It was not written by telexec-nats, or by another version.
    Malformed(Status),
}

impl First {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let header = |name| headers::get(headers, name).map(str::to_owned);
        // it becomes a part of subjects
        let agent = header(AGENT).and_then(|agent| token(&agent).ok());
        Self { agent, request: header(REQUEST) }
    }
}

impl Item {
    pub(crate) fn of(message: &Message) -> Self {
        let none = HeaderMap::new();
        let headers = message.headers.as_ref().unwrap_or(&none);
        if let Some(status) = status_of(headers) {
            return Self::Failed(status);
        }
        if headers::get(headers, STATE).is_some() {
            return Self::Claimed(First::of(headers));
        }
        let event = Format::of(headers).and_then(|format| format.decode("ExecutionEvent", &message.payload));
        match event {
            Ok(event) => Self::Event(Box::new(event)),
            Err(error) => Self::Malformed(Status::internal(format!("an event is malformed: {error}"))),
        }
    }
}

/// The status in headers.
pub(crate) fn status_of(headers: &HeaderMap) -> Option<Status> {
    let code = headers::get(headers, STATUS)?;
    let code = code.parse().map_or(Code::Unknown, Code::from_i32);
    let message = headers::get(headers, MESSAGE).unwrap_or_default();
    let details = headers::get(headers, DETAILS).and_then(headers::from_base64).unwrap_or_default();
    Some(Status::with_details(code, message, details.into()))
}

/// Whether nothing comes after it.
pub(crate) fn is_last(event: &ExecutionEvent) -> bool {
    use execution_event::Event;
    matches!(event.event, Some(Event::Exited(_) | Event::Promoted(_) | Event::AlreadyRunning(_)))
}

/// The part of an event that is wanted from a position on.
pub(crate) fn after(mut event: ExecutionEvent, position: u64) -> Option<ExecutionEvent> {
    use execution_event::Event;
    let skip = position.saturating_sub(event.position);
    match &mut event.event {
        Some(Event::Stdout(data) | Event::Stderr(data)) => {
            let skip = usize::try_from(skip).ok().filter(|skip| *skip < data.len())?;
            *data = data.slice(skip..);
            event.position += skip as u64;
            Some(event)
        }
        Some(Event::Gap(gap)) if gap.resume_position <= position => None,
        _ => Some(event),
    }
}
