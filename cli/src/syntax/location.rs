//! One side of a copy: a file here, standard input or output, or a file of a target.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use telexec_executor::FilePath;
use telexec_nats_client::NatsTarget;

use super::Destination;

/// A side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// `-`: standard input or output.
    Stdio,
    Local(PathBuf),
    /// `TARGET:PATH`.
    Remote(Destination, FilePath),
}

/// What has no colon before its first slash is here; otherwise the path begins after the colon that ends the address.
pub(crate) fn parse_location(text: OsString) -> Result<Location, String> {
    if text == "-" {
        return Ok(Location::Stdio);
    }
    if text.to_str().is_some_and(NatsTarget::is_meant) {
        return Err(
            "files cannot be copied by way of NATS; a small one: telexec exec -i TARGET -c 'cat > FILE' < FILE"
                .to_owned(),
        );
    }
    match address(text.as_bytes()) {
        None => Ok(Location::Local(text.into())),
        Some(end) => {
            let (address, path) = text.as_bytes().split_at(end);
            let address = std::str::from_utf8(address).map_err(|_| "the target is not UTF-8".to_owned())?;
            let destination = address.parse().map_err(|error: super::InvalidDestination| error.to_string())?;
            // the home directory
            let path = if path.len() > 1 { path.get(1..).unwrap_or_default() } else { b"." };
            Ok(Location::Remote(destination, FilePath::new(path)))
        }
    }
}

/// Where the address ends, at a colon; `None`: there is none.
fn address(text: &[u8]) -> Option<usize> {
    let colon = |from: usize| text.get(from..)?.iter().position(|byte| *byte == b':').map(|at| from + at);
    // a port, if one follows the colon at this place
    let with_port = |at: usize| {
        let end = colon(at + 1)?;
        let port = text.get(at + 1..end).filter(|port| !port.is_empty() && port.iter().all(u8::is_ascii_digit));
        port.map(|_| end)
    };
    let host = |from: usize| {
        let begin = match text.get(from) {
            Some(b'[') => from + text.get(from..)?.iter().position(|byte| *byte == b']')?,
            _ => from,
        };
        let end = colon(begin)?;
        Some(with_port(end).unwrap_or(end))
    };
    let scheme = |name: &str| text.starts_with(name.as_bytes()).then_some(name.len());
    if let Some(begin) = scheme("unix://") {
        return colon(begin);
    }
    if let Some(begin) = scheme("vsock-uds://").or_else(|| scheme("vsock://")) {
        return with_port(colon(begin)?);
    }
    if let Some(begin) = scheme("tcp://") {
        return host(begin);
    }
    let end = host(0)?;
    let slash = text.iter().position(|byte| *byte == b'/').unwrap_or(text.len());
    (end < slash && end > 0).then_some(end)
}

/// The last name of a path; `None`: it has none, as `/`, `.` and `..`.
pub(crate) fn last_name(path: &[u8]) -> Option<&OsStr> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let name = path.get(..end)?.rsplit(|byte| *byte == b'/').next()?;
    (!matches!(name, b"" | b"." | b"..")).then(|| OsStr::from_bytes(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_begins_after_the_address() {
        for (text, target, path) in [
            ("web1:notes", "web1", "notes"),
            ("web1:", "web1", "."),
            ("web1:/a:b", "web1", "/a:b"),
            ("web1:7443:/etc/hosts", "web1:7443", "/etc/hosts"),
            ("web1:7443", "web1", "7443"),
            ("[::1]:/x", "[::1]", "/x"),
            ("[::1]:7443:x", "[::1]:7443", "x"),
            ("tcp://web1:/x", "tcp://web1", "/x"),
            ("tcp://web1:1:/x", "web1:1", "/x"),
            ("unix:///run/telexec/agent.sock:/etc/hosts", "unix:///run/telexec/agent.sock", "/etc/hosts"),
            ("vsock://3:7443:x", "vsock://3:7443", "x"),
            ("vsock-uds:///run/fc.sock:7443:/x", "vsock-uds:///run/fc.sock:7443", "/x"),
            ("local:/etc/hosts", "local", "/etc/hosts"),
        ] {
            let expected = Location::Remote(target.parse().unwrap(), FilePath::new(path));
            assert_eq!(parse_location(text.into()), Ok(expected), "{text}");
        }
        for text in ["notes", "/etc/hosts", "./a:b", "a/b:c", ":x", "/a:/b"] {
            assert_eq!(parse_location(text.into()), Ok(Location::Local(text.into())), "{text}");
        }
        assert_eq!(parse_location("-".into()), Ok(Location::Stdio));
        parse_location("a b:x".into()).unwrap_err();
    }

    #[test]
    fn last_names_are_those_of_basename() {
        for (path, name) in
            [("/a/b", Some("b")), ("b/", Some("b")), ("/", None), ("a/..", None), (".", None), ("", None)]
        {
            assert_eq!(last_name(path.as_bytes()), name.map(OsStr::new), "{path}");
        }
    }
}
