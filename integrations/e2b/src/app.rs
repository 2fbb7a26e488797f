//! What all requests share: which of them goes where, and to which sandbox.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use http::header::HOST;
use http::{HeaderMap, StatusCode};
use tokio::time::timeout;

use crate::auth::{self, Keys};
use crate::failure::{Code, Failure};
use crate::pool::Pool;
use crate::room::Room;
use crate::sandbox::Sandbox;
use crate::{api, download, filesystem, listing, local, process, upload};

/// The port that stands for envd.
const ENVD_PORT: &str = "49983";
/// SDKs wait for 5 s.
const PING_TIMEOUT: Duration = Duration::from_secs(4);

pub(crate) struct App {
    pub(crate) pool: Arc<Pool>,
    pub(crate) keys: Keys,
    /// Anyone who reaches it may ask.
    pub(crate) is_local: bool,
    pub(crate) max_timeout: Duration,
    pub(crate) max_file_size: u64,
    /// Of the control plane.
    pub(crate) room: Room,
}

pub(crate) fn router(app: Arc<App>) -> Router {
    let control = Router::new()
        .route("/sandboxes", get(listing::list).post(api::create))
        .route("/v2/sandboxes", get(listing::list).post(api::create))
        .route("/sandboxes/{id}", get(api::info).delete(api::kill))
        .route("/sandboxes/{id}/connect", post(api::connect))
        .route("/v2/sandboxes/{id}/connect", post(api::connect))
        .route("/sandboxes/{id}/timeout", post(api::set_timeout))
        .route("/sandboxes/{id}/pause", post(api::pause))
        .route("/sandboxes/{id}/metrics", get(api::metrics));
    let envd = Router::new()
        .route("/health", get(health))
        .route("/files", get(download::download).post(upload::upload))
        .route("/process.Process/{method}", post(process::call))
        .route("/filesystem.Filesystem/{method}", post(filesystem::call));
    // bodies are limited by who reads them
    let all = control.merge(envd).fallback(any(api::unsupported)).layer(DefaultBodyLimit::disable());
    let all = if app.is_local { all.layer(from_fn(local::only)) } else { all };
    all.with_state(app)
}

/// With a sandbox whether that can be used; otherwise whether this program runs.
async fn health(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, Failure> {
    if sandbox_id(&headers).is_some() {
        let sandbox = app.named(&headers)?;
        match timeout(PING_TIMEOUT, sandbox.link.agent.ping()).await {
            Ok(Ok(ping)) if ping.serving => {}
            Ok(Ok(_)) => return Err(Failure::no_port("its agent does not serve")),
            Ok(Err(error)) => return Err(Failure::no_port(&crate::chain(&error))),
            Err(_) => return Err(Failure::no_port("its agent does not answer")),
        }
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

impl App {
    /// Whether who asks has a key, or the token of a sandbox.
    pub(crate) fn knows(&self, headers: &HeaderMap) -> bool {
        self.keys.check(headers).is_ok() || self.entered(headers).is_ok()
    }

    /// The sandbox that a request is for, and that it may use.
    pub(crate) fn entered(&self, headers: &HeaderMap) -> Result<Arc<Sandbox>, Failure> {
        let sandbox = self.named(headers)?;
        let given = headers.get("x-access-token").map(http::HeaderValue::as_bytes);
        match given {
            Some(given) if auth::is_same(given, &sandbox.claim.token) => Ok(sandbox),
            Some(_) => Err(Failure::new(Code::Unauthenticated, "the access token is not that of the sandbox")),
            None => Err(Failure::new(Code::Unauthenticated, "the header X-Access-Token is missing")),
        }
    }

    /// The sandbox that a request is for.
    fn named(&self, headers: &HeaderMap) -> Result<Arc<Sandbox>, Failure> {
        let (id, port) = sandbox_id(headers).ok_or_else(|| Failure::invalid("the header E2b-Sandbox-Id is missing"))?;
        let (_, sandbox) = self.pool.find(&id).ok_or_else(Failure::gone)?;
        if sandbox.is_paused {
            return Err(Failure::gone());
        }
        if port.is_some_and(|port| port != ENVD_PORT) {
            return Err(Failure::no_port("only envd's own is served"));
        }
        Ok(sandbox)
    }
}

/// Named by headers, or by the host name: PORT-ID.DOMAIN.
pub(crate) fn sandbox_id(headers: &HeaderMap) -> Option<(String, Option<String>)> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::to_owned);
    if let Some(id) = text("e2b-sandbox-id") {
        return Some((id, text("e2b-sandbox-port")));
    }
    let host = headers.get(HOST)?.to_str().ok()?;
    let (port, id) = host.split('.').next()?.split_once('-')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_port.then(|| (id.to_owned(), Some(port.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_named_by_headers_or_host() {
        let headers = |pairs: &[(&'static str, &str)]| {
            pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect::<HeaderMap>()
        };
        let by_header = headers(&[("e2b-sandbox-id", "a-1"), ("e2b-sandbox-port", "49983"), ("host", "1-b.c")]);
        assert_eq!(sandbox_id(&by_header), Some(("a-1".to_owned(), Some("49983".to_owned()))));
        let by_host = headers(&[("host", "49983-agent-1f.example.org:3000")]);
        assert_eq!(sandbox_id(&by_host), Some(("agent-1f".to_owned(), Some("49983".to_owned()))));
        for host in ["127.0.0.1:3000", "localhost:3000", "my-host.example.org", "-a.b"] {
            assert_eq!(sandbox_id(&headers(&[("host", host)])), None, "{host}");
        }
    }
}
