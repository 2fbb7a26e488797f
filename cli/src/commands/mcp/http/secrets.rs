//! The token of callers. Files with secrets may be accessible to their owner only.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

use crate::output::{Failure, exit};

/// Shorter ones can be guessed.
const MIN_TOKEN_BYTES: usize = 16;
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The token that callers must send, as `Authorization: Bearer TOKEN`.
#[derive(PartialEq)]
pub(super) struct Token(Vec<u8>);

impl Token {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = read_private(path)?;
        let token = text.trim_ascii();
        if token.len() < MIN_TOKEN_BYTES || !token.iter().all(u8::is_ascii_graphic) {
            let text = format!("it must contain one token of at least {MIN_TOKEN_BYTES} visible ASCII characters");
            return Err(bad(path, text).hint(Some(format!("for example: openssl rand -hex 32 > {}", path.display()))));
        }
        Ok(Self(token.to_vec()))
    }

    pub(super) fn authorizes(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return false };
        let Some((scheme, token)) = value.as_bytes().split_at_checked("Bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && verify_slices_are_equal(token, &self.0).is_ok()
    }
}

/// Reads a file to which only its owner has access.
pub(super) fn read_private(path: &Path) -> Result<Vec<u8>, Failure> {
    let read = || -> io::Result<Vec<u8>> {
        let file = File::open(path)?;
        check_mode(&file)?;
        let mut text = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| bad(path, error))
}

/// A file of root may be readable by its group: that is how services are given secrets.
#[cfg(unix)]
fn check_mode(file: &File) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata()?;
    let allowed = if metadata.uid() == 0 { 0o740 } else { 0o700 };
    match metadata.mode() & 0o777 & !allowed {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("others have access to it (mode {:o}): chmod 600", metadata.mode() & 0o777))),
    }
}

#[cfg(not(unix))]
fn check_mode(_file: &File) -> io::Result<()> {
    Ok(())
}

pub(super) fn bad(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::message(exit::USAGE, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_the_whole_token_authorizes() {
        let token = Token(b"0123456789abcdef".to_vec());
        let authorized = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            }
            token.authorizes(&headers)
        };
        assert!(authorized(&["Bearer 0123456789abcdef"]) && authorized(&["bearer 0123456789abcdef"]));
        for values in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &["Bearer 0123456789abcde"],
            &["Bearer 0123456789abcdeff"],
            &["Bearer 0123456789abcdeF"],
            &["Basic 0123456789abcdef"],
            &["0123456789abcdef"],
            &["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"],
        ] {
            assert!(!authorized(values), "{values:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_token_file_is_its_owners_alone_and_long_enough() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("token");
        let read = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path).map(|token| token.0).map_err(|failure| failure.to_string())
        };
        assert_eq!(read("0123456789abcdef\n", 0o600).unwrap(), b"0123456789abcdef");
        assert!(read("0123456789abcdef\n", 0o604).unwrap_err().contains("mode 604"));
        assert!(read("0123456789abcdef\n", 0o620).unwrap_err().contains("mode 620"));
        for odd in ["", "\n", "short", "0123456789 abcdef", "0123456789abcdefé"] {
            assert!(read(odd, 0o600).unwrap_err().contains("one token"), "{odd:?}");
        }
    }
}
