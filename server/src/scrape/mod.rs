//! `GET /metrics` over HTTP/1.1, one response per connection, bounded so that scrapers cannot disturb commands.

mod collector;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use telexec_engine::Workers;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use crate::listen::{Accepted, Listener};
use crate::metrics::Metrics;
use crate::tls::Tls;

pub(crate) use self::collector::AgentCollector;

/// Concurrent connections; further ones wait.
const MAX_CONNECTIONS: usize = 8;
/// From accepting the connection to the end of the response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// For reading the request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest request.
const MAX_REQUEST_BYTES: usize = 16 * 1024;
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// After a failed accept.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The metrics, and threads for encoding them, which reads files in /proc.
struct MetricsSource {
    registry: Registry,
    workers: Workers,
}

/// Serves scrapes. Never returns.
pub(crate) async fn serve(listener: Listener, metrics: Metrics, collector: AgentCollector, workers: Workers) {
    let Some(registry) = metrics.registry(collector) else { return };
    let source = Arc::new(MetricsSource { registry, workers });
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut answering = JoinSet::new();
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        while answering.try_join_next().is_some() {}
        let Ok((accepted, remote)) = listener.accept().await else {
            tokio::time::sleep(RETRY_DELAY).await;
            continue;
        };
        let source = Arc::clone(&source);
        answering.spawn(async move {
            let _slot = slot;
            match tokio::time::timeout(CONNECTION_TIMEOUT, answer(accepted, source)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(from = remote.address, error, "metrics were not served"),
                Err(_) => debug!(from = remote.address, "metrics were not served in time"),
            }
        });
    }
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

async fn answer(accepted: Accepted, source: Arc<MetricsSource>) -> Result<(), Fault> {
    match accepted {
        Accepted::Unix(stream) => speak(stream, source).await,
        Accepted::Tcp(stream, None) => speak(stream, source).await,
        Accepted::Tcp(stream, Some(tls)) => {
            let stream = acceptor(&tls).ok_or("the agent has no certificate at present")?.accept(stream).await?;
            // there are no tokens here
            match stream.get_ref().1.peer_certificates() {
                Some(_) => speak(stream, source).await,
                None => Err("it presented no certificate".into()),
            }
        }
        // metrics are never served there
        Accepted::Vsock(..) => Ok(()),
    }
}

/// With the same certificates as for commands: every caller that they accept may scrape. `None`: the agent has none at present.
fn acceptor(tls: &Tls) -> Option<TlsAcceptor> {
    let mut server = rustls::ServerConfig::clone(&tls.current().own.as_ref()?.server);
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Some(TlsAcceptor::from(Arc::new(server)))
}

async fn speak(io: impl AsyncRead + AsyncWrite + Send + Unpin, source: Arc<MetricsSource>) -> Result<(), Fault> {
    let service = service_fn(|request: Request<Incoming>| {
        let source = Arc::clone(&source);
        async move { Ok::<_, Infallible>(respond(request.method(), request.uri().path(), source).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(MAX_REQUEST_BYTES)
        .keep_alive(false)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(io), service)
        .await?;
    Ok(())
}

async fn respond(method: &Method, path: &str, source: Arc<MetricsSource>) -> Response<String> {
    if path != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
    }
    if method != Method::GET {
        return with(plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n"), ALLOW, "GET");
    }
    let workers = source.workers.clone();
    match workers.run("metrics", move || text(&source.registry)).await {
        Ok(Ok(text)) => with(Response::new(text), CONTENT_TYPE, OPEN_METRICS),
        _ => plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be encoded\n"),
    }
}

fn text(registry: &Registry) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    encode(&mut text, registry)?;
    Ok(text)
}

fn plain(status: StatusCode, text: &str) -> Response<String> {
    let mut response = Response::new(text.to_owned());
    *response.status_mut() = status;
    response
}

fn with(mut response: Response<String>, name: HeaderName, value: &'static str) -> Response<String> {
    response.headers_mut().insert(name, hyper::header::HeaderValue::from_static(value));
    response
}
