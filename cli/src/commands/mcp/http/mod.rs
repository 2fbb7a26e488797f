//! The streamable HTTP transport of MCP, at `/mcp`. Callers are all those of a loopback address, or have a certificate,
//! a token, or both.

mod secrets;
mod sessions;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderValue, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::secrets::{Tls, Token};
use self::sessions::Sessions;
use super::server::{Calls, Server};
use crate::args::HttpArgs;
use crate::output::{Failure, exit, print_message};

const PATH: &str = "/mcp";
/// Open at once; further ones wait.
const MAX_CONNECTIONS: usize = 256;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// For the head of a request, also of the next one on an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// For all calls to end after a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// After a failed accept.
const RETRY_DELAY: Duration = Duration::from_millis(50);

type HttpResponse = Response<BoxBody<Bytes, Infallible>>;

/// A listener, and who may call.
pub(super) struct HttpServer {
    listener: TcpListener,
    tls: Option<Tls>,
    token: Option<Token>,
    session_timeout: Duration,
}

impl HttpServer {
    /// Listens.
    ///
    /// # Errors
    /// It cannot, or callers would not be authenticated.
    pub(super) async fn bind(address: SocketAddr, args: &HttpArgs) -> Result<Self, Failure> {
        let tls = Tls::new(args);
        let token = args.token_file.as_deref().map(Token::read).transpose()?;
        if tls.is_none() && !address.ip().is_loopback() {
            let text = format!("--listen tcp://{address}: only a loopback address is served without TLS");
            return Err(Failure::message(exit::USAGE, text).hint(Some("see --tls-cert, --tls-key and --client-ca")));
        }
        if let Some(tls) = &tls {
            tls.load()?;
            if args.client_ca.is_none() && token.is_none() {
                return Err(Failure::message(
                    exit::USAGE,
                    "TLS needs --client-ca, --token-file or both: who may call?",
                ));
            }
        }
        let listener = TcpListener::bind(address).await;
        let listener =
            listener.map_err(|error| Failure::new(exit::USAGE, &error).context(format!("tcp://{address}")))?;
        Ok(Self { listener, tls, token, session_timeout: args.session_timeout })
    }

    /// Serves until the calls are stopped; all of them have ended when this returns. Each session has a server of its own,
    /// and so has each request without one.
    pub(super) async fn serve(self, server: impl Fn() -> Server + Send + Sync + 'static, calls: Calls) {
        let sessions = Arc::new(Sessions::new(self.session_timeout));
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(calls.stop.clone())
            // browsers send it, and nobody else
            .enforce_origin_validation();
        let config = match self.is_loopback() {
            true => config,
            // any name may be this machine's; a browser that is led here has neither certificate nor token
            false => config.disable_allowed_hosts(),
        };
        let service = StreamableHttpService::new(move || Ok(server()), Arc::clone(&sessions), config);
        self.announce();
        tokio::select! {
            () = Arc::new(self).accept(service) => {}
            () = sessions.expire() => {}
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
    async fn accept(self: Arc<Self>, service: StreamableHttpService<Server, Sessions>) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            while connections.try_join_next().is_some() {}
            let Ok((stream, _)) = self.listener.accept().await else {
                sleep(RETRY_DELAY).await;
                continue;
            };
            let (this, service) = (Arc::clone(&self), service.clone());
            connections.spawn(async move {
                let _slot = slot;
                this.connection(stream, service).await;
            });
        }
    }

    async fn connection(&self, stream: TcpStream, service: StreamableHttpService<Server, Sessions>) {
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.speak(stream, service).await };
        match tls.load() {
            Ok(acceptor) => {
                if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                    self.speak(stream, service).await;
                }
            }
            Err(failure) => failure.print(),
        }
    }

    async fn speak(
        &self,
        io: impl AsyncRead + AsyncWrite + Send + Unpin,
        service: StreamableHttpService<Server, Sessions>,
    ) {
        let answer = service_fn(async |request| Ok::<_, Infallible>(self.respond(request, &service).await));
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(io), answer);
        // a client that is gone is no error
        let _ = served.await;
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
        service: &StreamableHttpService<Server, Sessions>,
    ) -> HttpResponse {
        if self.token.as_ref().is_some_and(|token| !token.authorizes(request.headers())) {
            let mut response = plain(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong\n");
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        match request.uri().path() {
            PATH => service.handle(request).await,
            _ => plain(StatusCode::NOT_FOUND, "MCP is at /mcp\n"),
        }
    }
}

fn plain(status: StatusCode, text: &'static str) -> HttpResponse {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *response.status_mut() = status;
    response
}
