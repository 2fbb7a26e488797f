//! The `[audit.syslog]` table of the configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;

use crate::invalid::InvalidSetting;
use crate::tls::private_key;

/// Where the records of the audit log are sent as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyslogConfig {
    /// `tls://HOST:PORT`, or `tcp://HOST:PORT` for a relay on this machine.
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
    pub(super) is_tls: bool,
}

impl SyslogConfig {
    /// Its paths, to be resolved against the directory of the configuration.
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        [&mut self.ca, &mut self.cert, &mut self.key].into_iter().flatten()
    }

    /// Checks it, and the files.
    ///
    /// # Errors
    /// The key, and what is wrong with it.
    pub(crate) fn check(&self) -> Result<(), InvalidSetting> {
        let invalid = |key: &str, fault: String| Err(InvalidSetting(format!("audit.syslog.{key}: {fault}")));
        let server = match self.server() {
            Ok(server) => server,
            Err(fault) => return invalid("address", fault),
        };
        let of_tls = [
            ("ca", self.ca.is_some()),
            ("cert", self.cert.is_some()),
            ("key", self.key.is_some()),
            ("server_name", self.server_name.is_some()),
        ];
        match of_tls.into_iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) if !server.is_tls => return invalid(key, "requires a tls:// address".to_owned()),
            _ => {}
        }
        match (&self.ca, &self.cert, &self.key) {
            (None, _, _) if server.is_tls => return invalid("ca", "is required for a tls:// address".to_owned()),
            (_, Some(_), None) => return invalid("key", "is required with cert".to_owned()),
            (_, None, Some(_)) => return invalid("cert", "is required with key".to_owned()),
            _ => {}
        }
        if !server.is_tls {
            return Ok(());
        }
        self.tls().map(drop).or_else(|(key, fault)| invalid(key, fault))
    }

    /// The server.
    ///
    /// # Errors
    /// What is wrong with the address.
    pub(super) fn server(&self) -> Result<Server<'_>, String> {
        let (is_tls, address) = match self.address.split_once("://") {
            Some(("tls", address)) => (true, address),
            Some(("tcp", address)) => (false, address),
            _ => return Err("expected tls://HOST:PORT, or tcp://HOST:PORT for a relay on this machine".to_owned()),
        };
        let host = host(address).ok_or("expected HOST:PORT after ://, the port is usually 6514 (tls) or 601 (tcp)")?;
        let is_local = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        match is_tls || is_local {
            true => Ok(Server { address, is_tls }),
            false => Err("others could read and change the records on the way: use tls://".to_owned()),
        }
    }

    /// What TLS needs, read from the files, and the name of the server.
    ///
    /// # Errors
    /// The key of the configuration, and what is wrong with it.
    pub(super) fn tls(&self) -> Result<(Arc<ClientConfig>, ServerName<'static>), (&'static str, String)> {
        let ca = self.ca.as_deref().ok_or(("ca", "is missing".to_owned()))?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca).map_err(|fault| ("ca", fault))? {
            roots.add(certificate).map_err(|error| ("ca", format!("{}: {error}", ca.display())))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| ("address", error.to_string()))?
            .with_root_certificates(roots);
        let config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let chain = certificates(cert).map_err(|fault| ("cert", fault))?;
                let private =
                    private_key::read(key).map_err(|error| ("key", telexec_executor::text::error_chain(&error)))?;
                builder
                    .with_client_auth_cert(chain, private)
                    .map_err(|error| ("key", format!("{}: {error}", key.display())))?
            }
            _ => builder.with_no_client_auth(),
        };
        let address = self.address.split_once("://").map_or("", |(_, address)| address);
        let name = self.server_name.as_deref().or_else(|| host(address)).unwrap_or_default();
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| ("server_name", format!("{name:?} is not a host name or an IP address")))?;
        Ok((Arc::new(config), name))
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

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(format!("{} contains no PEM certificate", path.display())),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str) -> Result<(), String> {
        SyslogConfig { address: address.to_owned(), ..SyslogConfig::default() }.check().map_err(|error| error.0)
    }

    #[test]
    fn only_tls_leaves_the_machine() {
        for address in ["tcp://localhost:601", "tcp://127.0.0.1:601", "tcp://[::1]:601"] {
            check(address).unwrap();
        }
        assert!(check("tcp://logs.example.org:601").unwrap_err().ends_with("use tls://"));
        assert_eq!(
            check("tls://logs.example.org:6514").unwrap_err(),
            "audit.syslog.ca: is required for a tls:// address"
        );
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
        let with_ca = SyslogConfig {
            address: "tcp://localhost:601".into(),
            ca: Some("ca.pem".into()),
            ..SyslogConfig::default()
        };
        assert_eq!(with_ca.check().unwrap_err().0, "audit.syslog.ca: requires a tls:// address");
        let missing = SyslogConfig {
            address: "tls://logs:6514".into(),
            ca: Some("/no/ca.pem".into()),
            ..SyslogConfig::default()
        };
        assert!(missing.check().unwrap_err().0.starts_with("audit.syslog.ca: /no/ca.pem: "));
    }
}
