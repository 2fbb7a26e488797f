//! The NATS server: its streams, which are made where they are not there yet, and the consumers of the queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::context::{ContextBuilder, PublishError, PublishErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, Stream};
use async_nats::{Client, ConnectOptions, Event, HeaderMap, ServerAddr};
use bytes::Bytes;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::Error;
use crate::agents::Pause;
use crate::args::Args;
use crate::run;
use telexec_nats_client::headers::{self, REASON, SUBJECT};
use telexec_nats_client::subjects::{self, LABELS, label_address};
use telexec_nats_client::{Password, Settings};

/// A request that nobody says anything of for so long is delivered again.
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(15);
/// A server that does not say within it that something is stored is sent it again.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Equal message ids within this time are one request.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(10 * 60);
/// Events are kept for as long.
const OUT_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
const DEAD_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// What the streams hold; one that is full accepts nothing more, but for that of dead requests.
const RUN_BYTES: i64 = 1024 * 1024 * 1024;
const OUT_BYTES: i64 = 4 * 1024 * 1024 * 1024;
const DEAD_BYTES: i64 = 256 * 1024 * 1024;
/// Each agent is a consumer of requests, each reader one of events. Without a number some servers allow 1,000.
const MAX_CONSUMERS: i32 = 100_000;
/// Beyond what a request needs that can be read: one that cannot be parsed at all must not come for ever.
const MAX_DELIVER: i64 = run::MAX_DELIVERIES + 20;
/// Messages that have arrived and are still to be looked at.
const MAX_ARRIVED: usize = 8192;

/// The connection, and the streams.
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) context: Context,
    /// Where events are.
    pub(crate) out: Stream,
    /// Changes with each connection.
    pub(crate) connected: watch::Receiver<()>,
    run: Stream,
    name: String,
    labels: Vec<String>,
}

/// A consumer, and what it consumes.
pub(crate) struct Queue {
    pub(crate) consumer: PullConsumer,
    pub(crate) kind: QueueKind,
}

/// Whose requests they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// This agent's.
    Own,
    /// Those of whoever has this label.
    Label(String),
}

impl Server {
    pub(crate) async fn connect((options, servers): Nats, name: &str, labels: &[String]) -> Result<Self, Error> {
        let (connections, connected) = watch::channel(());
        let client = observed(options, connections).name(format!("telexec-nats {name}")).connect(servers).await?;
        let context = ContextBuilder::new().ack_timeout(STORE_TIMEOUT).build(client.clone());
        let (run, out) = streams(&context).await;
        Ok(Self { client, context, out, connected, run, name: name.to_owned(), labels: labels.to_vec() })
    }

    /// Makes what somebody has deleted.
    pub(crate) async fn repair(&self, kind: QueueKind, concurrency: u16) -> Queue {
        streams(&self.context).await;
        self.queue(kind, concurrency).await
    }

    /// For how long events are kept; `None`: for ever.
    pub(crate) fn events_age(&self) -> Option<Duration> {
        Some(self.out.cached_info().config.max_age).filter(|age| !age.is_zero())
    }

    /// The consumers of this agent's queues.
    pub(crate) async fn queues(&self, args: &Args) -> Vec<Queue> {
        let mut queues = vec![self.queue(QueueKind::Own, args.concurrency).await];
        for label in &args.labels {
            queues.push(self.queue(QueueKind::Label(label.clone()), args.concurrency).await);
        }
        queues
    }

    async fn queue(&self, kind: QueueKind, concurrency: u16) -> Queue {
        let (consumer, address) = match &kind {
            QueueKind::Own => (subjects::consumer(&self.name), self.name.clone()),
            QueueKind::Label(label) => (format!("label-{label}"), label_address(label)),
        };
        let config = pull::Config {
            durable_name: Some(consumer.clone()),
            filter_subject: subjects::run(&address),
            ack_wait: ACK_WAIT,
            max_deliver: MAX_DELIVER,
            max_ack_pending: match kind {
                QueueKind::Own => i64::from(concurrency).saturating_mul(2),
                // of all agents together
                QueueKind::Label(_) => 4096,
            },
            metadata: match kind {
                QueueKind::Own => [(LABELS.to_owned(), self.labels.join(","))].into(),
                QueueKind::Label(_) => HashMap::new(),
            },
            ..pull::Config::default()
        };
        let consumer = insist("the queue", || self.run.create_consumer(config.clone())).await;
        Queue { consumer, kind }
    }

    /// The longest payload of a message, with its headers.
    pub(crate) fn max_payload(&self) -> usize {
        self.client.server_info().max_payload
    }

    /// Keeps a request that cannot be run, with the reason.
    pub(crate) async fn bury(&self, subject: &str, headers: Option<&HeaderMap>, payload: Bytes, reason: &str) {
        warn!(subject, reason, "a request cannot be run");
        let mut dead = headers.map(headers::own).unwrap_or_default();
        headers::set(&mut dead, REASON, reason);
        headers::set(&mut dead, SUBJECT, subject);
        let subject = dead_subject(&self.name);
        if self.store(&subject, dead, payload).await.is_err() {
            // the reason alone always fits
            let mut dead = HeaderMap::new();
            headers::set(&mut dead, REASON, reason);
            let _ = self.store(&subject, dead, Bytes::new()).await;
        }
    }

    /// Adds a request to a queue.
    ///
    /// # Errors
    /// It is too long, with its headers.
    pub(crate) async fn enqueue(
        &self,
        subject: &str,
        mut headers: HeaderMap,
        payload: Bytes,
    ) -> Result<(), PublishError> {
        // which nobody can have used before: a repeat does no harm, and one that is dropped would
        headers.insert(NATS_MESSAGE_ID, &*uuid::Uuid::new_v4().to_string());
        self.store(subject, headers, payload).await
    }

    /// Returns once it is stored.
    ///
    /// # Errors
    /// It is too long, with its headers.
    async fn store(&self, subject: &str, headers: HeaderMap, payload: Bytes) -> Result<(), PublishError> {
        let mut pause = Pause::default();
        loop {
            let stored = self.context.publish_with_headers(subject.to_owned(), headers.clone(), payload.clone()).await;
            let stored = match stored {
                Ok(stored) => stored.await,
                Err(error) => Err(error),
            };
            match stored {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => return Err(error),
                Err(error) => warn!(subject, error = %crate::chain(&error), "cannot publish: trying again"),
            }
            pause.wait().await;
        }
    }

    /// Sends what is still to be sent.
    pub(crate) async fn flush(&self) {
        let _ = self.client.flush().await;
    }
}

/// Those of requests and of events, which are made where they are not there.
async fn streams(context: &Context) -> (Stream, Stream) {
    let run = Config {
        name: subjects::RUN_STREAM.to_owned(),
        subjects: vec!["telexec.run.*".to_owned()],
        retention: RetentionPolicy::WorkQueue,
        discard: DiscardPolicy::New,
        max_bytes: RUN_BYTES,
        max_consumers: MAX_CONSUMERS,
        duplicate_window: DUPLICATE_WINDOW,
        ..Config::default()
    };
    let out = Config {
        name: subjects::OUT_STREAM.to_owned(),
        subjects: vec!["telexec.out.>".to_owned()],
        discard: DiscardPolicy::New,
        max_age: OUT_AGE,
        max_bytes: OUT_BYTES,
        max_consumers: MAX_CONSUMERS,
        ..Config::default()
    };
    let dead = Config {
        name: "TELEXEC_DEAD".to_owned(),
        subjects: vec!["telexec.dead.*".to_owned()],
        max_age: DEAD_AGE,
        max_bytes: DEAD_BYTES,
        ..Config::default()
    };
    let run = insist("the stream TELEXEC_RUN", || context.get_or_create_stream(run.clone())).await;
    let out = insist("the stream TELEXEC_OUT", || context.get_or_create_stream(out.clone())).await;
    insist("the stream TELEXEC_DEAD", || context.get_or_create_stream(dead.clone())).await;
    (run, out)
}

/// Tries until it succeeds: a server that has just started may not be ready, and permissions may be given later.
async fn insist<T, E, F>(what: &str, mut attempt: impl FnMut() -> F) -> T
where
    E: std::error::Error + 'static,
    F: Future<Output = Result<T, E>>,
{
    let mut pause = Pause::default();
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) if pause.is_first() || pause.is_long() => {
                warn!(error = %crate::chain(&error), "{what} cannot be used: trying again");
            }
            Err(_) => {}
        }
        pause.wait().await;
    }
}

/// How to connect, and to what.
pub(crate) type Nats = (ConnectOptions, Vec<ServerAddr>);

/// What the command line says of the server.
///
/// # Errors
/// The URL is malformed, or a file cannot be used.
pub(crate) async fn options(args: &Args) -> Result<Nats, Error> {
    let servers = args.url.split(',').map(|url| url.trim().parse::<ServerAddr>()).collect::<Result<Vec<_>, _>>();
    let servers = servers.map_err(|error| format!("--url: {error}"))?;
    let user = servers
        .iter()
        .find_map(|server| Some((server.username()?.to_owned(), Password(server.password()?.to_owned()))));
    let settings = Settings {
        creds: args.creds.clone(),
        nkey: args.nkey.clone(),
        user,
        ca: args.nats_ca.clone(),
        cert: args.nats_cert.clone(),
        key: args.nats_key.clone(),
    };
    let options = settings.options().await?.retry_on_initial_connect().subscription_capacity(MAX_ARRIVED);
    Ok((options, servers))
}

/// Logs what becomes of the connection, a failure once, and counts the connections.
fn observed(options: ConnectOptions, connections: watch::Sender<()>) -> ConnectOptions {
    let shared = Arc::new((connections, Mutex::new(String::new())));
    options.event_callback(move |event| {
        let shared = Arc::clone(&shared);
        async move {
            let (text, mut last) = (event.to_string(), shared.1.lock().unwrap_or_else(PoisonError::into_inner));
            match event {
                Event::Connected => {
                    info!("connected to the NATS server");
                    let _ = shared.0.send(());
                }
                _ if *last == text => {}
                _ => warn!("NATS: {text}"),
            }
            *last = text;
        }
    })
}

fn dead_subject(name: &str) -> String {
    format!("telexec.dead.{name}")
}
