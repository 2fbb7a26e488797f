//! The HTTP/2 connection to one agent, made again when it was lost.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{Request, Response};
use tonic::transport::{Endpoint, Uri};
use tower::{BoxError, Service};

use crate::connector::{Connector, Duplex, Route};
use crate::gathered::Gathered;
use crate::unsent::KeptRequest;
use crate::{ConnectError, Target, error, events};

/// The maximum of HTTP/2 (RFC 9113, 6.9.1), so that unread executions exhaust only their own stream windows.
const CONNECTION_WINDOW_BYTES: u32 = i32::MAX as u32;
/// A whole chunk of output in one frame: twice as fast as in pieces of the default 16 KiB.
const FRAME_BYTES: u32 = 1024 * 1024;
/// Pings on a quiet connection, and the timeout of their acknowledgement. Together well below the 30 s for which an agent
/// waits for a client by default: a loss that only this side sees would be noticed too late.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(15);
/// How often a request is made again that was not sent: each time on a new connection.
const MAX_REPEATS: usize = 3;
/// For the error that HTTP/2 itself reports to each call when the connection ends.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// tonic's channel, whose calls also fail if their connection ends before their request is sent on it, and are made on another one if it
/// accepts no more; clones share it.
///
/// hyper queues requests in a channel of tokio's, which may keep what is sent while the receiver is dropped
/// (<https://github.com/tokio-rs/tokio/issues/7714>): the call would wait until another one connects again.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    inner: tonic::transport::Channel,
    connections: watch::Receiver<Connections>,
    connector: Arc<Connector>,
}

/// The connections of a channel, and its attempts to make one. There are several while calls on an earlier one, which accepts no
/// more of them, go on.
#[derive(Clone, Copy, Debug, Default)]
struct Connections {
    made: u64,
    open: u64,
}

impl Connections {
    /// Calls can be on none.
    fn all_ended(&self) -> bool {
        self.made > 0 && self.open == 0
    }
}

/// Connects, one connection after the other.
#[derive(Clone, Debug)]
struct Dialler {
    connector: Arc<Connector>,
    connections: Arc<watch::Sender<Connections>>,
}

/// Reports with its drop that a connection has ended.
#[derive(Debug)]
struct Open(Arc<watch::Sender<Connections>>);

impl Channel {
    /// Connects.
    pub(crate) async fn connect(connector: &Arc<Connector>) -> Result<Self, ConnectError> {
        let failed = |error| error::connecting(error, &connector.name);
        let endpoint = connector.endpoint().map_err(failed)?;
        let (dialler, connections) = Dialler::new(connector);
        let inner = endpoint.connect_with_connector(dialler).await.map_err(failed)?;
        Ok(Self { inner, connections, connector: Arc::clone(connector) })
    }

    /// Connects with the first call.
    pub(crate) fn lazy(connector: &Arc<Connector>) -> Result<Self, tonic::transport::Error> {
        let (dialler, connections) = Dialler::new(connector);
        let inner = connector.endpoint()?.connect_with_connector_lazy(dialler);
        Ok(Self { inner, connections, connector: Arc::clone(connector) })
    }

    /// The number of the connection that a call is made on now, counting all attempts to connect. If that accepts no more calls,
    /// it is the next one.
    pub(crate) fn connection(&self) -> u64 {
        let connections = *self.connections.borrow();
        connections.made + u64::from(connections.open == 0)
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.connector.authorization() {
            Ok(Some(token)) => drop(request.headers_mut().insert(AUTHORIZATION, token)),
            Ok(None) => {}
            Err(error) => return Box::pin(std::future::ready(Err(error.into()))),
        }
        let are_events = events::are_sent_by(request.uri().path());
        let request = KeptRequest::new(request);
        let (channel, first) = (self.inner.clone(), self.inner.call(request.request()));
        let response = unless_ended(self.connections.clone(), until_sent(channel, request, first));
        match are_events {
            true => Box::pin(async { response.await.map(events::carrying) }),
            false => Box::pin(response),
        }
    }
}

/// The response to a request, which is made again while nothing of it was sent.
async fn until_sent(
    mut channel: tonic::transport::Channel,
    request: KeptRequest,
    first: impl Future<Output = Result<Response<Body>, tonic::transport::Error>>,
) -> Result<Response<Body>, tonic::transport::Error> {
    let mut response = first.await;
    for _ in 0..MAX_REPEATS {
        match response {
            Err(error) if request.is_unsent(&error) => {
                poll_fn(|cx| channel.poll_ready(cx)).await?;
                response = channel.call(request.request()).await;
            }
            response => return response,
        }
    }
    response
}

impl Dialler {
    fn new(connector: &Arc<Connector>) -> (Self, watch::Receiver<Connections>) {
        let (sender, receiver) = watch::channel(Connections::default());
        (Self { connector: Arc::clone(connector), connections: Arc::new(sender) }, receiver)
    }

    fn begin(&self) -> Open {
        self.connections.send_modify(|Connections { made, open }| {
            *made += 1;
            *open += 1;
        });
        Open(Arc::clone(&self.connections))
    }
}

impl Service<Uri> for Dialler {
    type Response = TokioIo<Gathered<Box<dyn Duplex>, Open>>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, ConnectError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (connector, open) = (Arc::clone(&self.connector), self.begin());
        Box::pin(async move { Ok(TokioIo::new(Gathered::new(connector.connect().await?, open))) })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|connections| connections.open -= 1);
    }
}

/// A call's response; an error if there is none for some time after all connections have ended. Such a call was probably not sent,
/// but that is not certain.
async fn unless_ended<T, E: Into<BoxError>>(
    connections: watch::Receiver<Connections>,
    response: impl Future<Output = Result<T, E>>,
) -> Result<T, BoxError> {
    tokio::select! {
        biased;
        response = response => response.map_err(Into::into),
        () = until_ended(connections) => Err(Status::unavailable("it ended without a response").into()),
    }
}

/// Waits until all connections have ended, and no other one has been begun instead.
async fn until_ended(mut connections: watch::Receiver<Connections>) {
    while connections.wait_for(Connections::all_ended).await.is_ok() {
        match timeout(REPORT_TIMEOUT, connections.wait_for(|connections| !connections.all_ended())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => break,
            Err(_) => return,
        }
    }
    // nothing connects any more: tonic has failed all calls
    std::future::pending().await
}

impl Connector {
    /// The settings of a connection.
    fn endpoint(&self) -> Result<Endpoint, tonic::transport::Error> {
        let Self { route, options, .. } = self;
        let (scheme, authority) = match route {
            Route::Target(target @ Target::Tcp { .. }) if options.tls.is_some() => ("https", target.authority()),
            Route::Target(target) => ("http", target.authority()),
            Route::Custom(_) => ("http", "localhost".to_owned()),
        };
        endpoint(scheme, &authority, options.stream_window_bytes)
    }
}

fn endpoint(scheme: &str, authority: &str, window: u32) -> Result<Endpoint, tonic::transport::Error> {
    // HTTP/2 starts with 64 KiB - 1
    let window = window.clamp(64 * 1024, CONNECTION_WINDOW_BYTES);
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
        .initial_stream_window_size(window)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES.min(window))
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .user_agent(concat!("telexec/", env!("CARGO_PKG_VERSION")))?;
    // not as the endpoint itself: for https tonic would set up TLS itself
    match Uri::builder().scheme(scheme).authority(authority).path_and_query("/").build() {
        Ok(origin) => Ok(endpoint.origin(origin)),
        Err(_) => Ok(endpoint),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use futures_util::FutureExt;
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::Transport;

    /// Connections whose other ends say nothing.
    #[derive(Debug, Default)]
    struct Silent(Mutex<Vec<DuplexStream>>);

    #[async_trait]
    impl Transport for Silent {
        async fn dial(&self) -> io::Result<Box<dyn Duplex>> {
            let (one, other) = duplex(64 * 1024);
            self.0.lock().unwrap().push(other);
            Ok(Box::new(one))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_connection_is_noticed() {
        let silent = Arc::new(Silent::default());
        let route = Route::Custom(Arc::clone(&silent) as Arc<dyn Transport>);
        let connector = Connector { route, name: "test".into(), options: Default::default() };
        let mut channel = Channel::connect(&Arc::new(connector)).await.unwrap();
        assert_eq!(channel.connection(), 1);
        silent.0.lock().unwrap().clear();
        channel.connections.wait_for(Connections::all_ended).await.unwrap();
        assert_eq!(channel.connection(), 2);
        // which a call makes
        poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
        let call = channel.call(Request::new(Body::empty()));
        let mut connections = channel.connections.clone();
        tokio::join!(call.map(drop), async {
            connections.wait_for(|connections| !connections.all_ended()).await.unwrap();
            assert_eq!(channel.connection(), 2);
            silent.0.lock().unwrap().clear();
        });
    }

    fn dialler() -> (Dialler, watch::Receiver<Connections>) {
        let target = "unix:///nowhere".parse().unwrap();
        let connector = Connector { route: Route::Target(target), name: "test".into(), options: Default::default() };
        Dialler::new(&Arc::new(connector))
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_fails_with_its_connection() {
        let (dialler, connections) = dialler();
        let open = dialler.begin();
        let mut call = Box::pin(unless_ended(connections, pending::<Result<(), BoxError>>()));
        assert!(call.as_mut().now_or_never().is_none());
        drop(open);
        let error = call.await.unwrap_err();
        let lost = error::calling(Status::from_error(error), "test");
        assert_eq!(lost.to_string(), "the connection to test was lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_the_connection_after_it_and_is_not_concerned_by_others() {
        let (dialler, connections) = dialler();
        let first = dialler.begin();
        let mut call = Box::pin(unless_ended(connections, pending::<Result<(), BoxError>>()));
        drop(first);
        assert!(call.as_mut().now_or_never().is_none());
        let second = dialler.begin();
        // it accepts no more calls, and what is made instead fails
        drop(dialler.begin());
        assert!(timeout(REPORT_TIMEOUT * 2, &mut call).await.is_err());
        // no channel any more: tonic fails its calls
        drop((second, dialler));
        assert!(timeout(REPORT_TIMEOUT * 2, call).await.is_err());
    }
}
