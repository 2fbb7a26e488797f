//! Listens for one call, and keeps what is accepted until it is taken.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket as RawSocket, Type};
use telexec_executor::ExecutorError;
use telexec_proto::convert::{ForwardFailure, ForwardStep, error_to_status};
use telexec_proto::v1::listen_response::Step as Answer;
use telexec_proto::v1::{Accepted, ListenResponse, Listening, listening};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::info;

use super::Forwards;
use super::accepted::{AcceptedConnection, AcceptedConnections};
use super::limiter::ForwardLimiter;
use super::passage::Passage;
use super::socket::Socket;
use super::wire::address_to_wire;
use crate::call::deadline::Deadline;
use crate::identity::Identity;
use crate::policy::Endpoint;

/// How long a connection waits to be taken.
const TAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many may wait.
const MAX_WAITING: usize = 64;
const BACKLOG: u32 = 128;

/// Bound sockets of one address.
pub(super) struct Bound {
    sockets: Vec<BoundSocket>,
    pub(super) at: listening::At,
}

enum BoundSocket {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: UnixFile },
}

/// The file of a Unix socket, which is removed with it unless another is in its place.
struct UnixFile {
    path: PathBuf,
    id: (u64, u64),
}

impl Drop for UnixFile {
    fn drop(&mut self) {
        if file_id(&self.path).is_ok_and(|id| id == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    path.symlink_metadata().map(|found| (found.dev(), found.ino()))
}

impl Forwards {
    /// # Errors
    /// The address cannot be listened on.
    pub(super) async fn bind(&self, at: &Endpoint, identity: &Identity) -> Result<Bound, ForwardFailure> {
        let failed = |error: io::Error| ForwardFailure::new(ForwardStep::Listen, at, &error);
        match at {
            Endpoint::Tcp { host, port } => {
                let addresses = match any_family(host) {
                    Some(addresses) => addresses.into_iter().map(|address| SocketAddr::new(address, *port)).collect(),
                    None => self
                        .look_up(host, *port, identity)
                        .await
                        .map_err(|(errno, reason)| ForwardFailure::because(ForwardStep::Listen, at, errno, &reason))?,
                };
                bind_tcp(host, addresses).map_err(failed)
            }
            Endpoint::Unix(path) => bind_unix(path).map_err(failed),
        }
    }
}

/// What needs no look-up, best first: not every machine has both families. `::` takes connections of both.
fn any_family(host: &str) -> Option<[IpAddr; 2]> {
    match host {
        "localhost" => Some([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
        "::" => Some([Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()]),
        _ => None,
    }
}

/// The first address that this machine has; of localhost that of the other family too, with the same port. An address
/// that is taken is an error: another one in its place would leave callers with whoever has it.
fn bind_tcp(host: &str, addresses: Vec<SocketAddr>) -> io::Result<Bound> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let mut sockets = Vec::new();
    for address in &addresses {
        match listen_tcp(*address) {
            Ok(socket) => {
                sockets.push(socket);
                break;
            }
            Err(error) if is_absent(&error) => failure = error,
            Err(error) => return Err(error),
        }
    }
    let Some(first) = sockets.first() else { return Err(failure) };
    let bound = first.local_addr()?;
    if host == "localhost" && bound.is_ipv4() {
        let any_port = addresses.iter().all(|address| address.port() == 0);
        match listen_tcp((Ipv6Addr::LOCALHOST, bound.port()).into()) {
            Ok(socket) => sockets.push(socket),
            Err(error) if any_port || is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let at = listening::At::Tcp(address_to_wire(bound));
    Ok(Bound { sockets: sockets.into_iter().map(BoundSocket::Tcp).collect(), at })
}

/// Whether it is because this machine has no such address, or none of its family.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The mode is set before there is a file: between its making and a change of its mode anyone could put another in its
/// place.
fn bind_unix(path: &str) -> io::Result<Bound> {
    let socket = RawSocket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = UnixFile { path: path.into(), id: file_id(Path::new(path))? };
    socket.listen(BACKLOG as i32)?;
    let listener = UnixListener::from_std(socket.into())?;
    Ok(Bound {
        sockets: vec![BoundSocket::Unix { listener, _file: file }],
        at: listening::At::UnixPath(path.to_owned()),
    })
}

impl Bound {
    async fn accept(&self) -> io::Result<Socket> {
        std::future::poll_fn(|context| {
            for socket in &self.sockets {
                let accepted = match socket {
                    BoundSocket::Tcp(listener) => {
                        listener.poll_accept(context).map_ok(|(stream, _)| Socket::tuned(stream))
                    }
                    BoundSocket::Unix { listener, .. } => {
                        listener.poll_accept(context).map_ok(|(stream, _)| Socket::Unix(stream))
                    }
                };
                if accepted.is_ready() {
                    return accepted;
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// A call of Listen.
pub(super) struct Listener {
    pub(super) bound: Bound,
    pub(super) passage: Passage,
    pub(super) identity: Identity,
    pub(super) limiter: ForwardLimiter,
    pub(super) accepted: AcceptedConnections,
    pub(super) answers: mpsc::Sender<Result<ListenResponse, Status>>,
    pub(super) deadline: Deadline,
    pub(super) closing: CancellationToken,
}

/// Those of one listener that may still wait, oldest first. What was not taken is closed when this is dropped.
struct Waiting<'a> {
    listener: &'a Listener,
    ids: VecDeque<(Instant, String)>,
}

impl Listener {
    /// Returns when the call has ended.
    pub(super) async fn run(self) {
        let (cause, status) = tokio::select! {
            biased;
            refused = self.passage.permission.ended() => ("refused", Some(error_to_status(&refused))),
            () = self.closing.cancelled() => {
                ("agent_shutdown", Some(error_to_status(&ExecutorError::ShuttingDown)))
            }
            late = self.deadline.passed() => ("deadline_exceeded", Some(late)),
            () = self.answers.closed() => ("cancelled", None),
            () = self.serve() => ("cancelled", None),
        };
        let Self { bound, passage, answers, .. } = self;
        drop(bound);
        passage.end(cause, None);
        if let Some(status) = status {
            let _ = answers.send(Err(status)).await;
        }
    }

    /// Returns when the caller is gone.
    async fn serve(&self) {
        let listening = Listening { at: Some(self.bound.at.clone()) };
        if self.answer(Answer::Listening(listening)).await.is_err() {
            return;
        }
        let places = Arc::new(Semaphore::new(MAX_WAITING));
        let mut waiting = Waiting { listener: self, ids: VecDeque::new() };
        loop {
            let accept = async {
                let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
                self.bound.accept().await.map(|socket| (socket, place))
            };
            let accepted = tokio::select! {
                accepted = accept => accepted,
                () = waiting.expired() => continue,
            };
            let Ok((socket, place)) = accepted else {
                // most likely out of descriptors: some will be closed soon
                sleep(Duration::from_millis(50)).await;
                continue;
            };
            let permit = match self.limiter.acquire(&self.identity) {
                Ok(permit) => permit,
                Err(full) => {
                    info!(identity = %self.identity, reason = %full, "closed a connection that was accepted");
                    socket.reset();
                    continue;
                }
            };
            let peer = socket.peer();
            let used = self.passage.used.clone();
            let id = self.accepted.add(&self.identity, AcceptedConnection { socket, used, permit, _place: place });
            waiting.ids.push_back((Instant::now() + TAKE_TIMEOUT, id.clone()));
            if self.answer(Answer::Accepted(Accepted { id, peer })).await.is_err() {
                return;
            }
        }
    }

    async fn answer(&self, step: Answer) -> Result<(), ()> {
        self.answers.send(Ok(ListenResponse { step: Some(step) })).await.map_err(drop)
    }
}

impl Waiting<'_> {
    /// Closes the oldest when its time is over.
    async fn expired(&mut self) {
        match self.ids.front() {
            Some((until, _)) => sleep_until(*until).await,
            None => std::future::pending().await,
        }
        if let Some((_, id)) = self.ids.pop_front() {
            drop(self.listener.accepted.take(&self.listener.identity, &id));
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        for (_, id) in self.ids.drain(..) {
            drop(self.listener.accepted.take(&self.listener.identity, &id));
        }
    }
}
