//! The events of one execution, as messages of its subject.
//!
//! Each is stored after the one before it or not at all, and once, however often it is sent. So what is there is exact, and
//! whoever looks at the last message knows how far it is, also after this program was killed.

use async_nats::HeaderMap;
use async_nats::header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{LastRawMessageError, LastRawMessageErrorKind};
use bytes::Bytes;
use telexec_executor::{Event, ExecutionId, ExecutionInfo};
use telexec_proto::convert::{already_running_to_wire, event_to_wire};
use telexec_proto::v1::{ExecutionEvent, execution_event};
use tracing::warn;

use crate::agents::Pause;
use crate::server::Server;
use telexec_nats_client::headers::{self, AGENT, CONTENT_TYPE, DETAILS, MESSAGE, REQUEST, STATE, STATUS};
use telexec_nats_client::payload::{Format, Malformed};
use telexec_nats_client::subjects;

const EVENT: &str = "ExecutionEvent";
const CLAIMED: &str = "claimed";
/// What headers, and the message around the output, take at most.
const OVERHEAD_BYTES: usize = 8192;
/// Longer details of an error are left out.
const MAX_DETAILS_BYTES: usize = 4096;

/// Writes to the subject of one execution.
pub(crate) struct Outlet<'a> {
    server: &'a Server,
    id: ExecutionId,
    format: Format,
    /// The agent's name, and the request: see [`Found`].
    agent: &'a str,
    request: &'a str,
    /// Of this writer's messages.
    nonce: String,
    count: u64,
    /// Of the last message of the subject; 0: there is none.
    sequence: u64,
}

/// How far an execution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The agent was given it, and may have started it.
    Claimed,
    /// Its events are there up to this position.
    Started(u64),
    /// Its end is told.
    Ended,
}

/// What is there, as the first and the last message say.
pub(crate) struct Found {
    /// The agent that has it; `None`: that is no longer kept.
    pub(crate) agent: Option<String>,
    /// The SHA-256 of the request, and who sent it; `None`: that is no longer kept.
    pub(crate) request: Option<String>,
    pub(crate) progress: Progress,
}

/// Why nothing more is written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unwritable {
    #[error("another program publishes the events of this execution")]
    Superseded,
    #[error("an event is longer than the NATS server's max_payload")]
    TooLong,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl<'a> Outlet<'a> {
    pub(crate) fn new(server: &'a Server, id: ExecutionId, format: Format, agent: &'a str, request: &'a str) -> Self {
        let nonce = uuid::Uuid::now_v7().simple().to_string();
        Self { server, id, format, agent, request, nonce, count: 0, sequence: 0 }
    }

    /// What is there; continues after it.
    ///
    /// # Errors
    /// It was not written by this program.
    pub(crate) async fn find(&mut self) -> Result<Option<Found>, Malformed> {
        let Some(last) = self.last().await else {
            self.sequence = 0;
            return Ok(None);
        };
        self.sequence = last.sequence;
        let progress = progress(&last)?;
        let first = self.first().await.unwrap_or(last);
        let header = |name| headers::get(&first.headers, name).map(str::to_owned);
        Ok(Some(Found { agent: header(AGENT), request: header(REQUEST), progress }))
    }

    /// Says that the agent may start it from now on.
    pub(crate) async fn claim(&mut self) -> Result<(), Unwritable> {
        let mut headers = HeaderMap::new();
        headers::set(&mut headers, STATE, CLAIMED);
        self.store(headers, self.format.encode(EVENT, &ExecutionEvent::default())?).await
    }

    /// Says what has happened. Output that is too long for one message is sent in several.
    pub(crate) async fn event(&mut self, event: Event) -> Result<(), Unwritable> {
        let Event::Output(mut output) = event else {
            return self.wire(event_to_wire(event, &self.id)).await;
        };
        let most = self.most_output();
        while !output.data.is_empty() {
            let data = output.data.split_to(most.min(output.data.len()));
            let piece = telexec_executor::Output { data, ..output.clone() };
            output.position += piece.data.len() as u64;
            self.wire(event_to_wire(Event::Output(piece), &self.id)).await?;
        }
        Ok(())
    }

    /// JSON has output in base64.
    fn most_output(&self) -> usize {
        let room = self.server.max_payload().saturating_sub(OVERHEAD_BYTES);
        let most = match self.format {
            Format::Binary => room,
            Format::Json => room / 4 * 3,
        };
        most.max(1024)
    }

    /// Says why there is no end to be told of: the last message.
    pub(crate) async fn failed(&mut self, status: &tonic::Status) -> Result<(), Unwritable> {
        let mut headers = HeaderMap::new();
        set_status(&mut headers, status);
        self.store(headers, Bytes::new()).await
    }

    /// The same command runs already: the last message, too.
    pub(crate) async fn runs_already(&mut self, info: ExecutionInfo) -> Result<(), Unwritable> {
        self.wire(already_running_to_wire(info)).await
    }

    async fn wire(&mut self, event: ExecutionEvent) -> Result<(), Unwritable> {
        let payload = self.format.encode(EVENT, &event)?;
        self.store(HeaderMap::new(), payload).await
    }

    /// Returns once it is stored, however long the server is away.
    async fn store(&mut self, mut headers: HeaderMap, payload: Bytes) -> Result<(), Unwritable> {
        let message_id = format!("{}/{}/{}", self.id, self.nonce, self.count);
        self.count += 1;
        headers::set(&mut headers, CONTENT_TYPE, self.format.content_type());
        if self.sequence == 0 {
            headers::set(&mut headers, AGENT, self.agent);
            headers::set(&mut headers, REQUEST, self.request);
        }
        headers.insert(NATS_MESSAGE_ID, &*message_id);
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, &*self.sequence.to_string());
        let mut pause = Pause::default();
        loop {
            match self.publish(headers.clone(), payload.clone()).await {
                Ok(sequence) => {
                    self.sequence = sequence;
                    return Ok(());
                }
                // perhaps this one, of which it was not heard that it is stored
                Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                    let last = self
                        .last()
                        .await
                        .filter(|last| last.headers.get(NATS_MESSAGE_ID).is_some_and(|id| id.as_str() == message_id));
                    self.sequence = last.ok_or(Unwritable::Superseded)?.sequence;
                    return Ok(());
                }
                Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => return Err(Unwritable::TooLong),
                Err(error) if pause.is_long() => {
                    warn!(id = %self.id, error = %crate::chain(&error), "an event cannot be stored: trying again");
                }
                Err(_) => {}
            }
            pause.wait().await;
        }
    }

    async fn publish(&self, headers: HeaderMap, payload: Bytes) -> Result<u64, PublishError> {
        let subject = subjects::out(self.id.as_str());
        Ok(self.server.context.publish_with_headers(subject, headers, payload).await?.await?.sequence)
    }

    /// `None`: by now it is gone.
    async fn first(&self) -> Option<StreamMessage> {
        let subject = subjects::out(self.id.as_str());
        self.read(|| self.server.out.get_first_raw_message_by_subject(&subject, 1)).await
    }

    async fn last(&self) -> Option<StreamMessage> {
        let subject = subjects::out(self.id.as_str());
        self.read(|| self.server.out.get_last_raw_message_by_subject(&subject)).await
    }

    /// Tries until the server answers. `None`: there is none.
    async fn read<F>(&self, mut get: impl FnMut() -> F) -> Option<StreamMessage>
    where
        F: Future<Output = Result<StreamMessage, LastRawMessageError>>,
    {
        let mut pause = Pause::default();
        loop {
            match get().await {
                Ok(message) => return Some(message),
                Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => return None,
                Err(error) if pause.is_long() => {
                    warn!(id = %self.id, error = %crate::chain(&error), "events cannot be read: trying again");
                }
                Err(_) => {}
            }
            pause.wait().await;
        }
    }
}

/// What the last message says.
fn progress(last: &StreamMessage) -> Result<Progress, Malformed> {
    use execution_event::Event as Wire;
    if headers::get(&last.headers, STATUS).is_some() {
        return Ok(Progress::Ended);
    }
    if headers::get(&last.headers, STATE).is_some() {
        return Ok(Progress::Claimed);
    }
    let event: ExecutionEvent = Format::of(&last.headers)?.decode(EVENT, &last.payload)?;
    Ok(match event.event {
        Some(Wire::Stdout(data) | Wire::Stderr(data)) => {
            Progress::Started(event.position.saturating_add(data.len() as u64))
        }
        Some(Wire::Gap(gap)) => Progress::Started(gap.resume_position),
        Some(Wire::Started(_)) | None => Progress::Started(0),
        Some(Wire::Exited(_) | Wire::Promoted(_) | Wire::AlreadyRunning(_)) => Progress::Ended,
    })
}

/// The headers of what failed.
pub(crate) fn set_status(headers: &mut HeaderMap, status: &tonic::Status) {
    headers::set(headers, STATUS, &i32::from(status.code()).to_string());
    headers::set(headers, MESSAGE, status.message());
    if !status.details().is_empty() && status.details().len() <= MAX_DETAILS_BYTES {
        headers.insert(DETAILS, &*headers::to_base64(status.details()));
    }
}
