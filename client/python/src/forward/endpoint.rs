//! Addresses as Python writes them.

use telexec_client::{Dial, Endpoint};

use crate::failure::Failure;

/// Where to connect to: `HOST:PORT`, `unix:///PATH` or `/PATH`.
pub(crate) fn dialled(field: &str, text: &str) -> Result<Endpoint, Failure> {
    match parse(text) {
        Some(Endpoint::Tcp { port: 0, .. }) => Err(invalid(field, text, "port 0 cannot be connected to")),
        Some(endpoint) => Ok(endpoint),
        None => Err(invalid(field, text, "expected HOST:PORT or unix:///PATH")),
    }
}

/// The same, as this user of the agent's machine.
pub(crate) fn dialled_as(to: &Endpoint, user: Option<&str>) -> Result<Dial, Failure> {
    match (to, user) {
        (Endpoint::Tcp { .. }, Some(user)) => {
            Err(invalid("user", user, "is for Unix sockets only: TCP is spoken by the agent itself"))
        }
        (to, user) => Ok(Dial::with_user(to.clone(), user)),
    }
}

/// Where to listen: as [`dialled`]; port 0 is any that is free.
pub(crate) fn listened(text: &str) -> Result<Endpoint, Failure> {
    parse(text).ok_or_else(|| invalid("listen", text, "expected HOST:PORT or unix:///PATH"))
}

fn parse(text: &str) -> Option<Endpoint> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if path.starts_with('/') {
        return (!path.contains('\0')).then(|| Endpoint::Unix(path.to_owned()));
    }
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(ipv6) => ipv6.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/');
    (is_number && is_host).then_some(())?;
    Some(Endpoint::Tcp { host: host.to_owned(), port: port.parse().ok()? })
}

fn invalid(field: &str, text: &str, reason: &str) -> Failure {
    Failure::new("Invalid", format!("{field}: {text:?}: {reason}"))
}
