//! The streamable HTTP transport of MCP, at `/mcp`. Callers are all those of a loopback address, or have a certificate,
//! a token, or both.

mod caller;
mod reloaded;
mod secrets;
mod sessions;
mod tls;

use std::convert::Infallible;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::OptionFuture;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::caller::Caller;
use self::reloaded::Reloaded;
use self::secrets::Token;
use self::sessions::{CallerSessions, Chain, Sessions};
use self::tls::Tls;
use super::server::{Calls, Server};
use crate::args::HttpArgs;
use crate::commands::connections::{Connection, Connections};
use crate::output::{Failure, exit, print_message};

const PATH: &str = "/mcp";
/// For the head of a request, also of the next one on an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// For the rest of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
/// For all calls to end after a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// After a failed accept.
const RETRY_DELAY: Duration = Duration::from_millis(50);

type McpService = StreamableHttpService<Server, CallerSessions>;
/// The service as it is for a caller.
type ServiceOf = Arc<dyn Fn(Caller, Chain) -> McpService + Send + Sync>;
type HttpResponse = Response<BoxBody<Bytes, Infallible>>;

/// A listener, and who may call.
pub(super) struct HttpServer {
    listener: TcpListener,
    tls: Option<Tls>,
    token: Option<Reloaded<Token>>,
    session_timeout: Duration,
    connections: Connections,
}

impl HttpServer {
    /// Listens.
    ///
    /// # Errors
    /// It cannot, or callers would not be authenticated.
    pub(super) async fn bind(address: SocketAddr, args: &HttpArgs) -> Result<Self, Failure> {
        let tls = Tls::new(args)?;
        let token = args.token_file.clone().map(|path| Reloaded::new(vec![path.clone()], move || Token::read(&path)));
        let token = token.transpose()?;
        if tls.is_none() && !address.ip().is_loopback() {
            let text = format!("--listen tcp://{address}: only a loopback address is served without TLS");
            return Err(Failure::message(exit::USAGE, text).hint(Some("see --tls-cert, --tls-key and --client-ca")));
        }
        if tls.is_some() && args.client_ca.is_none() && token.is_none() {
            return Err(Failure::message(
                exit::USAGE,
                "with TLS, say who may call: --client-ca, --token-file, or both",
            ));
        }
        let listener = TcpListener::bind(address).await;
        let listener =
            listener.map_err(|error| Failure::new(exit::USAGE, &error).context(format!("tcp://{address}")))?;
        let connections = Connections::default();
        Ok(Self { listener, tls, token, session_timeout: args.session_timeout, connections })
    }

    /// Serves until the calls are stopped; all of them have ended when this returns. Each session has a server of its own,
    /// and so has each request without one.
    pub(super) async fn serve(self, server: impl Fn() -> Server + Send + Sync + 'static, calls: Calls) {
        let (sessions, server) = (Sessions::new(self.session_timeout), Arc::new(server));
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(calls.stop.clone())
            // browsers send it, and nobody else
            .enforce_origin_validation();
        let config = match self.is_loopback() {
            true => config,
            // any name may be this machine's; a browser that is led here has neither certificate nor token
            false => config.disable_allowed_hosts(),
        };
        let of_callers = sessions.clone();
        let service = move |caller, chain| {
            let server = Arc::clone(&server);
            StreamableHttpService::new(move || Ok(server()), Arc::new(of_callers.of(caller, chain)), config.clone())
        };
        self.announce();
        let this = Arc::new(self);
        tokio::select! {
            () = this.follow_files() => {}
            () = Arc::clone(&this).accept(Arc::new(service)) => {}
            () = sessions.expire() => {}
            () = this.refuse_sessions(&sessions) => {}
            () = calls.stop.cancelled() => {}
        }
        calls.running.close();
        let _ = timeout(STOP_TIMEOUT, calls.running.wait()).await;
    }

    fn is_loopback(&self) -> bool {
        self.listener.local_addr().is_ok_and(|address| address.ip().is_loopback())
    }

    fn announce(&self) {
        let Ok(address) = self.listener.local_addr() else { return };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        print_message(&format!("MCP is served at {scheme}://{address}{PATH}"));
        if self.tls.is_none() && self.token.is_none() {
            print_message("every user of this machine may call it: --token-file restricts that");
        }
    }

    /// Never returns.
    async fn follow_files(&self) {
        let certificates = OptionFuture::from(self.tls.as_ref().map(Tls::follow));
        let token = OptionFuture::from(self.token.as_ref().map(|token| token.follow("token")));
        tokio::join!(certificates, token);
        pending().await
    }

    /// A session whose caller's certificate is not accepted any more ends with its commands. Never returns.
    async fn refuse_sessions(&self, sessions: &Sessions) {
        let Some(tls) = &self.tls else { return pending().await };
        let verify = || {
            sessions.refuse(|chain| tls.verify(chain).is_ok());
            true
        };
        tls.verify_again(verify).await;
    }

    /// Never returns.
    async fn accept(self: Arc<Self>, service: ServiceOf) {
        let mut tasks = JoinSet::new();
        loop {
            while tasks.try_join_next().is_some() {}
            let Ok((stream, peer)) = self.listener.accept().await else {
                sleep(RETRY_DELAY).await;
                continue;
            };
            // closed if all connections have requests
            let Some(connection) = self.connections.enter(peer.ip()) else { continue };
            let (this, service) = (Arc::clone(&self), Arc::clone(&service));
            tasks.spawn(async move {
                tokio::select! {
                    // before the first request is authorized
                    biased;
                    () = this.token_replaced() => {}
                    () = connection.closed() => {}
                    () = this.converse(stream, peer.ip(), &connection, &service) => {}
                }
            });
        }
    }

    /// Until the peer or a timeout ends it.
    async fn converse(&self, stream: TcpStream, address: IpAddr, connection: &Connection, service: &ServiceOf) {
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            return self.speak(stream, &[], connection, &service(Caller::new(address, &[]), Arc::new([]))).await;
        };
        let Ok(stream) = tls.acceptor().accept(stream).await else { return };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let service = service(Caller::new(address, &chain), chain.clone().into());
        tokio::select! {
            () = self.speak(stream, &chain, connection, &service) => {}
            () = tls.refused(&chain), if !chain.is_empty() => {}
        }
    }

    /// Returns when there is another token than now: what the old one opened must not last.
    async fn token_replaced(&self) {
        let Some(token) = &self.token else { return pending().await };
        let mut changes = token.subscribe();
        let now = Arc::clone(&changes.borrow_and_update());
        if changes.wait_for(|new| *new != now).await.is_err() {
            pending().await
        }
    }

    async fn speak(
        &self,
        io: impl AsyncRead + AsyncWrite + Send + Unpin,
        chain: &[CertificateDer<'static>],
        connection: &Connection,
        service: &McpService,
    ) {
        let answer = service_fn(async |request| {
            let answer = self.respond(request, chain, connection, service).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(Refusal::into_response))
        });
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(io), answer);
        // a client that is gone is no error
        let _ = served.await;
    }

    /// # Errors
    /// The request is refused.
    async fn respond(
        &self,
        request: Request<Incoming>,
        chain: &[CertificateDer<'static>],
        connection: &Connection,
        service: &McpService,
    ) -> Result<HttpResponse, Refusal> {
        self.authorize(request.headers(), chain)?;
        let active = connection.begin();
        let active = active.ok_or(Refusal(StatusCode::SERVICE_UNAVAILABLE, "too many connections\n"))?;
        if request.uri().path() != PATH {
            return Ok(plain(StatusCode::NOT_FOUND, "MCP is at /mcp\n"));
        }
        let is_delete = request.method() == Method::DELETE;
        let mut response = service.handle(received(request).await?).await;
        // 202 would mean that the session may yet be there, of which the SDK for Python warns
        if is_delete && response.status() == StatusCode::ACCEPTED {
            response = plain(StatusCode::NO_CONTENT, "");
        }
        // the request lasts as long as the response
        Ok(response.map(|body| {
            let body = body.map_frame(move |frame| {
                let _active = &active;
                frame
            });
            body.boxed()
        }))
    }

    fn authorize(&self, headers: &HeaderMap, chain: &[CertificateDer<'static>]) -> Result<(), Refusal> {
        if let Some(tls) = &self.tls {
            tls.verify(chain).map_err(|reason| Refusal(StatusCode::FORBIDDEN, reason))?;
        }
        match &self.token {
            Some(token) if !token.current().authorizes(headers) => {
                Err(Refusal(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong\n"))
            }
            _ => Ok(()),
        }
    }
}

/// A response after which the connection is closed: it must not occupy a place.
struct Refusal(StatusCode, &'static str);

impl Refusal {
    fn into_response(self) -> HttpResponse {
        let Self(status, text) = self;
        let mut response = plain(status, text);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The whole of a request.
///
/// # Errors
/// It is too large, or does not come.
async fn received(request: Request<Incoming>) -> Result<Request<Full<Bytes>>, Refusal> {
    let (parts, body) = request.into_parts();
    match timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(Request::from_parts(parts, Full::new(body.to_bytes()))),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Refusal(StatusCode::PAYLOAD_TOO_LARGE, "the request is larger than 4 MiB\n"))
        }
        Ok(Err(_)) => Err(Refusal(StatusCode::BAD_REQUEST, "the request is malformed\n")),
        Err(_) => Err(Refusal(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time\n")),
    }
}

fn plain(status: StatusCode, text: &'static str) -> HttpResponse {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *response.status_mut() = status;
    response
}
