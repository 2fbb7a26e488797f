//! Addresses from the wire, in the form that policies see, and back.

use std::net::{IpAddr, SocketAddr};

use telexec_executor::InvalidCommand;
use telexec_proto::v1::{TcpAddress, dial, listen_request};

use crate::policy::{Endpoint, is_plain};

/// As of DNS.
const MAX_HOST_BYTES: usize = 253;
/// As of the kernel.
const MAX_UNIX_PATH_BYTES: usize = 107;

/// What a Dial asks for.
pub(super) enum Dialled {
    To(Endpoint),
    /// A connection that was accepted.
    Accepted(String),
}

/// # Errors
/// It is malformed.
pub(super) fn dialled(to: Option<dial::To>) -> Result<Dialled, InvalidCommand> {
    match to {
        Some(dial::To::Tcp(TcpAddress { port: 0, .. })) => Err(InvalidCommand::new("dial.tcp.port", "is missing")),
        Some(dial::To::Tcp(address)) => Ok(Dialled::To(tcp("dial.tcp", &address)?)),
        Some(dial::To::UnixPath(path)) => Ok(Dialled::To(unix("dial.unix_path", path)?)),
        Some(dial::To::Accepted(id)) => Ok(Dialled::Accepted(id)),
        None => Err(InvalidCommand::new("dial.to", "is missing")),
    }
}

/// # Errors
/// It is malformed.
pub(super) fn listening(at: Option<listen_request::At>) -> Result<Endpoint, InvalidCommand> {
    match at {
        Some(listen_request::At::Tcp(mut address)) => {
            let host = match address.host.as_str() {
                "" => "localhost",
                "*" => "::",
                host => host,
            };
            address.host = host.to_owned();
            tcp("tcp", &address)
        }
        Some(listen_request::At::UnixPath(path)) => unix("unix_path", path),
        None => Err(InvalidCommand::new("at", "is missing")),
    }
}

fn tcp(field: &str, address: &TcpAddress) -> Result<Endpoint, InvalidCommand> {
    let port = u16::try_from(address.port)
        .map_err(|_| InvalidCommand::new(format!("{field}.port"), "must be at most 65535"))?;
    let host = host(&address.host)
        .ok_or_else(|| InvalidCommand::new(format!("{field}.host"), "is neither an address nor a name"))?;
    Ok(Endpoint::Tcp { host, port })
}

/// What names the same has one form only: names in lower case without a dot at the end, addresses as they are written
/// usually. What resolvers take for an address besides, such as 127.1 and 0x7f000001, is refused.
fn host(text: &str) -> Option<String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical().to_string());
    }
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let is_number = |label: &str| {
        let digits = label.strip_prefix("0x");
        digits.map_or_else(
            || label.bytes().all(|byte| byte.is_ascii_digit()),
            |digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        )
    };
    let is_name = name.len() <= MAX_HOST_BYTES
        && !name.starts_with('-')
        && name.split('.').all(is_label)
        && !name.rsplit('.').next().is_some_and(is_number);
    is_name.then_some(name)
}

fn unix(field: &'static str, path: String) -> Result<Endpoint, InvalidCommand> {
    match path {
        path if !is_plain(&path) => Err(InvalidCommand::new(field, "must be absolute and in its shortest form")),
        path if path.len() > MAX_UNIX_PATH_BYTES || path.contains('\0') => {
            Err(InvalidCommand::new(field, "is too long for a Unix socket, or has a NUL"))
        }
        path => Ok(Endpoint::Unix(path)),
    }
}

pub(super) fn address_to_wire(address: SocketAddr) -> TcpAddress {
    TcpAddress { host: address.ip().to_canonical().to_string(), port: address.port().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_form() {
        for (text, form) in [
            ("DB.Example.org", "db.example.org"),
            ("db.example.org.", "db.example.org"),
            ("my_host-1", "my_host-1"),
            ("127.0.0.1", "127.0.0.1"),
            ("::FFFF:127.0.0.1", "127.0.0.1"),
            ("0:0::1", "::1"),
        ] {
            assert_eq!(host(text).as_deref(), Some(form), "{text}");
        }
        let long = "a".repeat(254);
        for text in [
            "",
            ".",
            "a..b",
            "127.1",
            "2130706433",
            "0x7f.1",
            "0x7f000001",
            "0x",
            "1.2.3.4.5",
            "a b",
            "-v",
            "fe80::1%lo",
            &long,
        ] {
            assert_eq!(host(text), None, "{text}");
        }
    }
}
