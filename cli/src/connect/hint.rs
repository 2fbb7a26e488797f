//! Suggestions for connection failures.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError};
use telexec_client::ConnectError;
use telexec_executor::ExecutorError;

const USE_CERTIFICATES: &str = "use --cert, --key and --ca; `telexec certs` can create them";

/// A suggestion for this error, if there is one.
pub(super) fn hint(error: &ExecutorError) -> Option<&'static str> {
    match find::<ConnectError>(error) {
        Some(ConnectError::TlsRequired { .. }) => return Some(USE_CERTIFICATES),
        Some(_) => return None,
        None => {}
    }
    if let Some(error) = find::<rustls::Error>(error) {
        return tls_hint(error);
    }
    match error {
        // without TLS, missing certificates are the only cause
        ExecutorError::Untrusted { .. } => Some(USE_CERTIFICATES),
        ExecutorError::Unreachable { endpoint, .. } => {
            find::<io::Error>(error).and_then(|error| connect_hint(error, endpoint.starts_with("unix:")))
        }
        _ => None,
    }
}

fn connect_hint(error: &io::Error, unix: bool) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::NotFound if unix => Some("check the path; an agent creates it: telexecd --listen unix:///PATH"),
        io::ErrorKind::ConnectionRefused if unix => {
            Some("the agent that created this socket is not running: start it again")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::UnexpectedEof if unix => {
            Some("the agent may run as another user: run telexec as that user or root")
        }
        io::ErrorKind::ConnectionRefused => {
            Some("no agent is listening there: check the port, and that telexecd is running")
        }
        // `io::ErrorKind` has no kind for name resolution failures
        _ if error.to_string().starts_with("failed to lookup") => {
            Some("check the spelling of the host name, or use its IP address")
        }
        _ => None,
    }
}

fn tls_hint(error: &rustls::Error) -> Option<&'static str> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            Some("the agent's certificate was not issued by the CA in --ca")
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some("the agent's certificate is for another name: select one of its names with --server-name"),
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            Some("the agent's certificate has expired: issue a new one, and check this machine's clock")
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRevoked) => {
            Some("the certificate in --cert has been revoked: get a new one")
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            Some("the certificate in --cert has expired: get a new one, and check the clocks of both machines")
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateUnknown) => {
            Some("the agent does not accept the name in --cert from the CA that issued it: see the agent's log")
        }
        rustls::Error::AlertReceived(_) => {
            Some("the agent rejected --cert: it must be a valid client certificate from a CA that the agent trusts")
        }
        rustls::Error::InvalidMessage(_) => Some("the server does not speak TLS: is it a telexec agent?"),
        _ => None,
    }
}

fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
