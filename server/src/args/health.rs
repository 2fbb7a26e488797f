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

use crate::address::Listen;
use crate::config::{Config, ConfigError};
use crate::invalid::InvalidSetting;

/// An agent that does not serve, or does not say so.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HealthError {
    /// Nobody answers there.
    #[error("{listen} cannot be reached: does the agent run?")]
    Unreachable {
        /// The address.
        listen: Listen,
        /// The cause.
        source: io::Error,
    },
    /// It lets this user not in, or speaks something else.
    #[error("{listen} does not answer as an agent does: does the agent run as this user, and without TLS there?")]
    Strange {
        /// The address.
        listen: Listen,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It took too long.
    #[error("{listen} does not answer within {}", humantime::format_duration(*.timeout))]
    Silent {
        /// The address.
        listen: Listen,
        /// How long it had.
        timeout: Duration,
    },
    /// It answers, but takes no commands.
    #[error("the agent at {listen} does not serve: it is shutting down")]
    NotServing {
        /// The address.
        listen: Listen,
    },
}

/// Where an agent of this configuration can be asked without a certificate.
///
/// # Errors
/// Nowhere.
pub(crate) fn address(config: &Config) -> Result<Listen, ConfigError> {
    let plain = config.tls_files()?.is_none();
    let unix = config.listen.iter().find(|listen| matches!(listen, Listen::Unix(_)));
    let tcp = || config.listen.iter().find(|listen| plain && matches!(listen, Listen::Tcp(_)));
    unix.or_else(tcp).cloned().ok_or_else(|| {
        let why = "the agent cannot be asked without a certificate: let it listen on a Unix socket too \
                   (listen = [\"unix:///run/telexec/agent.sock\", ...]), or name one here (telexecd health unix:///PATH)";
        ConfigError::from(InvalidSetting(why.into()))
    })
}

/// Asks once.
///
/// # Errors
/// It does not serve.
pub(crate) async fn ask(listen: &Listen, timeout: Duration) -> Result<(), HealthError> {
    let asked = async {
        let unreachable = |source| HealthError::Unreachable { listen: listen.clone(), source };
        match listen {
            Listen::Unix(path) => call(listen, UnixStream::connect(path).await.map_err(unreachable)?).await,
            Listen::Tcp(address) => call(listen, TcpStream::connect(address).await.map_err(unreachable)?).await,
            Listen::Vsock { .. } | Listen::Systemd => Err(unreachable(io::ErrorKind::Unsupported.into())),
        }
    };
    let silent = || HealthError::Silent { listen: listen.clone(), timeout };
    tokio::time::timeout(timeout, asked).await.unwrap_or_else(|_| Err(silent()))
}

async fn call<S>(listen: &Listen, stream: S) -> Result<(), HealthError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    fn strange<E: Into<Box<dyn std::error::Error + Send + Sync>>>(listen: &Listen) -> impl FnOnce(E) -> HealthError {
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
