//! One connection of an authenticated peer: serves HTTP/2 until it closes.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use telexec_engine::{ConnectionState, Workers};
use telexec_proto::convert::error_to_status;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tower::ServiceExt;
use tracing::debug;

use crate::admission::call_limiter;
use crate::admission::call_limiter::CallLimiter;
use crate::audit::Audit;
use crate::call::deadline::Deadline;
use crate::handshake::Peer;
use crate::http2::admission::Refused;
use crate::http2::body;
use crate::http2::body::Body;
use crate::http2::callers::{AccountedCaller, Authenticated, CallRefusal, Callers};
use crate::http2::loss::{Link, LossReport, Observed, Reported};
use crate::http2::message;
use crate::http2::message::Limited;
use crate::http2::preface::{PendingAdmission, PrefaceTimeout};
use crate::http2::turns::{BodyTurns, InTurns};
use crate::metrics::{Metrics, Refusal};
use crate::request_memory::RequestMemory;
use crate::token::TokenIssuers;

/// Concurrent calls of one connection; executions have their own limit.
pub(super) const MAX_STREAMS: u32 = 1024;

/// A live peer is heard from at least this often.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// From the end of the handshake to the HTTP/2 preface.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// For the answers to calls of a connection that is closed since it is nobody's.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// What all connections share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) routes: Routes,
    pub(crate) call_limiter: CallLimiter,
    pub(crate) request_memory: RequestMemory,
    pub(crate) body_turns: BodyTurns,
    pub(crate) tokens: TokenIssuers,
    /// Compute TLS and verify tokens, fairly among sources.
    pub(crate) handshakes: Workers,
    pub(crate) audit: Audit,
    pub(crate) metrics: Metrics,
    /// Open calls may complete; new ones are refused.
    pub(crate) goaway: CancellationToken,
}

/// Serves the peer's calls until it disconnects, or after `goaway` or its retirement until the open calls have ended. Once the peer's
/// certificate is no longer valid new calls are refused, and open ones are ended (`permission`).
pub(crate) async fn serve(peer: Peer, pending: PendingAdmission, shared: Shared) {
    let Peer { caller, io } = peer;
    let Shared { routes, call_limiter, request_memory, body_turns, tokens, handshakes, audit, metrics, goaway } =
        shared;
    let callers =
        Callers::new(Arc::clone(&caller), tokens, handshakes, pending.admission.clone(), request_memory, body_turns);
    let callers = Arc::new(callers);
    let link = Link::new();
    let observed = Arc::clone(&link);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let observed = Arc::clone(&link);
        let call = ConnectionState::observed(move || observed.is_live());
        let report = LossReport { call, stream: link.next_stream(), link: Arc::clone(&link) };
        request.extensions_mut().insert(report.call.clone());
        let acquire = {
            let call_limiter = call_limiter.clone();
            move |(known, checked): Authenticated| {
                // what is nobody's is limited by its connection
                let is_counted = checked.is_ok() || known.caller.is_authenticated();
                let permit = is_counted.then(|| call_limiter.acquire(&known.caller.identity)).transpose();
                (known, checked, permit)
            }
        };
        // in the order of the calls, unless there are tokens
        let at_once = callers.without_tokens().map(&acquire);
        let (routes, callers) = (routes.clone(), Arc::clone(&callers));
        let (audit, metrics) = (audit.clone(), metrics.clone());
        let answered = report.clone();
        let answer = async move {
            let (known, checked, permit) = match at_once {
                Some(known) => known,
                None => acquire(callers.of(request.headers_mut()).await),
            };
            let AccountedCaller { caller, account, turns } = known;
            let permit = match permit {
                Ok(permit) => permit,
                Err(exhausted) => {
                    metrics.refused(Refusal::Exhausted);
                    return (call_limiter::count_until_sent(body::of(exhausted.into_http()), None, None), turns);
                }
            };
            if let Err(CallRefusal { counted, error }) = checked {
                counted.into_iter().for_each(|refusal| metrics.refused(refusal));
                audit.record_rejected_call(&caller, request.uri().path(), &error).await;
                let refused = body::of(error_to_status(&error).into_http());
                return (call_limiter::count_until_sent(refused, permit, None), turns);
            }
            request.extensions_mut().insert(caller);
            let (answered, reservation) = match message::admit(request, &account, metrics) {
                Some((request, reservation)) => {
                    let request = request.map(|body| turns.carry(body));
                    (answer(routes, request).await, Some(reservation))
                }
                None => (body::of(message::unsupported()), None),
            };
            (call_limiter::count_until_sent(answered, permit, reservation), turns)
        };
        async move {
            let (response, turns) = Reported::new(Box::pin(answer), report).await;
            Ok::<_, Infallible>(response.map(|body| Reported::new(turns.carry(body), answered)))
        }
    });
    let io = Observed { io: PrefaceTimeout::new(io, PREFACE_TIMEOUT, &pending), link: observed };
    let connection = http2().serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    let PendingAdmission { displaced, identity, admission } = pending;
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = either(goaway.cancelled(), caller.retired()) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        refused = admission.refused(&displaced), if identity.is_none() => {
            debug!(?refused, "closing a connection that is nobody's");
            if refused == Refused::Exhausted {
                connection.as_mut().graceful_shutdown();
                // its peer may learn why
                let _ = tokio::time::timeout(REFUSAL_TIMEOUT, connection).await;
            }
            return;
        }
    };
    if let Err(error) = result {
        debug!(%error, cause = error.source(), "connection ended");
    }
}

/// Returns when one of them has.
async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    tokio::select! {
        () = one => {}
        () = other => {}
    }
}

/// The response of the service, within the call's deadline.
async fn answer(routes: Routes, mut request: Request<InTurns<Limited<Incoming>>>) -> Response<Body> {
    let deadline = match Deadline::of(request.headers()) {
        Ok(deadline) => deadline,
        Err(malformed) => return body::of(malformed.into_http()),
    };
    request.extensions_mut().insert(deadline.clone());
    match deadline.keep(routes.oneshot(request)).await {
        Ok(Ok(answer)) => body::of(answer),
        Err(late) => body::of(late.into_http()),
    }
}

/// HTTP/2 with all limits explicit; of a peer that is not authenticated little is read (`preface`).
fn http2() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        // requests are small, except for input
        .initial_stream_window_size(1024 * 1024)
        .initial_connection_window_size(8 * 1024 * 1024)
        .adaptive_window(false)
        .max_frame_size(64 * 1024)
        .max_send_buf_size(1024 * 1024)
        .max_header_list_size(32 * 1024)
        .header_table_size(4096)
        // an orchestrator may cancel many calls in a row
        .max_pending_accept_reset_streams(512)
        .max_local_error_reset_streams(512)
        // detects a vanished peer within 30 s, whose commands are then ended
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(Duration::from_secs(30) - KEEPALIVE_INTERVAL)
        .auto_date_header(false);
    builder
}
