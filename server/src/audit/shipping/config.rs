//! The tables `[audit.syslog]` and `[audit.otlp]` of the configuration.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use telexec_executor::text::error_chain;

use crate::invalid::InvalidSetting;
use crate::tls::{TlsError, certificates, private_key, roots};

/// How records are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Syslog,
    /// Logs of the OpenTelemetry protocol, by gRPC.
    Otlp,
}

/// The schemes of addresses, and ports for an example.
struct Schemes {
    tls: &'static str,
    plain: &'static str,
    ports: &'static str,
}

impl Protocol {
    /// Of its table below `[audit]`.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Syslog => "syslog",
            Self::Otlp => "otlp",
        }
    }

    fn schemes(self) -> Schemes {
        match self {
            Self::Syslog => Schemes { tls: "tls", plain: "tcp", ports: "usually 6514 (tls) or 601 (tcp)" },
            Self::Otlp => Schemes { tls: "https", plain: "http", ports: "usually 4317" },
        }
    }

    fn invalid(self, key: &str, fault: &str) -> InvalidSetting {
        InvalidSetting(format!("audit.{}.{key}: {fault}", self.key()))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syslog => "syslog",
            Self::Otlp => "the OpenTelemetry collector",
        })
    }
}

/// Where the records of the audit log are sent as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DestinationConfig {
    /// `tls://HOST:PORT` for syslog, `https://HOST:PORT` for OpenTelemetry; `tcp://` and `http://` are for this machine.
    pub address: String,
    /// The CAs of the server's certificate (PEM). Required for TLS.
    pub ca: Option<PathBuf>,
    /// This side's certificate chain (PEM). Default: none.
    pub cert: Option<PathBuf>,
    /// Its private key (PEM).
    pub key: Option<PathBuf>,
    /// The name in the server's certificate. Default: the host of the address.
    pub server_name: Option<String>,
}

/// An address that was checked.
pub(super) struct Server<'a> {
    /// `HOST:PORT`
    pub(super) address: &'a str,
    /// The CAs of its certificate, and the name in that; `None`: without TLS.
    pub(super) tls: Option<(&'a Path, ServerName<'static>)>,
}

impl DestinationConfig {
    /// Its paths, to be resolved against the directory of the configuration.
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        [&mut self.ca, &mut self.cert, &mut self.key].into_iter().flatten()
    }

    /// Checks it, and the files.
    ///
    /// # Errors
    /// The key, and what is wrong with it.
    pub(crate) fn check(&self, protocol: Protocol) -> Result<(), InvalidSetting> {
        if protocol == Protocol::Otlp && !cfg!(feature = "otlp") {
            return Err(InvalidSetting("audit.otlp: this telexecd was built without the feature otlp".to_owned()));
        }
        let (tls, schemes) = (self.server(protocol)?.tls, protocol.schemes());
        let invalid = |key: &str, fault: &str| protocol.invalid(key, fault);
        let of_tls = [
            ("ca", self.ca.is_some()),
            ("cert", self.cert.is_some()),
            ("key", self.key.is_some()),
            ("server_name", self.server_name.is_some()),
        ];
        match of_tls.into_iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) if tls.is_none() => {
                return Err(invalid(key, &format!("requires {}://", schemes.tls)));
            }
            _ => {}
        }
        match (tls, &self.cert, &self.key) {
            (_, Some(_), None) => Err(invalid("key", "is required with cert")),
            (_, None, Some(_)) => Err(invalid("cert", "is required with key")),
            (Some((ca, _)), _, _) => {
                let failed = |error| InvalidSetting(format!("audit.{}: {}", protocol.key(), error_chain(&error)));
                self.tls(ca).map(drop).map_err(failed)
            }
            _ => Ok(()),
        }
    }

    /// The server.
    ///
    /// # Errors
    /// The key, and what is wrong with it.
    pub(super) fn server(&self, protocol: Protocol) -> Result<Server<'_>, InvalidSetting> {
        let Schemes { tls, plain, ports } = protocol.schemes();
        let invalid = |key: &str, fault: &str| protocol.invalid(key, fault);
        let (is_tls, address) = match self.address.split_once("://") {
            Some((scheme, address)) if scheme == tls => (true, address),
            Some((scheme, address)) if scheme == plain => (false, address),
            _ => {
                let expected = format!("expected {tls}://HOST:PORT, or {plain}://HOST:PORT on this machine");
                return Err(invalid("address", &expected));
            }
        };
        let port = format!("expected HOST:PORT and nothing else after ://; the port is {ports}");
        let host = host(address).ok_or_else(|| invalid("address", &port))?;
        let is_local = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if !is_tls && !is_local {
            return Err(invalid(
                "address",
                &format!("others could read and change the records on the way: use {tls}://"),
            ));
        }
        if !is_tls {
            return Ok(Server { address, tls: None });
        }
        let ca = self.ca.as_deref().ok_or_else(|| invalid("ca", &format!("is required with {tls}://")))?;
        let name = ServerName::try_from(self.server_name.as_deref().unwrap_or(host).to_owned());
        let name = name.map_err(|_| invalid("server_name", "expected a host name or an IP address"))?;
        Ok(Server { address, tls: Some((ca, name)) })
    }

    /// What TLS needs, read from the files.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub(super) fn tls(&self, ca: &Path) -> Result<Arc<ClientConfig>, TlsError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|source| TlsError::Ca { path: ca.to_owned(), source: source.into() })?
            .with_root_certificates(roots(ca, certificates(ca)?)?);
        let config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let (chain, private) = (certificates(cert)?, private_key::read(key)?);
                builder.with_client_auth_cert(chain, private).map_err(|source| TlsError::pair(cert, key, source))?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }
}

/// The host of `HOST:PORT`, of which an IPv6 address has brackets around it.
fn host(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let is_host = !host.is_empty() && !host.contains(['/', '@', ' ']);
    (is_host && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str) -> Result<(), String> {
        DestinationConfig { address: address.to_owned(), ..DestinationConfig::default() }
            .check(Protocol::Syslog)
            .map_err(|error| error.0)
    }

    #[test]
    fn only_tls_leaves_the_machine() {
        for address in ["tcp://localhost:601", "tcp://127.0.0.1:601", "tcp://[::1]:601"] {
            check(address).unwrap();
        }
        assert!(check("tcp://logs.example.org:601").unwrap_err().ends_with("use tls://"));
        assert_eq!(check("tls://logs.example.org:6514").unwrap_err(), "audit.syslog.ca: is required with tls://");
    }

    #[test]
    fn what_is_malformed_is_named() {
        for address in [
            "",
            "logs:6514",
            "udp://localhost:514",
            "tcp://localhost",
            "tcp://:601",
            "tcp://::1:601",
            "tcp://localhost:0",
        ] {
            assert!(check(address).unwrap_err().starts_with("audit.syslog.address: expected "), "{address}");
        }
        let with_ca = DestinationConfig {
            address: "tcp://localhost:601".into(),
            ca: Some("ca.pem".into()),
            ..DestinationConfig::default()
        };
        assert_eq!(with_ca.check(Protocol::Syslog).unwrap_err().0, "audit.syslog.ca: requires tls://");
        let missing = DestinationConfig {
            address: "tls://logs:6514".into(),
            ca: Some("/no/ca.pem".into()),
            ..DestinationConfig::default()
        };
        assert!(
            missing
                .check(Protocol::Syslog)
                .unwrap_err()
                .0
                .starts_with("audit.syslog: cannot read a certificate from /no/ca.pem: ")
        );
    }
}
