//! The NATS server: its streams, which are made where they are not there yet, and the consumers of the queues.

use std::sync::Arc;
use std::time::Duration;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, Stream};
use async_nats::{Client, ConnectOptions, Event, HeaderMap};
use bytes::Bytes;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::Error;
use crate::agents::Pause;
use crate::args::Args;
use crate::headers::{self, REASON, SUBJECT};

/// A request that nobody says anything of for so long is delivered again.
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(15);
/// A server that does not say within it that something is stored is sent it again.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Equal message ids within this time are one request.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(10 * 60);
/// Events are kept for as long.
const OUT_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
const DEAD_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
const DEAD_BYTES: i64 = 256 * 1024 * 1024;

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
    pub(crate) async fn connect(args: &Args, name: &str) -> Result<Self, Error> {
        let (connections, connected) = watch::channel(());
        let client =
            options(args, connections).await?.name(format!("telexec-nats {name}")).connect(servers(&args.url)).await?;
        let context = ContextBuilder::new().ack_timeout(STORE_TIMEOUT).build(client.clone());
        let run = Config {
            name: "TELEXEC_RUN".to_owned(),
            subjects: vec!["telexec.run.*".to_owned()],
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            duplicate_window: DUPLICATE_WINDOW,
            ..Config::default()
        };
        let out = Config {
            name: "TELEXEC_OUT".to_owned(),
            subjects: vec!["telexec.out.>".to_owned()],
            discard: DiscardPolicy::New,
            max_age: OUT_AGE,
            ..Config::default()
        };
        let dead = Config {
            name: "TELEXEC_DEAD".to_owned(),
            subjects: vec!["telexec.dead.*".to_owned()],
            max_age: DEAD_AGE,
            max_bytes: DEAD_BYTES,
            ..Config::default()
        };
        let run = stream(&context, run).await?;
        let out = stream(&context, out).await?;
        stream(&context, dead).await?;
        Ok(Self { client, context, out, connected, run, name: name.to_owned() })
    }

    /// The consumers of this agent's queues.
    pub(crate) async fn queues(&self, args: &Args) -> Result<Vec<Queue>, Error> {
        let mut queues = vec![self.queue(QueueKind::Own, args.concurrency).await?];
        for label in &args.labels {
            queues.push(self.queue(QueueKind::Label(label.clone()), args.concurrency).await?);
        }
        Ok(queues)
    }

    async fn queue(&self, kind: QueueKind, concurrency: u16) -> Result<Queue, Error> {
        let (consumer, address) = match &kind {
            QueueKind::Own => (format!("agent-{}", self.name), self.name.clone()),
            QueueKind::Label(label) => (format!("label-{label}"), label_address(label)),
        };
        let config = pull::Config {
            durable_name: Some(consumer.clone()),
            filter_subject: run_subject(&address),
            ack_wait: ACK_WAIT,
            max_ack_pending: match kind {
                QueueKind::Own => i64::from(concurrency).saturating_mul(2),
                // of all agents together
                QueueKind::Label(_) => 4096,
            },
            ..pull::Config::default()
        };
        let consumer = self.run.get_or_create_consumer(&consumer, config).await?;
        Ok(Queue { consumer, kind })
    }

    /// Keeps a request that cannot be run, with the reason.
    pub(crate) async fn bury(&self, subject: &str, headers: Option<&HeaderMap>, payload: Bytes, reason: &str) {
        warn!(subject, reason, "a request cannot be run");
        let mut dead = headers.map(headers::own).unwrap_or_default();
        headers::set(&mut dead, REASON, reason);
        headers::set(&mut dead, SUBJECT, subject);
        self.store(&dead_subject(&self.name), dead, payload).await;
    }

    /// Adds a request to a queue, once for this message id.
    pub(crate) async fn enqueue(&self, subject: &str, message_id: &str, mut headers: HeaderMap, payload: Bytes) {
        headers.insert(NATS_MESSAGE_ID, message_id);
        self.store(subject, headers, payload).await;
    }

    /// Returns once it is stored.
    async fn store(&self, subject: &str, headers: HeaderMap, payload: Bytes) {
        let mut pause = Pause::default();
        loop {
            let stored = self.context.publish_with_headers(subject.to_owned(), headers.clone(), payload.clone()).await;
            let stored = match stored {
                Ok(stored) => stored.await,
                Err(error) => Err(error),
            };
            match stored {
                Ok(_) => return,
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

async fn stream(context: &Context, config: Config) -> Result<Stream, Error> {
    let name = config.name.clone();
    let mut pause = Pause::default();
    loop {
        match context.get_or_create_stream(config.clone()).await {
            Ok(stream) => return Ok(stream),
            // a server that has just started may not be ready for streams
            Err(error) => {
                if pause.is_first() {
                    warn!(stream = %name, error = %crate::chain(&error), "the stream cannot be used: trying again");
                }
                pause.wait().await;
            }
        }
    }
}

fn servers(url: &str) -> Vec<String> {
    url.split(',').map(|url| url.trim().to_owned()).collect()
}

async fn options(args: &Args, connections: watch::Sender<()>) -> Result<ConnectOptions, Error> {
    let connections = Arc::new(connections);
    let mut options = ConnectOptions::new().retry_on_initial_connect().event_callback(move |event| {
        let connections = Arc::clone(&connections);
        async move {
            info!(%event, "NATS");
            if event == Event::Connected {
                let _ = connections.send(());
            }
        }
    });
    if let Some(creds) = &args.creds {
        options = options.credentials_file(creds).await.map_err(|error| format!("{}: {error}", creds.display()))?;
    }
    if let Some(nkey) = &args.nkey {
        let seed = std::fs::read_to_string(nkey).map_err(|error| format!("{}: {error}", nkey.display()))?;
        options = options.nkey(seed.trim().to_owned());
    }
    if let Some(ca) = &args.nats_ca {
        options = options.add_root_certificates(ca.clone());
    }
    if let Some((cert, key)) = args.nats_cert.as_ref().zip(args.nats_key.as_ref()) {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    let needs_tls = args.nats_ca.is_some() || args.nats_cert.is_some();
    Ok(if needs_tls { options.require_tls(true) } else { options })
}

/// Whoever has this label.
pub(crate) fn label_address(label: &str) -> String {
    format!("label:{label}")
}

/// Where requests for an agent, or for `label:LABEL`, are sent to.
pub(crate) fn run_subject(address: &str) -> String {
    format!("telexec.run.{address}")
}

fn dead_subject(name: &str) -> String {
    format!("telexec.dead.{name}")
}

/// Where the events of an execution are.
pub(crate) fn out_subject(id: &str) -> String {
    format!("telexec.out.{id}")
}
