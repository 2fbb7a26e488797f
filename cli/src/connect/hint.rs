//! Suggestions for connection failures.

use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustls::{AlertDescription, CertificateError};
use telexec_client::{ConnectError, LookupError, Target, TlsCredentials};
use telexec_executor::{ExecutorError, SpawnError, SpawnStage, asked_named_command};
use telexec_nats_client::NatsTarget;

use crate::config::{ResolvedTarget, UnconfiguredName, locate};
use crate::output::{Failure, exit, with_causes};

const PLAIN: &str = "is it a telexec agent? one started with --insecure is reached without credentials";
const USE_CERTIFICATES: &str = "use --cert, --key and --ca (`telexec certs` can create them), or --spiffe-socket";

/// The failure to connect to a host whose name may be a mistyped target.
pub(super) fn unreachable(error: ConnectError, resolved: &ResolvedTarget) -> Failure {
    let name = resolved.unconfigured.as_ref();
    let lookup = find::<LookupError>(&error);
    let failure = Failure::message(exit::of_error(&ExecutorError::from(error.clone())), with_causes(&error));
    let failure = match (&error, name, lookup) {
        (_, Some(unconfigured), Some(LookupError { reason, .. })) => {
            let what = "in the configuration, and no host of that name was found";
            return Failure::message(exit::LOST, format!("no target named {:?} {what}: {reason}", unconfigured.name))
                .hint(suggestion(unconfigured));
        }
        // nobody has asked yet whether there is such a host
        (ConnectError::TlsRequired { .. }, Some(unconfigured), _) => {
            let name = &unconfigured.name;
            failure
                .hint(Some(format!("{name} is no target in the configuration, so it is taken for the name of a host")))
                .hint(suggestion(unconfigured))
        }
        _ => failure,
    };
    failure.hint(hint_for(&ExecutorError::from(error), resolved))
}

fn suggestion(UnconfiguredName { name, similar, is_group }: &UnconfiguredName) -> Option<String> {
    if *is_group {
        return Some(format!("{name} is a group in the configuration: for its hosts, use telexec fleet -w @{name}"));
    }
    if Path::new(name).is_file() {
        return Some(format!("{name} is a file here: credentials are given with --cert, --key and --ca"));
    }
    let names = similar.join(", ");
    (!similar.is_empty()).then(|| format!("similar targets in the configuration: {names}"))
}

/// A suggestion for an error of a target, which names the file of the configuration where no flag has set what is wrong.
pub(crate) fn hint_for(error: &ExecutorError, resolved: &ResolvedTarget) -> Option<String> {
    let hint = hint(error)?;
    let is_local = resolved.route.direct().is_some_and(Target::is_local);
    if let (true, Some(rustls::Error::InvalidMessage(_))) = (is_local, find(error)) {
        return Some(format!("{hint}; {}", without_credentials(&resolved.configured)));
    }
    let Some(tls) = resolved.options.tls.as_ref().filter(|_| find::<rustls::Error>(error).is_some()) else {
        return Some(hint);
    };
    let TlsCredentials::Files { certificate, ca } = &tls.credentials else {
        return find(error).and_then(spiffe_hint).map(str::to_owned);
    };
    let cert = certificate.as_ref().map(|own| ("--cert", "cert", &own.cert));
    let settings = cert.into_iter().chain([("--ca", "ca", ca)]);
    let configured = settings.filter(|(_, key, _)| resolved.configured.contains(key));
    Some(configured.fold(hint, |hint, (flag, key, path)| {
        let file = locate().map(|(file, _)| file.display().to_string()).unwrap_or_default();
        hint.replace(flag, &format!("{key} = {:?} in {file}", path.display().to_string()))
    }))
}

/// How to reach an agent without the credentials that are configured under these keys, or given otherwise.
fn without_credentials(configured: &[&str]) -> String {
    match (configured, locate()) {
        ([], _) | (_, None) => {
            "leave out --cert, --key and --ca, and TELEXEC_CERT, TELEXEC_KEY and TELEXEC_CA".to_owned()
        }
        (keys, Some((file, _))) => {
            let keys = keys.join(", ").replace(", ca", " and ca");
            format!("leave {keys} out of {}, or set TELEXEC_CONFIG=/dev/null", file.display())
        }
    }
}

/// A suggestion for this error, if there is one.
pub(crate) fn hint(error: &ExecutorError) -> Option<String> {
    match find::<ConnectError>(error) {
        Some(ConnectError::TlsRequired { .. }) => return Some(USE_CERTIFICATES.to_owned()),
        Some(_) => return None,
        None => {}
    }
    if let Some(error) = find::<rustls::Error>(error) {
        return tls_hint(error).map(str::to_owned);
    }
    // our own verification says it all
    if find::<rustls::OtherError>(error).is_some() {
        return None;
    }
    match error {
        // without TLS, missing certificates are the only cause
        ExecutorError::Untrusted { .. } => Some(USE_CERTIFICATES.to_owned()),
        ExecutorError::Spawn(spawn) if spawn.is_not_found() => {
            commands_hint("TARGET", error).or_else(|| spawn_hint(spawn))
        }
        // of many agents at once: with the id these would all be different
        ExecutorError::ApprovalRequired { .. } => Some(approval_hint("TARGET", "ID")),
        ExecutorError::Unreachable { .. } if find::<LookupError>(error).is_some() => {
            Some("check the spelling of the host name, or use its IP address".to_owned())
        }
        ExecutorError::Unreachable { endpoint, .. } => {
            if NatsTarget::is_meant(endpoint) {
                let is_away = chain(error).any(|error| error.to_string().starts_with("no agent of this name"));
                return is_away.then(|| "check the name; --queue DUR waits for an agent that is away".to_owned());
            }
            let cause = find::<io::Error>(error)?;
            let path = endpoint.strip_prefix("unix://").or_else(|| hypervisor_socket(endpoint));
            path.map_or_else(|| tcp_hint(cause), |path| unix_hint(cause, Path::new(path)))
        }
        _ => None,
    }
}

/// How to go on from a request for an approval.
pub(super) fn approval_hint(target: &str, id: &str) -> String {
    format!("somebody else has to run `telexec approve {target} {id}`; then run the same command again")
}

/// Where the names of commands are, after one that is unknown.
pub(super) fn commands_hint(target: &str, error: &ExecutorError) -> Option<String> {
    let ExecutorError::Spawn(error) = error else { return None };
    asked_named_command(&[&error.subject]).map(|_| format!("`telexec commands {target}` lists the named commands"))
}

/// A word with a space that is no program is meant for a shell.
fn spawn_hint(error: &SpawnError) -> Option<String> {
    let is_program = error.stage == SpawnStage::Exec && error.subject.contains(' ');
    let quoted = error.subject.replace('\'', "'\\''");
    is_program.then(|| {
        format!("this is a single word, so it is taken as the name of a program; for a shell command use -c '{quoted}'")
    })
}

/// The path in `vsock-uds://PATH:PORT`.
fn hypervisor_socket(endpoint: &str) -> Option<&str> {
    endpoint.strip_prefix("vsock-uds://")?.rsplit_once(':').map(|(path, _)| path)
}

fn tcp_hint(error: &io::Error) -> Option<String> {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            Some("no agent is listening there: check the port, and that telexecd is running".to_owned())
        }
        _ => None,
    }
}

fn unix_hint(error: &io::Error, path: &Path) -> Option<String> {
    let is_socket = fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    match error.kind() {
        io::ErrorKind::NotFound => Some(missing_socket(path)),
        io::ErrorKind::ConnectionRefused if is_socket => {
            Some("the agent that created this socket is not running: start it again".to_owned())
        }
        io::ErrorKind::ConnectionRefused => Some(format!("{} is not a socket: check the path", path.display())),
        io::ErrorKind::PermissionDenied | io::ErrorKind::UnexpectedEof => {
            Some("the agent may run as another user: run telexec as that user or root".to_owned())
        }
        _ => None,
    }
}

/// Which part of the path is missing, and what to do.
fn missing_socket(path: &Path) -> String {
    let listen = format!("start the agent (telexecd --listen unix://{}), or check the path", path.display());
    match path.ancestors().skip(1).take_while(|directory| !directory.exists()).last() {
        Some(directory) => format!("there is no directory {}: {listen}", directory.display()),
        None => format!("the socket does not exist, though its directory does: {listen}"),
    }
}

fn tls_hint(error: &rustls::Error) -> Option<&'static str> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            Some("--ca must name the CA that issued the agent's certificate")
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some(
            "check the address, or select one of the names in the certificate with --server-name (TELEXEC_SERVER_NAME, or server_name in the configuration)",
        ),
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            Some("issue a new certificate for the agent, and check this machine's clock")
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRevoked) => Some("get a new certificate for --cert"),
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            Some("get a new certificate for --cert, and check the clocks of both machines")
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateUnknown) => Some(
            "the agent's log says which name; [identities] in its configuration says which CA may issue it, or [spiffe] who may call",
        ),
        rustls::Error::AlertReceived(AlertDescription::AccessDenied) => None,
        rustls::Error::AlertReceived(_) => {
            Some("--cert must be a valid client certificate from a CA that the agent trusts")
        }
        rustls::Error::InvalidMessage(_) => Some(PLAIN),
        _ => None,
    }
}

/// The same where certificates are from the Workload API.
fn spiffe_hint(error: &rustls::Error) -> Option<&'static str> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            Some("the agent's certificate is not of your trust domain: name its SPIFFE ID with --server-name")
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some(
            "name the agent's SPIFFE ID with --server-name (TELEXEC_SERVER_NAME, or server_name in the configuration)",
        ),
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            Some("the agent cannot renew it: see its log, and check this machine's clock")
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateUnknown) => Some(
            "the agent's log says why: your SPIFFE ID matches no pattern in callers of its [spiffe], or your trust domain is not federated with the agent's",
        ),
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => Some(
            "the Workload API has issued an expired certificate: see its log, and check the clocks of both machines",
        ),
        rustls::Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            Some("the agent's trust bundle does not have the CA of your certificate")
        }
        rustls::Error::InvalidMessage(_) => Some(PLAIN),
        _ => None,
    }
}

fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    chain(error).find_map(|error| error.downcast_ref())
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}
