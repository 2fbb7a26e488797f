//! Connections to and from the network of an agent's machine.

mod connection;
#[cfg(unix)]
mod local;
mod pool;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use telexec_executor::ExecutorError;
#[cfg(unix)]
use telexec_proto::convert::ForwardStep;
use telexec_proto::convert::{ForwardFailure, forward_failure_from_status};
use telexec_proto::v1::connect_request::Step;
use telexec_proto::v1::forward_service_client::ForwardServiceClient;
use telexec_proto::v1::listen_response::Step as ListenStep;
use telexec_proto::v1::{
    Accepted, ConnectRequest, ListenRequest, ListenResponse, TcpAddress, connect_response, dial, listen_request,
    listening,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tonic::{Status, Streaming};

pub use self::connection::Connection;
#[cfg(unix)]
pub use self::local::{LocalListener, LocalSocket};
use self::pool::{Place, Pool};
use crate::channel::Channel;
use crate::connector::Connector;
use crate::error;

/// Pieces that wait to be sent.
const QUEUE: usize = 2;
/// Before a listener whose connection was lost is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The network of an agent's machine; clones share the connections to it.
///
/// Each forwarded connection has flow control of its own: one that is not read holds up no other. Therefore a few share
/// an HTTP/2 connection, and further ones get another.
#[derive(Clone, Debug)]
pub struct Forwards {
    pool: Arc<Pool>,
    endpoint: Arc<str>,
}

/// A TCP port or a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A TCP port.
    Tcp {
        /// A name or an address, as the other machine knows it.
        host: String,
        /// The port.
        port: u16,
    },
    /// An absolute path.
    Unix(String),
}

/// What to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dial {
    /// Anything that listens, as the agent's own user.
    To(Endpoint),
    /// A Unix socket, as a user of the agent's machine.
    UnixAs {
        /// Its absolute path.
        path: String,
        /// The name of the user, or the number.
        user: String,
    },
    /// What came to a [`Listening`], by its id.
    Accepted(String),
}

/// Why there is no connection, or not any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// The agent could not connect or listen, or the other side has reset the connection.
    #[error(transparent)]
    Failed(ForwardFailure),
    /// The call to the agent failed.
    #[error(transparent)]
    Call(#[from] ExecutorError),
    /// The side here failed.
    #[error("the local connection failed")]
    Here(#[source] io::Error),
}

/// A socket that listens on the agent's machine. Dropping it closes it; connections that were taken go on.
#[derive(Debug)]
pub struct Listening {
    answers: Streaming<ListenResponse>,
    at: Endpoint,
    endpoint: Arc<str>,
}

/// A connection that came to a [`Listening`]. It waits 10 s to be taken, with [`Forwards::connect`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedConnection {
    /// For [`Dial::Accepted`].
    pub id: String,
    /// Where it is from; `None`: a Unix socket.
    pub peer: Option<Endpoint>,
}

impl Forwards {
    pub(crate) fn new(channel: Channel, connector: Arc<Connector>, endpoint: Arc<str>) -> Self {
        Self { pool: Pool::new(channel, connector), endpoint }
    }

    /// Connects from the agent's machine.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn connect(&self, dial: impl Into<Dial>) -> Result<Connection, ForwardError> {
        let dial = dial.into();
        let place = self.pool.place();
        let is_first = place.is_first();
        match self.connect_in(place, &dial).await {
            // a connection that was lost is noticed by the first call; nothing was dialled, or nothing of it is left
            Err(ForwardError::Call(ExecutorError::Lost { .. })) if !matches!(dial, Dial::Accepted(_)) => {
                self.connect_in(self.pool.first(), &dial).await
            }
            // the agent takes no further connection of this caller
            Err(ForwardError::Call(ExecutorError::Unreachable { .. })) if !is_first => {
                self.connect_in(self.pool.first(), &dial).await
            }
            connected => connected,
        }
    }

    async fn connect_in(&self, place: Place, dial: &Dial) -> Result<Connection, ForwardError> {
        let (requests, queue) = mpsc::channel(QUEUE);
        let first = ConnectRequest { step: Some(Step::Dial(dial.into())) };
        // there is room
        let _ = requests.try_send(first);
        let queued = stream::unfold(queue, |mut queue| async move { queue.recv().await.map(|next| (next, queue)) });
        let mut client = ForwardServiceClient::new(place.channel());
        let called = client.connect(queued).await.map_err(|status| self.failed(status, true))?;
        let mut answers = called.into_inner();
        let first = answers.message().await.map_err(|status| self.failed(status, false))?;
        match first.and_then(|first| first.step) {
            Some(connect_response::Step::Connected(connected)) => {
                let peer = connected.peer.map(Endpoint::try_from).transpose()?;
                Ok(Connection::new(requests, answers, peer, Arc::clone(&self.endpoint), place))
            }
            _ => Err(unexpected("the connection did not begin")),
        }
    }

    /// Listens on the agent's machine.
    ///
    /// # Errors
    /// It cannot, or may not.
    pub async fn listen(&self, at: &Endpoint) -> Result<Listening, ForwardError> {
        let at = match at.clone() {
            Endpoint::Tcp { host, port } => listen_request::At::Tcp(TcpAddress { host, port: port.into() }),
            Endpoint::Unix(path) => listen_request::At::UnixPath(path),
        };
        let request = ListenRequest { at: Some(at), user: String::new() };
        let called = ForwardServiceClient::new(self.pool.first().channel()).listen(request).await;
        let mut answers = called.map_err(|status| self.failed(status, true))?.into_inner();
        let first = answers.message().await.map_err(|status| self.failed(status, false))?;
        let Some(ListenStep::Listening(listening)) = first.and_then(|first| first.step) else {
            return Err(unexpected("it did not say where it listens"));
        };
        let at = match listening.at {
            Some(listening::At::Tcp(address)) => address.try_into()?,
            Some(listening::At::UnixPath(path)) => Endpoint::Unix(path),
            None => return Err(unexpected("it did not say where it listens")),
        };
        Ok(Listening { answers, at, endpoint: Arc::clone(&self.endpoint) })
    }

    /// Listens again where `asked` was asked for and `lost` listened, after that has failed; tries for this long. By the name
    /// that was asked for, since the policy and both families of localhost hang on it, and with the port that was got.
    ///
    /// # Errors
    /// It is no loss of a connection, or it lasts: an agent that has not noticed it yet still has the address in use.
    pub async fn listen_again(
        &self,
        asked: &Endpoint,
        lost: &Listening,
        failure: ForwardError,
        within: Duration,
    ) -> Result<Listening, ForwardError> {
        let at = kept_port(asked, lost.endpoint());
        let (begin, mut failure) = (Instant::now(), failure);
        while failure.may_end() && begin.elapsed() < within {
            sleep(RETRY_DELAY).await;
            match self.listen(&at).await {
                Ok(listening) => return Ok(listening),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Takes a connection that was accepted there, and carries it from and to an address here.
    ///
    /// # Errors
    /// Nobody answers here, one side was reset, or the agent is lost.
    #[cfg(unix)]
    pub async fn join_accepted(&self, accepted: AcceptedConnection, to: &Endpoint) -> Result<(), ForwardError> {
        // first, since it does not wait for long; dropped it is reset
        let connection = self.connect(Dial::Accepted(accepted.id)).await?;
        let socket = LocalSocket::dial(to).await;
        let failed = |error| ForwardError::Failed(ForwardFailure::new(ForwardStep::Dial, to, &error));
        socket.map_err(failed)?.join(connection).await
    }

    fn failed(&self, status: Status, is_new: bool) -> ForwardError {
        match is_new {
            true => failure(&status).unwrap_or_else(|| error::calling(status, &self.endpoint).into()),
            false => following(status, &self.endpoint),
        }
    }
}

impl ForwardError {
    /// Whether a listener that failed so may listen again.
    fn may_end(&self) -> bool {
        match self {
            Self::Call(error) => matches!(
                error,
                ExecutorError::Lost { .. } | ExecutorError::Unreachable { .. } | ExecutorError::ShuttingDown
            ),
            Self::Failed(failure) => failure.errno == "EADDRINUSE",
            Self::Here(_) => false,
        }
    }
}

impl Listening {
    /// Where it listens, with the actual port.
    pub fn endpoint(&self) -> &Endpoint {
        &self.at
    }

    /// The next connection.
    ///
    /// # Errors
    /// The agent listens no more.
    pub async fn accept(&mut self) -> Result<AcceptedConnection, ForwardError> {
        match self.answers.message().await.map_err(|status| following(status, &self.endpoint))? {
            Some(ListenResponse { step: Some(ListenStep::Accepted(Accepted { id, peer })) }) => {
                Ok(AcceptedConnection { id, peer: peer.map(Endpoint::try_from).transpose()? })
            }
            Some(_) => Err(unexpected("it told of no connection")),
            None => Err(error::lost(&self.endpoint, "the agent stopped listening").into()),
        }
    }
}

/// What was asked for; instead of any port the one that was got.
fn kept_port(asked: &Endpoint, got: &Endpoint) -> Endpoint {
    match (asked, got) {
        (Endpoint::Tcp { host, port: 0 }, Endpoint::Tcp { port, .. }) => {
            Endpoint::Tcp { host: host.clone(), port: *port }
        }
        (asked, _) => asked.clone(),
    }
}

/// A call failed while its answers arrived.
fn following(status: Status, endpoint: &str) -> ForwardError {
    failure(&status).unwrap_or_else(|| error::following(status, endpoint).into())
}

fn failure(status: &Status) -> Option<ForwardError> {
    forward_failure_from_status(status).map(ForwardError::Failed)
}

fn unexpected(what: &str) -> ForwardError {
    ExecutorError::Internal(format!("invalid answer from the agent: {what}")).into()
}

impl Dial {
    /// A Unix socket as this user; TCP, which the agent speaks itself, whatever the user.
    pub fn with_user(to: Endpoint, user: Option<&str>) -> Self {
        match (to, user) {
            (Endpoint::Unix(path), Some(user)) => Self::UnixAs { path, user: user.to_owned() },
            (to, _) => Self::To(to),
        }
    }
}

impl From<Endpoint> for Dial {
    fn from(endpoint: Endpoint) -> Self {
        Self::To(endpoint)
    }
}

impl TryFrom<TcpAddress> for Endpoint {
    type Error = ForwardError;

    fn try_from(TcpAddress { host, port }: TcpAddress) -> Result<Self, ForwardError> {
        let port = u16::try_from(port).map_err(|_| unexpected("a port is above 65535"))?;
        Ok(Self::Tcp { host, port })
    }
}

impl From<&Dial> for telexec_proto::v1::Dial {
    fn from(dial: &Dial) -> Self {
        let own = String::new();
        let (to, user) = match dial.clone() {
            Dial::To(Endpoint::Tcp { host, port }) => (dial::To::Tcp(TcpAddress { host, port: port.into() }), own),
            Dial::To(Endpoint::Unix(path)) => (dial::To::UnixPath(path), own),
            Dial::UnixAs { path, user } => (dial::To::UnixPath(path), user),
            Dial::Accepted(id) => (dial::To::Accepted(id), own),
        };
        Self { to: Some(to), user }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => f.write_str(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_listens_again_where_it_was_asked_to() {
        let tcp = |host: &str, port| Endpoint::Tcp { host: host.into(), port };
        let unix = Endpoint::Unix("/run/a".into());
        for (asked, got, again) in [
            (tcp("localhost", 0), tcp("127.0.0.1", 4000), tcp("localhost", 4000)),
            (tcp("localhost", 80), tcp("127.0.0.1", 80), tcp("localhost", 80)),
            (unix.clone(), unix.clone(), unix),
        ] {
            assert_eq!(kept_port(&asked, &got), again);
        }
    }
}
