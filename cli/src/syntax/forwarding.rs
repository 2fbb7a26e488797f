//! What is forwarded where, as ssh's -L, -R and -D have it.

use std::str::FromStr;

use telexec_client::Endpoint;

/// Listen here, connect there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forwarding {
    pub(crate) listen: Endpoint,
    pub(crate) to: Endpoint,
}

const FORMS: &str =
    "expected [BIND:]PORT:HOST:PORT, such as 8080:localhost:80; either side may be the path of a Unix socket";
const ADDRESS: &str = "expected HOST:PORT, [IPv6]:PORT or /PATH";

impl FromStr for Forwarding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = parts(text).ok_or(FORMS)?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (listen, to) = match parts.as_slice() {
            [path, to @ ..] if path.starts_with('/') => (Endpoint::Unix((*path).to_owned()), to),
            [bind, port, to @ ..] if to.len() > 1 || to.iter().any(|to| to.starts_with('/')) => {
                (listen(Some(bind), port)?, to)
            }
            [port, to @ ..] => (listen(None, port)?, to),
            [] => return Err(FORMS.to_owned()),
        };
        let to = match to {
            [path] if path.starts_with('/') => Endpoint::Unix((*path).to_owned()),
            [host, port] if !host.is_empty() => Endpoint::Tcp { host: (*host).to_owned(), port: dialled(port)? },
            _ => return Err(FORMS.to_owned()),
        };
        Ok(Self { listen, to })
    }
}

/// Where a proxy listens: `[BIND:]PORT`.
pub(crate) fn parse_listen(text: &str) -> Result<Endpoint, String> {
    let parts = parts(text).ok_or("expected [BIND:]PORT")?;
    match parts.as_slice() {
        [port] => listen(None, port),
        [bind, port] => listen(Some(bind), port),
        _ => Err("expected [BIND:]PORT".to_owned()),
    }
}

/// Where to connect to.
pub(crate) fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    if text.starts_with('/') {
        return Ok(Endpoint::Unix(text.to_owned()));
    }
    // ssh's %h has no brackets
    let (host, port) = text.rsplit_once(':').ok_or(ADDRESS)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match host.is_empty() {
        true => Err(ADDRESS.to_owned()),
        false => Ok(Endpoint::Tcp { host: host.to_owned(), port: dialled(port)? }),
    }
}

/// The parts between colons; an IPv6 address is in brackets.
fn parts(text: &str) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (part, after) = match rest.strip_prefix('[') {
            Some(address) => address.split_once(']')?,
            None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        };
        parts.push(part.to_owned());
        match after.strip_prefix(':') {
            Some(more) => rest = more,
            None => return after.is_empty().then_some(parts),
        }
    }
}

fn listen(bind: Option<&str>, port: &str) -> Result<Endpoint, String> {
    let host = match bind {
        None => "localhost",
        Some("" | "*") => "*",
        Some(host) => host,
    };
    let port = port.parse().map_err(|_| format!("{port:?} is not a port"))?;
    Ok(Endpoint::Tcp { host: host.to_owned(), port })
}

fn dialled(port: &str) -> Result<u16, String> {
    port.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("{port:?} is not a port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port }
    }

    fn unix(path: &str) -> Endpoint {
        Endpoint::Unix(path.into())
    }

    #[test]
    fn forwardings_are_read_as_those_of_ssh() {
        for (text, listen, to) in [
            ("8080:db:5432", tcp("localhost", 8080), tcp("db", 5432)),
            ("0:[::1]:5432", tcp("localhost", 0), tcp("::1", 5432)),
            ("*:8080:db:1", tcp("*", 8080), tcp("db", 1)),
            (":8080:db:1", tcp("*", 8080), tcp("db", 1)),
            ("[::1]:8080:db:1", tcp("::1", 8080), tcp("db", 1)),
            ("127.0.0.2:8080:/run/x.sock", tcp("127.0.0.2", 8080), unix("/run/x.sock")),
            ("8080:/run/x.sock", tcp("localhost", 8080), unix("/run/x.sock")),
            ("/tmp/a:db:5432", unix("/tmp/a"), tcp("db", 5432)),
            ("/tmp/a:/tmp/b", unix("/tmp/a"), unix("/tmp/b")),
        ] {
            assert_eq!(text.parse(), Ok(Forwarding { listen, to }), "{text}");
        }
        for text in
            ["", "1", "1:2", "x:db:1", "1:db:0", "1:db:x", "1::1", "1:2:3:4:5", "[::1:1:db:1", "70000:db:1", "/a:b"]
        {
            assert!(text.parse::<Forwarding>().is_err(), "{text}");
        }
    }

    #[test]
    fn endpoints_are_hosts_with_a_port_or_paths() {
        for (text, endpoint) in [
            ("db:22", tcp("db", 22)),
            ("[::1]:22", tcp("::1", 22)),
            ("::1:22", tcp("::1", 22)),
            ("/run/x", unix("/run/x")),
        ] {
            assert_eq!(parse_endpoint(text), Ok(endpoint), "{text}");
        }
        for text in ["", "db", ":22", "db:", "db:0", "db:ssh"] {
            assert!(parse_endpoint(text).is_err(), "{text}");
        }
        assert_eq!(parse_listen("1080"), Ok(tcp("localhost", 1080)));
        assert_eq!(parse_listen("*:0"), Ok(tcp("*", 0)));
        assert!(parse_listen("a:b:c").is_err());
    }
}
