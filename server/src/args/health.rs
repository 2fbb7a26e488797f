//! Asks an agent on this machine whether it serves: for probes of containers and orchestrators.
//!
//! Only where no certificate is asked for: an agent that only callers with certificates reach gets a Unix socket beside
//! that. The agent's own certificate would not do, since it is for a server.

use std::io;
use std::time::Duration;

use hyper::client::conn::http2;
use hyper::http::Uri;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tonic::body::Body;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::address::ListenAddress;
use crate::config::{Config, ConfigError};
use crate::invalid::InvalidSetting;

/// Why an agent is not known to be serving.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HealthError {
    /// No connection.
    #[error("cannot connect to {listen}: is the agent running?")]
    Unreachable {
        /// The address.
        listen: ListenAddress,
        /// The cause.
        source: io::Error,
    },
    /// The connection is refused or does not speak gRPC.
    #[error("no valid answer from {listen}: is it an agent, running as this user, without TLS on this address?")]
    Strange {
        /// The address.
        listen: ListenAddress,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The timeout passed.
    #[error("no answer from {listen} within {}", humantime::format_duration(*.timeout))]
    Silent {
        /// The address.
        listen: ListenAddress,
        /// The timeout.
        timeout: Duration,
    },
    /// It accepts no more commands.
    #[error("the agent at {listen} is not serving: it is shutting down")]
    NotServing {
        /// The address.
        listen: ListenAddress,
    },
}

/// The address of an agent with this configuration that needs no certificate.
///
/// # Errors
/// There is none.
pub(crate) fn address(config: &Config) -> Result<ListenAddress, ConfigError> {
    let plain = config.tls_files()?.is_none();
    let unix = config.listen.iter().find(|listen| matches!(listen, ListenAddress::Unix(_)));
    let tcp = || config.listen.iter().find(|listen| plain && matches!(listen, ListenAddress::Tcp(_)));
    unix.or_else(tcp).cloned().ok_or_else(|| {
        let why = "the agent cannot be reached without a certificate: let it listen on a Unix socket too \
                   (listen = [\"unix:///run/telexec/agent.sock\", ...]), or name an address (telexecd health unix:///PATH)";
        ConfigError::from(InvalidSetting(why.into()))
    })
}

/// Makes one health check.
///
/// # Errors
/// It is not serving.
pub(crate) async fn check(listen: &ListenAddress, timeout: Duration) -> Result<(), HealthError> {
    let asked = async {
        let unreachable = |source| HealthError::Unreachable { listen: listen.clone(), source };
        match listen {
            ListenAddress::Unix(path) => call(listen, UnixStream::connect(path).await.map_err(unreachable)?).await,
            ListenAddress::Tcp(address) => call(listen, TcpStream::connect(address).await.map_err(unreachable)?).await,
            ListenAddress::Vsock { .. } | ListenAddress::Systemd => Err(unreachable(io::ErrorKind::Unsupported.into())),
        }
    };
    let silent = || HealthError::Silent { listen: listen.clone(), timeout };
    tokio::time::timeout(timeout, asked).await.unwrap_or_else(|_| Err(silent()))
}

async fn call<S>(listen: &ListenAddress, stream: S) -> Result<(), HealthError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    fn strange<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        listen: &ListenAddress,
    ) -> impl FnOnce(E) -> HealthError {
        let listen = listen.clone();
        |source| HealthError::Strange { listen, source: source.into() }
    }
    let handshake = http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(strange(listen))?;
    tokio::spawn(connection);
    let service = tower::service_fn(move |request| {
        let mut sender = sender.clone();
        async move { sender.send_request(request).await }
    });
    let mut client = HealthClient::with_origin(service, Uri::from_static("http://localhost"));
    let answer = client.check(HealthCheckRequest::default()).await.map_err(strange(listen))?;
    match answer.into_inner().status() {
        ServingStatus::Serving => Ok(()),
        _ => Err(HealthError::NotServing { listen: listen.clone() }),
    }
}
