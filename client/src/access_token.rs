//! Access tokens of calls, such as JSON Web Tokens (RFC 7519), sent as bearer tokens (RFC 6750).

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tonic::codegen::http::HeaderValue;

use crate::Target;
use crate::connector::{Connector, Route};
use crate::error::{ConnectError, Source};

/// More than any agent accepts.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Where the token of a call is from. It is sent by TLS, on Unix sockets and by vsock, and nowhere else: whoever has it can call
/// with it.
#[derive(Clone, PartialEq, Eq)]
pub enum AccessToken {
    /// A file, read for each call, so renewals take effect. White space around the token is ignored.
    File(PathBuf),
    /// The token itself.
    Text(String),
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.debug_tuple("Text").finish_non_exhaustive(),
        }
    }
}

impl AccessToken {
    fn header(&self) -> Result<HeaderValue, Source> {
        let read;
        let token = match self {
            Self::File(path) => {
                read = String::from_utf8(read_start(path)?)?;
                &read
            }
            Self::Text(token) => token,
        };
        let token = token.trim();
        let is_bearer = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if token.is_empty() {
            return Err("it is empty".into());
        }
        if !token.bytes().all(is_bearer) {
            return Err("expected a token and nothing else, on one line and without \"Bearer\"".into());
        }
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn path(&self) -> Option<PathBuf> {
        match self {
            Self::File(path) => Some(path.clone()),
            Self::Text(_) => None,
        }
    }
}

fn read_start(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

impl Connector {
    /// The value of `authorization` for a call; `None`: there is no token, or it would not be kept secret.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>, ConnectError> {
        let is_secret = match &self.route {
            Route::Target(Target::Tcp { .. }) => self.options.tls.is_some(),
            Route::Target(Target::Unix(_) | Target::Vsock { .. } | Target::VsockUds { .. }) => true,
            Route::Custom(_) => false,
        };
        let Some(token) = self.options.access_token.as_ref().filter(|_| is_secret) else { return Ok(None) };
        token.header().map(Some).map_err(|source| ConnectError::AccessToken {
            endpoint: self.name.to_string(),
            path: token.path(),
            source: source.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bearer_tokens_are_sent_and_none_is_shown() {
        let token = |text: &str| AccessToken::Text(text.to_owned());
        let header = token(" a.b-c_d \n").header().unwrap();
        assert_eq!(header, "Bearer a.b-c_d");
        assert!(!format!("{header:?} {:?}", token("a.b-c")).contains("a.b-c"));
        for text in ["", " ", "a b", "a\nb", "ä", "Bearer a"] {
            assert!(token(text).header().is_err(), "{text:?}");
        }
        assert!(AccessToken::File("/no/such/file".into()).header().is_err());
    }
}
