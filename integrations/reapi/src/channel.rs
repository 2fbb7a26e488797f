//! Connections to the servers.

use std::path::Path;
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};

use crate::args::Args;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// By the kernel: servers in C++ and Python end connections over pings of HTTP/2.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Why there can be no connection, however often it is tried.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    /// A file of the command line.
    #[error("cannot read {path}")]
    File {
        /// Which.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// They would be used for nothing.
    #[error("--tls-ca, --tls-cert and --tls-key are for grpcs://, and {server} has no TLS")]
    NoTls {
        /// The server.
        server: String,
    },
    /// What the files have is no certificate or key.
    #[error("the certificates for {uri} cannot be used")]
    Tls {
        /// The server.
        uri: Uri,
        /// Why not.
        source: tonic::transport::Error,
    },
}

/// A connection, which is made when it is used first, and again when it was lost.
pub(crate) fn channel(uri: &Uri, args: &Args) -> Result<Channel, ChannelError> {
    let endpoint = Endpoint::from(uri.clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Some(KEEPALIVE))
        .tcp_nodelay(true)
        .http2_adaptive_window(true);
    if uri.scheme_str() != Some("https") {
        if args.tls_ca.is_some() || args.tls_cert.is_some() {
            let server = uri.authority().map(ToString::to_string).unwrap_or_default();
            return Err(ChannelError::NoTls { server });
        }
        return Ok(endpoint.connect_lazy());
    }
    let mut tls = ClientTlsConfig::new();
    tls = match &args.tls_ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(read(ca)?)),
        None => tls.with_native_roots(),
    };
    if let Some((cert, key)) = args.tls_cert.as_ref().zip(args.tls_key.as_ref()) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    let endpoint = endpoint.tls_config(tls).map_err(|source| ChannelError::Tls { uri: uri.clone(), source })?;
    Ok(endpoint.connect_lazy())
}

fn read(path: &Path) -> Result<Vec<u8>, ChannelError> {
    std::fs::read(path).map_err(|source| ChannelError::File { path: path.display().to_string(), source })
}
