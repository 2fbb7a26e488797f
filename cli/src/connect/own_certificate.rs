//! The caller's own certificate: whether it is one for callers, when it or the CA expires, and who may read its key.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use telexec_client::{ClientCertificate, Target, TlsCredentials, TlsOptions};
use x509_parser::pem::Pem;

use crate::config::{Config, ResolvedTarget, Route};
use crate::output::{Failure, exit, json, print_message};

/// How long before the end of a certificate its holder is warned, unless the configuration says otherwise.
const WARNING: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Files that were looked at, and for what: many hosts have the same, and one warning is enough.
static SEEN: Mutex<Option<HashSet<(PathBuf, Role)>>> = Mutex::new(None);

/// What a file is used for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    Certificate,
    Key,
}

/// Checks the certificate that a target is called with, and warns once for each file that expires soon, or is a key that
/// others may read. What cannot be read is reported by the connection.
///
/// # Errors
/// The certificate is not for a caller: the agent would refuse it, and say less.
pub(crate) fn check(config: &Config, resolved: &ResolvedTarget) -> Result<(), Failure> {
    let (Route::Direct(Target::Tcp { .. }), Some(tls)) = (&resolved.route, &resolved.options.tls) else {
        return Ok(());
    };
    let TlsCredentials::Files { certificate, ca } = &tls.credentials else { return Ok(()) };
    let within = config.defaults.expiry_warning.unwrap_or(WARNING);
    let is_new = |path: &Path, role| {
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert((path.to_owned(), role))
    };
    let own = certificate.as_ref();
    if let Some(ClientCertificate { key, .. }) = own
        && let Some(warning) = key_warning(key).filter(|_| is_new(key, Role::Key))
    {
        print_message(&warning);
    }
    let cert = own.map(|own| &own.cert);
    for path in cert.into_iter().chain([ca]) {
        if !is_new(path, Role::Certificate) {
            continue;
        }
        let Some(read) = Certificates::read(path) else { continue };
        if Some(path) == cert && !read.is_for_clients {
            let text = "its certificate is not for a client (extended key usage clientAuth), so no agent accepts it";
            return Err(Failure::message(exit::USAGE, format!("cannot use {}: {text}", path.display()))
                .hint(Some("use one that was issued for a caller: telexec certs issue NAME --client")));
        }
        if let Some(warning) = warning(path, read.expire_time, within, SystemTime::now()) {
            print_message(&warning);
        }
    }
    Ok(())
}

/// As ssh, but it goes on: the key may be in a volume whose modes are not the caller's to set.
fn key_warning(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    let path = path.display();
    (mode & 0o077 != 0).then(|| format!("warning: others may use the private key {path}: chmod 600 {path}"))
}

/// When the caller's own certificate expires, if it is in a file.
pub(crate) fn expire_time(tls: &TlsOptions) -> Option<SystemTime> {
    let TlsCredentials::Files { certificate: Some(own), .. } = &tls.credentials else { return None };
    Certificates::read(&own.cert).map(|read| read.expire_time)
}

fn warning(path: &Path, end: SystemTime, within: Duration, now: SystemTime) -> Option<String> {
    let date = json::time(end).and_then(|time| time.split('T').next().map(str::to_owned)).unwrap_or_default();
    let path = path.display();
    match end.duration_since(now) {
        Err(_) => Some(format!("warning: {path} expired on {date}")),
        Ok(rest) if rest < within => Some(format!("warning: {path} expires in {}, on {date}: renew it", coarse(rest))),
        Ok(_) => None,
    }
}

/// In whole days, or hours on the last.
fn coarse(rest: Duration) -> String {
    const HOUR: u64 = 60 * 60;
    let (unit, name) = if rest.as_secs() < 24 * HOUR { (HOUR, "hour") } else { (24 * HOUR, "day") };
    let count = (rest.as_secs() / unit).max(1);
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

/// What matters of the certificates in a file.
struct Certificates {
    /// The end of the first that ends.
    expire_time: SystemTime,
    /// Of the first certificate; one that does not say is for anything.
    is_for_clients: bool,
}

impl Certificates {
    /// `None`: there is none, or it is malformed.
    fn read(path: &Path) -> Option<Self> {
        let data = std::fs::read(path).ok()?;
        let mut read: Option<Self> = None;
        for pem in Pem::iter_from_buffer(&data).filter_map(Result::ok).filter(|pem| pem.label == "CERTIFICATE") {
            let certificate = pem.parse_x509().ok()?;
            let end = SystemTime::from(certificate.validity().not_after.to_datetime());
            let usage = certificate.extended_key_usage().ok()?;
            let is_for_clients = usage.is_none_or(|usage| usage.value.client_auth);
            read = Some(read.map_or(Self { expire_time: end, is_for_clients }, |first| Self {
                expire_time: first.expire_time.min(end),
                ..first
            }));
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_days_are_counted() {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        let now = SystemTime::UNIX_EPOCH + DAY * 20_000;
        let said = |end| warning(Path::new("a.pem"), end, DAY * 14, now);
        assert_eq!(said(now + DAY * 14), None);
        assert_eq!(said(now + DAY * 7 / 2).unwrap(), "warning: a.pem expires in 3 days, on 2024-10-07: renew it");
        assert!(said(now + DAY / 2).unwrap().contains("in 12 hours,"));
        assert_eq!(said(now - DAY).unwrap(), "warning: a.pem expired on 2024-10-03");
        assert_eq!(warning(Path::new("a.pem"), now + DAY, Duration::ZERO, now), None);
    }
}
