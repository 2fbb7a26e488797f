//! What to do about connections that fail because of certificates.

use super::Protocol;

/// How rustls writes it that the server refuses the connection; h2 passes on the text alone.
const ALERT: &str = "received fatal alert: ";
const UNKNOWN_ISSUER: &str = "invalid peer certificate: UnknownIssuer";

/// The setting that a failure is about; `None`: it is about none.
pub(super) fn explain(error: &str, protocol: Protocol) -> Option<String> {
    let key = protocol.key();
    if error.contains(UNKNOWN_ISSUER) {
        return Some(format!("none of the CAs in audit.{key}.ca has issued the server's certificate"));
    }
    let (_, alert) = error.split_once(ALERT)?;
    let alert = alert.split(|c: char| !c.is_alphanumeric()).next()?;
    Some(match alert {
        "CertificateRequired" => {
            format!("the server requires a certificate: set audit.{key}.cert and audit.{key}.key")
        }
        "UnknownCA" => format!("the server does not trust the CA that issued audit.{key}.cert"),
        "UnsupportedCertificate" => {
            format!("the server does not accept audit.{key}.cert: is it for clients (extended key usage clientAuth)?")
        }
        "CertificateExpired" => format!("audit.{key}.cert has expired"),
        "CertificateRevoked" => format!("audit.{key}.cert has been revoked"),
        "BadCertificate" | "CertificateUnknown" | "AccessDenied" => {
            format!("the server does not accept audit.{key}.cert ({alert}): see its log")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rustls::{AlertDescription, CertificateError, Error};

    use super::*;

    #[test]
    fn failures_of_tls_are_known_by_their_text() {
        use AlertDescription as Alert;
        let explained = |error: Error| explain(&error.to_string(), Protocol::Otlp);
        let issuer = explained(Error::InvalidCertificate(CertificateError::UnknownIssuer)).unwrap();
        assert_eq!(issuer, "none of the CAs in audit.otlp.ca has issued the server's certificate");
        for (alert, text) in [
            (Alert::CertificateRequired, "set audit.otlp.cert and audit.otlp.key"),
            (Alert::UnknownCA, "does not trust the CA that issued audit.otlp.cert"),
            (Alert::UnsupportedCertificate, "clientAuth"),
            (Alert::CertificateExpired, "audit.otlp.cert has expired"),
            (Alert::CertificateRevoked, "audit.otlp.cert has been revoked"),
            (Alert::BadCertificate, "(BadCertificate)"),
            (Alert::CertificateUnknown, "(CertificateUnknown)"),
            (Alert::AccessDenied, "(AccessDenied)"),
        ] {
            assert!(explained(Error::AlertReceived(alert)).unwrap().contains(text), "{alert:?}");
        }
        assert_eq!(explained(Error::AlertReceived(Alert::InternalError)), None);
    }
}
