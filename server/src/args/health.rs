//! Asks an agent on this machine whether it serves: for probes of containers and orchestrators.
//!
//! Only where no certificate is asked for: an agent that only callers with certificates reach gets a Unix socket beside
//! that. The agent's own certificate would not do, since it is for a server.

use std::io;
use std::time::Duration;

use hyper::client::conn::http2;
use hyper::http::Uri;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
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
    #[error(
        "no valid answer from {listen}: is it an agent of this user, which needs no certificate there? If not, give its \
         Unix socket (telexecd health unix:///PATH)"
    )]
    Strange {
        /// The address.
        listen: ListenAddress,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It answers with a TLS record.
    #[error(
        "{listen} requires a client certificate, and a health check has none: let the agent listen on a Unix socket too, \
         and check that (telexecd health unix:///PATH)"
    )]
    Tls {
        /// The address.
        listen: ListenAddress,
    },
    /// The timeout passed.
    #[error("no answer from {listen} within {}", humantime::format_duration(*.timeout))]
    Silent {
        /// The address.
        listen: ListenAddress,
        /// The timeout.
        timeout: Duration,
    },
    /// It accepts no commands.
    #[error("the agent at {listen} is not serving: it is shutting down, or its keeper does not respond")]
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
    if config.listen.is_empty() {
        let why = "no address to check: give one (telexecd health unix:///run/telexec/agent.sock), or the agent's own \
                   --config FILE";
        return Err(InvalidSetting(why.into()).into());
    }
    let plain = config.tls_source()?.is_none();
    let unix = config.listen.iter().find(|listen| matches!(listen, ListenAddress::Unix(_)));
    let tcp = || config.listen.iter().find(|listen| plain && matches!(listen, ListenAddress::Tcp(_)));
    unix.or_else(tcp).cloned().ok_or_else(|| {
        let why = "all addresses of the agent require a client certificate, or a token: let it listen on a Unix socket too \
                   (listen = [\"unix:///run/telexec/agent.sock\", ...]), or give an address (telexecd health unix:///PATH)";
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
            ListenAddress::Tcp(address) => {
                let result = call(listen, TcpStream::connect(address).await.map_err(unreachable)?).await;
                match result {
                    Err(HealthError::Strange { .. }) if speaks_tls(address).await.unwrap_or(false) => {
                        Err(HealthError::Tls { listen: listen.clone() })
                    }
                    result => result,
                }
            }
            ListenAddress::Vsock { .. } | ListenAddress::Systemd => Err(unreachable(io::ErrorKind::Unsupported.into())),
        }
    };
    let silent = || HealthError::Silent { listen: listen.clone(), timeout };
    tokio::time::timeout(timeout, asked).await.unwrap_or_else(|_| Err(silent()))
}

/// Whether it answers what is no TLS with a TLS alert.
async fn speaks_tls(address: &str) -> io::Result<bool> {
    const ALERT: u8 = 21;
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
    Ok(stream.read_u8().await? == ALERT)
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
