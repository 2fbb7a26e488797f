//! The connection to a NATS server, and what is asked there: see integrations/nats/README.md for the messages.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_ID};
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::context::{ContextBuilder, PublishErrorKind};
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use async_nats::{Client, Event, HeaderMap, Request, RequestErrorKind};
use bytes::Bytes;
use futures_util::TryStreamExt;
use prost::Message as _;
use telexec_executor::ExecutorError;
use telexec_executor::text::root_cause;
use telexec_proto::convert::{error_from_status, error_to_status};
use telexec_proto::v1::ExecuteRequest;
use tokio::sync::watch;
use tonic::{Code, Status};
use tracing::debug;

use crate::events::{First, status_of};
use crate::headers::{self, CONTENT_TYPE, EXPIRES, METHOD, NONCE};
use crate::payload::Format;
use crate::settings::{BadFile, Settings};
use crate::signature::{Signer, request_digest};
use crate::subjects::{self, LABELS, OUT_STREAM, RUN_STREAM, token};

/// Messages that are on their way to a reader, each of 1 MiB at most unless the server allows more.
const MAX_BATCH: i64 = 16;
/// What a message may have beside its payload.
const OVERHEAD_BYTES: usize = 4096;
/// A request about an execution is good for as long.
const REQUEST_AGE: Duration = Duration::from_secs(60);
/// A server that does not say within it that something is stored is sent it again.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
const STORE_ATTEMPTS: u32 = 5;

/// Why a NATS server cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// Of the settings.
    #[error(transparent)]
    File(#[from] BadFile),
    /// It cannot be reached, or does not accept the credentials.
    #[error("the NATS server {server} cannot be used")]
    Connect {
        /// Its URL.
        server: String,
        /// Why.
        source: async_nats::ConnectError,
    },
    /// The queue of requests cannot be read.
    #[error("cannot list the agents of the NATS server {server}: {reason}")]
    Agents {
        /// Its URL.
        server: String,
        /// Why.
        reason: String,
    },
}

/// A connection to a NATS server; after it was lost, it is made again.
#[derive(Debug)]
pub struct Nats {
    client: Client,
    context: Context,
    signer: Option<Signer>,
    server: String,
    /// Changes with each connection: what was asked for on the one before is forgotten.
    pub(crate) connected: watch::Receiver<()>,
}

/// A request to run something, as a message.
pub(crate) struct Message {
    subject: String,
    headers: HeaderMap,
    payload: Bytes,
    /// What tells it from others with its ID: see [`request_digest`].
    pub(crate) digests: Digests,
}

/// That of a request whose caller is not known, and that of one whose caller is this side.
pub(crate) type Digests = [String; 2];

/// What became of a withdrawal.
pub(crate) enum Withdrawal {
    /// The request will not be run.
    Withdrawn,
    /// An agent has taken it before.
    TooLate,
    /// The server did not say.
    Unknown,
}

impl Nats {
    /// Connects to `url`, such as `nats://localhost:4222`. `signing_key` is a file with an nkey seed that messages are
    /// signed with, for agents that accept only those (`telexec-nats --caller`).
    ///
    /// # Errors
    /// See [`NatsError`].
    pub async fn connect(
        url: &str,
        settings: &Settings,
        signing_key: Option<&Path>,
        timeout: Duration,
    ) -> Result<Self, NatsError> {
        // the only one that is built in: whoever sets it first, it is this one
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let signer = signing_key.map(Signer::load).transpose()?;
        let (connections, connected) = watch::channel(());
        let options = settings.options().await?.name("telexec").connection_timeout(timeout);
        let options = options.event_callback(move |event| {
            debug!("NATS: {event}");
            if matches!(event, Event::Connected) {
                let _ = connections.send(());
            }
            std::future::ready(())
        });
        let connect = |source| NatsError::Connect { server: url.to_owned(), source };
        let client = options.connect(url).await.map_err(connect)?;
        let context = ContextBuilder::new().ack_timeout(STORE_TIMEOUT).build(client.clone());
        Ok(Self { client, context, signer, server: url.to_owned(), connected })
    }

    /// The names of the agents with this label, also of those that are away, sorted.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub async fn agents(&self, label: &str) -> Result<Vec<String>, NatsError> {
        let failed = |error: &(dyn std::error::Error + 'static)| NatsError::Agents {
            server: self.server.clone(),
            reason: format!("{}; has a telexec-nats used it, and has it JetStream?", root_cause(error)),
        };
        let stream = self.stream(RUN_STREAM).await.map_err(|error| failed(&*error))?;
        let has_label = |labels: &String| labels.split(',').any(|one| one == label);
        let mut names = Vec::new();
        let mut consumers = stream.consumers();
        while let Some(consumer) = consumers.try_next().await.map_err(|error| failed(&error))? {
            if consumer.config.metadata.get(LABELS).is_some_and(has_label) {
                names.extend(subjects::agent_of(&consumer.name).and_then(|name| token(name).ok()));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The error of an agent that has not got a request, or cannot have.
    pub(crate) fn unreachable(&self, agent: &str, cause: &str) -> Status {
        let endpoint = format!("{}/{agent}", self.server.replace("tls://", "nats+tls://"));
        error_to_status(&ExecutorError::Unreachable { endpoint, source: cause.into() })
    }

    /// Asks about executions, or the agent.
    ///
    /// # Errors
    /// What the agent answers, or that it does not.
    pub(crate) async fn ask<A: prost::Message + Default>(
        &self,
        agent: &str,
        method: &str,
        request: &impl prost::Message,
        timeout: Duration,
    ) -> Result<A, Status> {
        let (subject, payload) = (subjects::control(agent), request.encode_to_vec());
        self.check_size(payload.len())?;
        let mut headers = HeaderMap::new();
        headers::set(&mut headers, METHOD, method);
        headers::set(&mut headers, CONTENT_TYPE, Format::Binary.content_type());
        headers::set(&mut headers, NONCE, &uuid::Uuid::new_v4().to_string());
        self.sign(&subject, &mut headers, &payload, REQUEST_AGE)?;
        let request = Request::new().headers(headers).payload(payload.into()).timeout(Some(timeout));
        let answer = self.client.send_request(subject, request).await.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => {
                self.unreachable(agent, "no agent of this name is connected to the NATS server")
            }
            // it may have been done
            RequestErrorKind::TimedOut => Status::unavailable(format!("{agent} did not answer within {timeout:?}")),
            _ => Status::unavailable(format!("{agent} cannot be asked: {error}")),
        })?;
        if let Some(status) = answer.headers.as_ref().and_then(status_of) {
            // the other side names its own endpoint
            return Err(match error_from_status(&status) {
                ExecutorError::Unreachable { source, .. } => self.unreachable(agent, &source.to_string()),
                _ => status,
            });
        }
        A::decode(answer.payload).map_err(|error| Status::internal(format!("{agent} answered {method}: {error}")))
    }

    /// A request to an agent or a label, which is not started later than after `within`.
    ///
    /// # Errors
    /// It is too long.
    pub(crate) fn message(&self, address: &str, request: &ExecuteRequest, within: Duration) -> Result<Message, Status> {
        let (subject, payload) = (subjects::run(address), Bytes::from(request.encode_to_vec()));
        self.check_size(payload.len())?;
        let key = self.signer.as_ref().map(Signer::key).unwrap_or_default();
        let digests = [request_digest(&payload, ""), request_digest(&payload, &key)];
        let mut headers = HeaderMap::new();
        headers::set(&mut headers, CONTENT_TYPE, Format::Binary.content_type());
        // another request with this ID is another message, and refused by its agent
        let [digest, _] = &digests;
        headers.insert(NATS_MESSAGE_ID, &*format!("{}/{address}/{digest}", request.execution_id));
        self.sign(&subject, &mut headers, &payload, within)?;
        Ok(Message { subject, headers, payload, digests })
    }

    /// Adds a request to its queue; its sequence there.
    ///
    /// # Errors
    /// It is not in the queue ([`ExecutorError::Unreachable`]), or perhaps.
    pub(crate) async fn publish(&self, message: &Message) -> Result<u64, Status> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.store(&message.subject, &message.headers, &message.payload).await {
                Ok(sequence) => return Ok(sequence),
                // a repeat is dropped, by its message id
                Err(PublishErrorKind::TimedOut) if attempt < STORE_ATTEMPTS => {}
                Err(PublishErrorKind::StreamNotFound) => {
                    let cause = format!(
                        "there is no stream {RUN_STREAM}: no telexec-nats has used this NATS server, or it has no JetStream"
                    );
                    return Err(self.unreachable(&message.subject, &cause));
                }
                Err(error) => {
                    let text = format!("the NATS server {} has not taken the request: {error}", self.server);
                    return Err(Status::unavailable(text));
                }
            }
        }
    }

    /// Has a request that no agent has taken never be run: this takes the place of its first event.
    pub(crate) async fn withdraw(&self, id: &str) -> Withdrawal {
        let mut headers = HeaderMap::new();
        headers::set(&mut headers, headers::STATUS, &i32::from(Code::Cancelled).to_string());
        headers::set(&mut headers, headers::MESSAGE, "its caller withdrew it before it was started");
        headers.insert(NATS_MESSAGE_ID, &*format!("{id}/withdrawn"));
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, "0");
        match self.store(&subjects::out(id), &headers, &Bytes::new()).await {
            Ok(_) => Withdrawal::Withdrawn,
            Err(PublishErrorKind::WrongLastSequence) => Withdrawal::TooLate,
            Err(_) => Withdrawal::Unknown,
        }
    }

    /// Removes a request from its queue that was withdrawn; where that is not permitted, its agent does.
    pub(crate) async fn remove(&self, sequence: u64) {
        let Ok(stream) = self.stream(RUN_STREAM).await else { return };
        let _ = tokio::time::timeout(STORE_TIMEOUT, stream.delete_message(sequence)).await;
    }

    async fn store(&self, subject: &str, headers: &HeaderMap, payload: &Bytes) -> Result<u64, PublishErrorKind> {
        let published = self.context.publish_with_headers(subject.to_owned(), headers.clone(), payload.clone()).await;
        match published {
            Ok(stored) => stored.await.map(|stored| stored.sequence).map_err(|error| error.kind()),
            Err(error) => Err(error.kind()),
        }
    }

    /// The messages of an execution, after that with this sequence.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) async fn events(&self, id: &str, after: u64) -> Result<Ordered, Status> {
        let config = OrderedConfig {
            // with one, permissions can be for its subject
            name: Some(format!("telexec-{}", uuid::Uuid::new_v4().simple())),
            filter_subject: subjects::out(id),
            deliver_policy: match after {
                0 => DeliverPolicy::All,
                after => DeliverPolicy::ByStartSequence { start_sequence: after + 1 },
            },
            max_batch: MAX_BATCH,
            ..OrderedConfig::default()
        };
        let reading = async { Ok(self.stream(OUT_STREAM).await?.create_consumer(config).await?.messages().await?) };
        reading.await.map_err(|error: async_nats::Error| self.unreadable(&error))
    }

    /// What the first message of an execution says; `None`: there is none, or not any more.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) async fn first(&self, id: &str) -> Result<Option<First>, Status> {
        let stream = self.stream(OUT_STREAM).await.map_err(|error| self.unreadable(&error))?;
        match stream.get_first_raw_message_by_subject(subjects::out(id), 1).await {
            Ok(message) => Ok(Some(First::of(&message.headers))),
            Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => Ok(None),
            Err(error) => Err(self.unreadable(&error)),
        }
    }

    fn unreadable(&self, error: &dyn std::fmt::Display) -> Status {
        Status::unavailable(format!("events cannot be read from the NATS server {}: {error}", self.server))
    }

    async fn stream(&self, name: &str) -> Result<Stream<()>, async_nats::Error> {
        Ok(self.context.get_stream_no_info(name).await?)
    }

    /// Says until when it is good, and who sent it, if there is a key.
    fn sign(&self, subject: &str, headers: &mut HeaderMap, payload: &[u8], good_for: Duration) -> Result<(), Status> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // up to the next second: never less
        let expires = now.saturating_add(good_for).as_secs() + 1;
        headers::set(headers, EXPIRES, &expires.to_string());
        match &self.signer {
            Some(signer) => signer.sign(subject, headers, payload).map_err(|error| Status::internal(error.to_string())),
            None => Ok(()),
        }
    }

    fn check_size(&self, bytes: usize) -> Result<(), Status> {
        let most = self.client.server_info().max_payload;
        if bytes + OVERHEAD_BYTES <= most {
            return Ok(());
        }
        let text = format!("the request has {bytes} bytes, and the NATS server takes messages of {most} at most");
        Err(Status::invalid_argument(text))
    }
}
