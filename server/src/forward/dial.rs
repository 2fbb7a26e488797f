//! Makes connections.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use telexec_executor::ExecutorError;
use telexec_proto::convert::{ForwardFailure, ForwardStep};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};

use super::Forwards;
use super::dial_as::dial_as;
use super::passed::PassedStream;
use super::socket::Socket;
use crate::admission::Stack;
use crate::identity::Identity;
use crate::policy::{Endpoint, PortUse};

/// For the look-up and all addresses together, or for the process that connects.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no connection.
pub(super) enum DialError {
    Failed(ForwardFailure),
    /// The process of the user did not start, or gave no answer.
    Process(ExecutorError),
}

impl From<ForwardFailure> for DialError {
    fn from(failure: ForwardFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<ExecutorError> for DialError {
    fn from(error: ExecutorError) -> Self {
        Self::Process(error)
    }
}

impl Forwards {
    /// # Errors
    /// That of the last address, if none answers.
    pub(super) async fn dial(&self, stack: &Stack, used: &PortUse, identity: &Identity) -> Result<Socket, DialError> {
        let until = Instant::now() + TIMEOUT;
        match &used.endpoint {
            Endpoint::Tcp { host, port } => Ok(Socket::tuned(self.dial_tcp(host, *port, identity, until).await?)),
            Endpoint::Unix(path) => {
                let dialled = timeout_at(until, self.dial_unix(stack, path, used.user.as_deref(), identity)).await;
                dialled.unwrap_or_else(|_| Err(failed(path, &no_answer()).into()))
            }
        }
    }

    async fn dial_tcp(
        &self,
        host: &str,
        port: u16,
        identity: &Identity,
        until: Instant,
    ) -> Result<TcpStream, ForwardFailure> {
        let to = Endpoint::Tcp { host: host.to_owned(), port };
        let found = timeout_at(until, self.look_up(host, port, identity)).await;
        let addresses = found
            .map_err(|_| failed(&to, &no_answer()))?
            .map_err(|(errno, reason)| ForwardFailure::because(ForwardStep::Dial, &to, errno, &reason))?;
        any(&addresses, until).await.map_err(|error| failed(&to, &error))
    }

    async fn dial_unix(
        &self,
        stack: &Stack,
        path: &str,
        user: Option<&str>,
        identity: &Identity,
    ) -> Result<Socket, DialError> {
        let other = user.filter(|user| !self.connects_as(user));
        let stream = match other {
            Some(user) => dial_as(stack, identity, user, path).await?,
            None => UnixStream::connect(path).await.map_err(|error| failed(path, &error))?,
        };
        // there a caller would be taken for a user of this machine
        if self.is_own_socket(&stream) {
            let reason = "it is the agent's own socket";
            return Err(ForwardFailure::because(ForwardStep::Dial, path, "EACCES", reason).into());
        }
        Ok(if other.is_some() { Socket::Passed(PassedStream::new(stream)) } else { Socket::Unix(stream) })
    }

    fn is_own_socket(&self, stream: &UnixStream) -> bool {
        let own = i32::try_from(std::process::id()).ok();
        let listener = stream.peer_cred().ok().and_then(|peer| peer.pid());
        let is_bound = |path: &Path| self.own.sockets.iter().any(|own| own == path);
        listener.is_some() && listener == own
            || stream.peer_addr().is_ok_and(|address| address.as_pathname().is_some_and(is_bound))
    }

    /// The addresses of a name, or the name of the error and why there are none. Others' look-ups that hang do not hold it up.
    pub(super) async fn look_up(
        &self,
        host: &str,
        port: u16,
        identity: &Identity,
    ) -> Result<Vec<SocketAddr>, (&'static str, String)> {
        if let Ok(address) = host.parse() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let name = host.to_owned();
        let found = self.names.run(identity.as_str(), move || (name.as_str(), port).to_socket_addrs()).await;
        let found = found.map_err(|lost| ("EAI_SYSTEM", lost.to_string()))?.map_err(|error| {
            let text = error.to_string();
            let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text).to_lowercase();
            (look_up_errno(&error, &text), text)
        })?;
        let found: Vec<_> = found.collect();
        if found.is_empty() { Err(("EAI_NONAME", "the name has no address".to_owned())) } else { Ok(found) }
    }
}

/// The standard library tells the results of getaddrinfo(3) by their texts only: those of glibc and musl.
fn look_up_errno(error: &io::Error, text: &str) -> &'static str {
    match text {
        "temporary failure in name resolution" | "try again" => "EAI_AGAIN",
        _ if error.raw_os_error().is_some() => "EAI_SYSTEM",
        _ => "EAI_NONAME",
    }
}

/// Each gets its share of the time that is left.
async fn any(addresses: &[SocketAddr], until: Instant) -> io::Result<TcpStream> {
    let mut failure = no_answer();
    for (at, address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        let share = until.saturating_duration_since(Instant::now()) / left;
        match tokio::time::timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = no_answer(),
        }
    }
    Err(failure)
}

fn failed(to: impl fmt::Display, error: &io::Error) -> ForwardFailure {
    ForwardFailure::new(ForwardStep::Dial, to, error)
}

fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer")
}
