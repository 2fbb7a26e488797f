//! Addresses of agents, in the syntax for users.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

/// The port of hosts that are given without one.
pub const DEFAULT_PORT: u16 = 7443;

/// The address of an agent: `unix:///path`, `tcp://host:port`, or `host:port` for short; `vsock://cid:port` for one in a
/// virtual machine, or `vsock-uds:///path:port` by way of its hypervisor. A host without a port is at [`DEFAULT_PORT`]. An
/// IPv6 address stands in brackets: `[::1]:7443`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// A Unix socket on this machine.
    Unix(PathBuf),
    /// A host by name or IP address (without brackets), and a port.
    Tcp {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
    /// A virtual machine of this host, or the host of this one (2), by vsock(7).
    Vsock {
        /// The context id.
        cid: u32,
        /// The port.
        port: u32,
    },
    /// A virtual machine whose hypervisor offers its vsock ports on a Unix socket: Firecracker, Cloud Hypervisor and
    /// vhost-device-vsock do.
    VsockUds {
        /// The hypervisor's socket.
        path: PathBuf,
        /// The port in the machine.
        port: u32,
    },
}

/// A text that is not a [`Target`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidTarget(String);

const FORMS: &str =
    "expected unix:///PATH, HOST, HOST:PORT, tcp://HOST:PORT, vsock://CID:PORT or vsock-uds:///PATH:PORT";

impl Target {
    /// Whether it is certainly on this machine: a Unix socket, `localhost` or a loopback address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()),
            Self::Vsock { .. } | Self::VsockUds { .. } => false,
        }
    }

    /// The authority of the URI: `host:port`. Other targets have none, and HTTP/2 cannot express a path there.
    pub(crate) fn authority(&self) -> String {
        match self {
            Self::Unix(_) | Self::Vsock { .. } | Self::VsockUds { .. } => "localhost".to_owned(),
            Self::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port } => format!("{host}:{port}"),
        }
    }
}

impl FromStr for Target {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once("://") {
            None if text.starts_with("unix:/") => Err(invalid("a Unix socket has three slashes: unix:///PATH")),
            None => tcp(text),
            Some(("tcp", rest)) => tcp(rest),
            Some(("unix", path)) if path.starts_with('/') && !path.contains('\0') => Ok(Self::Unix(path.into())),
            Some(("unix", _)) => Err(invalid("a Unix socket needs an absolute path: unix:///PATH")),
            Some(("vsock", rest)) => vsock(rest),
            Some(("vsock-uds", rest)) => vsock_uds(rest),
            Some((scheme, _)) => Err(InvalidTarget(format!("unknown scheme {scheme:?}: {FORMS}"))),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { .. } => write!(f, "tcp://{}", self.authority()),
            Self::Vsock { cid, port } => write!(f, "vsock://{cid}:{port}"),
            Self::VsockUds { path, port } => write!(f, "vsock-uds://{}:{port}", path.display()),
        }
    }
}

fn tcp(text: &str) -> Result<Target, InvalidTarget> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => ipv6(rest)?,
        None => match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err(invalid("an IPv6 address must be in brackets: [ADDRESS] or [ADDRESS]:PORT"));
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_name = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if host.is_empty() || !(is_name || text.starts_with('[')) {
        return Err(InvalidTarget(format!("{host:?} is not a host: {FORMS}")));
    }
    let port = match port {
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| InvalidTarget(format!("{port:?} is not a port: expected 1 to 65535")))?,
        None => DEFAULT_PORT,
    };
    Ok(Target::Tcp { host: host.to_owned(), port })
}

/// The address, and the port after its closing bracket.
fn ipv6(rest: &str) -> Result<(&str, Option<&str>), InvalidTarget> {
    let (host, port) = rest.split_once(']').ok_or_else(|| invalid("no closing bracket: expected [ADDRESS]:PORT"))?;
    host.parse::<Ipv6Addr>().map_err(|_| invalid("what is in the brackets is not an IPv6 address"))?;
    match port.strip_prefix(':') {
        Some(port) => Ok((host, Some(port))),
        None if port.is_empty() => Ok((host, None)),
        None => Err(invalid("there is no port after the bracket: expected [ADDRESS]:PORT")),
    }
}

fn vsock(text: &str) -> Result<Target, InvalidTarget> {
    let (cid, port) = text.split_once(':').ok_or_else(|| invalid("a vsock target needs a port: vsock://CID:PORT"))?;
    match cid.parse() {
        Ok(cid) if cid != ANY => Ok(Target::Vsock { cid, port: vsock_port(port)? }),
        _ => Err(InvalidTarget(format!("{cid:?} is not a context id: expected a number, such as 3"))),
    }
}

fn vsock_uds(text: &str) -> Result<Target, InvalidTarget> {
    let (path, port) =
        text.rsplit_once(':').filter(|(path, _)| path.starts_with('/') && !path.contains('\0')).ok_or_else(|| {
            invalid("expected the absolute path of a hypervisor's socket, and a port: vsock-uds:///PATH:PORT")
        })?;
    Ok(Target::VsockUds { path: path.into(), port: vsock_port(port)? })
}

/// `VMADDR_CID_ANY` and `VMADDR_PORT_ANY`: wildcards, not addresses.
const ANY: u32 = u32::MAX;

fn vsock_port(port: &str) -> Result<u32, InvalidTarget> {
    match port.parse() {
        Ok(port) if port != 0 && port != ANY => Ok(port),
        _ => Err(InvalidTarget(format!("{port:?} is not a vsock port: expected 1 to 4294967294"))),
    }
}

fn invalid(reason: &str) -> InvalidTarget {
    InvalidTarget(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_back() {
        for (text, shown) in [
            ("unix:///run/telexec.sock", "unix:///run/telexec.sock"),
            ("tcp://build-7:7443", "tcp://build-7:7443"),
            ("build_7.example.org:1", "tcp://build_7.example.org:1"),
            ("127.0.0.1:65535", "tcp://127.0.0.1:65535"),
            ("build-7", "tcp://build-7:7443"),
            ("tcp://10.0.0.7", "tcp://10.0.0.7:7443"),
            ("[::1]:7443", "tcp://[::1]:7443"),
            ("[::1]", "tcp://[::1]:7443"),
            ("tcp://[fe80::1]:7443", "tcp://[fe80::1]:7443"),
            ("vsock://3:7443", "vsock://3:7443"),
            ("vsock-uds:///run/a:b.vsock:5000", "vsock-uds:///run/a:b.vsock:5000"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.to_string(), shown);
            assert_eq!(shown.parse(), Ok(target));
        }
    }

    #[test]
    fn what_is_no_target_says_why() {
        for (text, why) in [
            ("", "not a host"),
            ("tcp://", "not a host"),
            ("unix://run/x.sock", "absolute path"),
            ("unix:/run/x.sock", "three slashes"),
            ("vsock://3", "needs a port"),
            ("vsock://any:1", "not a context id"),
            ("vsock://4294967295:1", "not a context id"),
            ("vsock://3:0", "not a vsock port"),
            ("vsock://3:4294967295", "not a vsock port"),
            ("vsock-uds:///run/a.vsock", "and a port"),
            ("vsock-uds://a.vsock:1", "absolute path"),
            ("vsock-uds:///run/a.vsock:x", "not a vsock port"),
            ("https://build-7:7443", "unknown scheme"),
            ("build-7:", "not a port"),
            ("build-7:0", "not a port"),
            ("build-7:65536", "not a port"),
            ("build-7:http", "not a port"),
            (":7443", "not a host"),
            ("me@build-7:7443", "not a host"),
            ("bücher:7443", "not a host"),
            ("::1:7443", "in brackets"),
            ("fe80::1", "in brackets"),
            ("[::1]7443", "no port"),
            ("[::1", "no closing bracket"),
            ("[build-7]:1", "not an IPv6 address"),
        ] {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.0.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn only_this_machine_is_local() {
        for (text, local) in [
            ("unix:///x", true),
            ("localhost:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("localhost.example.org:1", false),
            ("10.0.0.1:1", false),
            ("0.0.0.0:1", false),
            ("vsock://3:1", false),
            ("vsock-uds:///x:1", false),
        ] {
            assert_eq!(text.parse::<Target>().unwrap().is_local(), local, "{text}");
        }
    }
}
