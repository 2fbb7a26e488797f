//! A gRPC client with nothing between a test and the agent: one connection, no retry, and no clock of its own (tonic's
//! channel keeps the deadline of a call too, so it cannot show who kept it).

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response, Uri};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use telexec_proto::v1::agent_service_client::AgentServiceClient;
use telexec_proto::v1::execution_event::Event;
use telexec_proto::v1::execution_service_client::ExecutionServiceClient;
use telexec_proto::v1::file_service_client::FileServiceClient;
use telexec_proto::v1::{ExecutionEvent, Exited};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tonic::{Status, Streaming};
use tonic_health::pb::health_client::HealthClient;
use tower::BoxError;

use crate::{Agent, within};

/// For the error that HTTP/2 itself reports when a connection ends.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes to and from an agent.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One HTTP/2 connection; its clones share it.
#[derive(Clone, Debug)]
pub struct Wire {
    sender: SendRequest<Body>,
    tasks: Tasks,
    /// Closed with it.
    connection: watch::Receiver<()>,
}

/// Everything that holds the connection open.
#[derive(Clone, Debug, Default)]
struct Tasks(Arc<Mutex<Vec<AbortHandle>>>);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.0.lock().unwrap().push(tokio::spawn(task).abort_handle());
    }
}

impl Wire {
    /// To this agent, in plain text.
    ///
    /// # Errors
    /// The agent does not speak HTTP/2 with this side.
    pub async fn connect(agent: &Agent) -> Result<Self, hyper::Error> {
        Self::over(Self::dial(agent).await).await
    }

    /// To this agent, with TLS.
    ///
    /// # Errors
    /// One side refuses the other.
    pub async fn connect_tls(agent: &Agent, config: Arc<ClientConfig>) -> std::io::Result<Self> {
        Self::over_tls(Self::dial(agent).await, config).await
    }

    /// To this agent, with TLS, from this address of this machine.
    ///
    /// # Errors
    /// One side refuses the other.
    pub async fn connect_tls_from(source: Ipv4Addr, agent: &Agent, config: Arc<ClientConfig>) -> std::io::Result<Self> {
        Self::over_tls(Self::dial_from(source, agent).await, config).await
    }

    /// To an agent with TLS, over a stream that is connected to it.
    ///
    /// # Errors
    /// One side refuses the other.
    pub async fn over_tls(stream: Box<dyn Stream>, config: Arc<ClientConfig>) -> std::io::Result<Self> {
        let name = ServerName::try_from("localhost").unwrap();
        let stream = within(TlsConnector::from(config).connect(name, stream)).await?;
        Self::over(Box::new(stream)).await.map_err(std::io::Error::other)
    }

    /// A connection that says nothing yet.
    ///
    /// # Panics
    /// Nothing listens.
    pub async fn dial(agent: &Agent) -> Box<dyn Stream> {
        match agent.uri().starts_with("unix:") {
            true => Box::new(within(UnixStream::connect(agent.address())).await.unwrap()),
            false => Box::new(within(TcpStream::connect(agent.address())).await.unwrap()),
        }
    }

    /// A connection that says nothing yet, from this address of this machine (127.0.0.0/8).
    ///
    /// # Panics
    /// Nothing listens, or the agent listens on no TCP socket.
    pub async fn dial_from(source: Ipv4Addr, agent: &Agent) -> Box<dyn Stream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        Box::new(within(socket.connect(agent.address().parse().unwrap())).await.unwrap())
    }

    /// HTTP/2 over this.
    ///
    /// # Errors
    /// The other side does not speak it.
    pub async fn over(stream: Box<dyn Stream>) -> Result<Self, hyper::Error> {
        let tasks = Tasks::default();
        let (sender, driver) = within(http2::handshake(tasks.clone(), TokioIo::new(stream))).await?;
        let (open, connection) = watch::channel(());
        tasks.execute(driver.map(move |_| drop(open)));
        Ok(Self { sender, tasks, connection })
    }

    /// A response, or an error if the connection ends without one: hyper may forget a request that is made just then
    /// (<https://github.com/tokio-rs/tokio/issues/7714>).
    async fn send(mut self, request: Request<Body>) -> Result<Response<Incoming>, BoxError> {
        let response = self.sender.send_request(request);
        let forgotten = async {
            let _ = self.connection.changed().await;
            tokio::time::sleep(REPORT_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            response = response => response.map_err(Into::into),
            () = forgotten => Err("the connection ended without a response".into()),
        }
    }

    /// Whether the connection is open.
    pub fn is_open(&self) -> bool {
        self.connection.has_changed().is_ok()
    }

    /// Closes the connection without a word, as the death of its process would.
    pub fn cut(&self) {
        self.tasks.0.lock().unwrap().iter().for_each(AbortHandle::abort);
    }

    /// What clients of other services are to be made with.
    pub fn origin() -> Uri {
        Uri::from_static("http://localhost")
    }

    /// `telexec.v1.ExecutionService`.
    pub fn executions(&self) -> ExecutionServiceClient<Self> {
        ExecutionServiceClient::with_origin(self.clone(), Self::origin())
    }

    /// `telexec.v1.AgentService`.
    pub fn agent(&self) -> AgentServiceClient<Self> {
        AgentServiceClient::with_origin(self.clone(), Self::origin())
    }

    /// `telexec.v1.FileService`.
    pub fn files(&self) -> FileServiceClient<Self> {
        FileServiceClient::with_origin(self.clone(), Self::origin())
    }

    /// `grpc.health.v1.Health`.
    pub fn health(&self) -> HealthClient<Self> {
        HealthClient::with_origin(self.clone(), Self::origin())
    }
}

impl Wire {
    /// What a call with these headers and just these bytes comes to, after which there is nothing; or, without `ends`, not even
    /// an end. Dropping the answer ends the call.
    ///
    /// # Errors
    /// The connection broke, or the stream was reset.
    ///
    /// # Panics
    /// It hangs, or a header is malformed.
    pub async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        bytes: impl Into<Bytes>,
        ends: bool,
    ) -> Result<Response<Incoming>, BoxError> {
        let request = Request::post(format!("http://localhost{path}"));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let body = Body::new(Given { bytes: Some(bytes.into()), ends });
        within(self.clone().send(request.body(body).unwrap())).await
    }
}

/// A body in one piece, after which there is nothing, or no end.
struct Given {
    bytes: Option<Bytes>,
    ends: bool,
}

impl hyper::body::Body for Given {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.bytes.take() {
            None if !self.ends => Poll::Pending,
            bytes => Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ends && self.bytes.is_none()
    }
}

impl tower::Service<Request<Body>> for Wire {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Pin::new(&mut self.sender).poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.clone().send(request).boxed()
    }
}

/// Everything that a call of Execute gave.
#[derive(Clone, Debug)]
pub struct Followed {
    /// In their order.
    pub events: Vec<ExecutionEvent>,
    /// At the end.
    pub status: Status,
}

/// Reads a call to its end.
///
/// # Panics
/// It hangs.
pub async fn follow(mut stream: Streaming<ExecutionEvent>) -> Followed {
    let mut events = Vec::new();
    let status = loop {
        match within(stream.message()).await {
            Ok(Some(event)) => events.push(event),
            Ok(None) => break Status::ok(""),
            Err(status) => break status,
        }
    };
    Followed { events, status }
}

impl Followed {
    /// All of standard output.
    pub fn stdout(&self) -> Vec<u8> {
        let chunks = self.events.iter().filter_map(|event| match &event.event {
            Some(Event::Stdout(data)) => Some(&data[..]),
            _ => None,
        });
        chunks.flatten().copied().collect()
    }

    /// The last event, if it is the end of the command.
    pub fn exited(&self) -> Option<&Exited> {
        match &self.events.last()?.event {
            Some(Event::Exited(exited)) => Some(exited),
            _ => None,
        }
    }
}
