//! The proxy of `-D`: SOCKS 5 (RFC 1928) without authentication, and SOCKS 4 and 4a; CONNECT only.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use telexec_client::{Endpoint, ForwardError};
use telexec_executor::ExecutorError;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const CONNECT: u8 = 1;
const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
/// Longer user names and hosts of SOCKS 4 are refused.
const MAX_TEXT_BYTES: usize = 255;

/// Results of SOCKS 5.
const GENERAL_FAILURE: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const NETWORK_UNREACHABLE: u8 = 3;
const HOST_UNREACHABLE: u8 = 4;
const REFUSED: u8 = 5;
const NO_COMMAND: u8 = 7;
const NO_ADDRESS_TYPE: u8 = 8;
/// Results of SOCKS 4.
const GRANTED_4: u8 = 90;
const REJECTED_4: u8 = 91;

/// A connection to a client.
pub(super) trait Connected: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connected for T {}

type Stream<'a> = &'a mut dyn Connected;

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) to: Endpoint,
    is_version_4: bool,
}

/// Reads what a client asks for; `None`: it was refused, and has heard so.
pub(super) async fn ask(stream: Stream<'_>) -> io::Result<Option<Asked>> {
    match stream.read_u8().await? {
        4 => ask_4(stream).await,
        5 => ask_5(stream).await,
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "this is not SOCKS")),
    }
}

async fn ask_5(stream: Stream<'_>) -> io::Result<Option<Asked>> {
    let mut methods = vec![0; stream.read_u8().await?.into()];
    stream.read_exact(&mut methods).await?;
    if !methods.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[5, NO_METHOD]).await?;
        return Ok(None);
    }
    stream.write_all(&[5, NO_AUTHENTICATION]).await?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [_, command, _, kind] = head;
    let host = match kind {
        IPV4 => Ipv4Addr::from(stream.read_u32().await?).to_string(),
        IPV6 => Ipv6Addr::from(stream.read_u128().await?).to_string(),
        NAME => {
            let mut name = vec![0; stream.read_u8().await?.into()];
            stream.read_exact(&mut name).await?;
            text(name)?
        }
        _ => {
            stream.write_all(&reply_5(NO_ADDRESS_TYPE)).await?;
            return Ok(None);
        }
    };
    let port = stream.read_u16().await?;
    if command != CONNECT {
        stream.write_all(&reply_5(NO_COMMAND)).await?;
        return Ok(None);
    }
    Ok(Some(Asked { to: Endpoint::Tcp { host, port }, is_version_4: false }))
}

async fn ask_4(stream: Stream<'_>) -> io::Result<Option<Asked>> {
    let command = stream.read_u8().await?;
    let port = stream.read_u16().await?;
    let address = stream.read_u32().await?;
    until_zero(stream).await?;
    // 4a: an impossible address, and a name after the user
    let host = match address {
        1..=255 => until_zero(stream).await?,
        address => Ipv4Addr::from(address).to_string(),
    };
    if command != CONNECT {
        stream.write_all(&reply_4(REJECTED_4)).await?;
        return Ok(None);
    }
    Ok(Some(Asked { to: Endpoint::Tcp { host, port }, is_version_4: true }))
}

async fn until_zero(stream: Stream<'_>) -> io::Result<String> {
    let mut bytes = Vec::new();
    loop {
        match stream.read_u8().await? {
            0 => return text(bytes),
            _ if bytes.len() == MAX_TEXT_BYTES => return Err(io::Error::new(io::ErrorKind::InvalidData, "too long")),
            byte => bytes.push(byte),
        }
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl Asked {
    /// Says whether there is a connection.
    pub(super) async fn answer(&self, stream: Stream<'_>, failed: Option<&ForwardError>) -> io::Result<()> {
        match (self.is_version_4, failed) {
            (true, None) => stream.write_all(&reply_4(GRANTED_4)).await,
            (true, Some(_)) => stream.write_all(&reply_4(REJECTED_4)).await,
            (false, failed) => stream.write_all(&reply_5(failed.map_or(0, result_5))).await,
        }
    }
}

/// The address that it is bound to is not told.
fn reply_5(result: u8) -> [u8; 10] {
    [5, result, 0, IPV4, 0, 0, 0, 0, 0, 0]
}

fn reply_4(result: u8) -> [u8; 8] {
    [0, result, 0, 0, 0, 0, 0, 0]
}

fn result_5(error: &ForwardError) -> u8 {
    match error {
        ForwardError::Call(ExecutorError::Denied { .. }) => NOT_ALLOWED,
        ForwardError::Failed(failure) => match failure.errno.as_str() {
            "ECONNREFUSED" => REFUSED,
            "ENETUNREACH" => NETWORK_UNREACHABLE,
            "EHOSTUNREACH" | "ETIMEDOUT" | "EAI_NONAME" => HOST_UNREACHABLE,
            _ => GENERAL_FAILURE,
        },
        _ => GENERAL_FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked for, and what was answered.
    async fn say(bytes: &[u8]) -> (io::Result<Option<Asked>>, Vec<u8>) {
        let (mut here, mut there) = tokio::io::duplex(1024);
        there.write_all(bytes).await.unwrap();
        let asked = ask(&mut here).await;
        drop(here);
        let mut answer = Vec::new();
        there.read_to_end(&mut answer).await.unwrap();
        (asked, answer)
    }

    fn to(host: &str, port: u16, is_version_4: bool) -> Option<Asked> {
        Some(Asked { to: Endpoint::Tcp { host: host.into(), port }, is_version_4 })
    }

    #[tokio::test]
    async fn both_versions_are_understood() {
        for (bytes, asked) in [
            (&b"\x05\x01\x00\x05\x01\x00\x03\x02db\x00\x16"[..], to("db", 22, false)),
            (b"\x05\x02\x02\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x01\x00", to("127.0.0.1", 256, false)),
            (b"\x05\x01\x00\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x16", to("::1", 22, false)),
            (b"\x04\x01\x00\x16\x7f\x00\x00\x01me\0", to("127.0.0.1", 22, true)),
            (b"\x04\x01\x00\x16\x00\x00\x00\x01\0db\0", to("db", 22, true)),
        ] {
            assert_eq!(say(bytes).await.0.unwrap(), asked, "{bytes:?}");
        }
        // a password is required; to listen
        assert_eq!(say(b"\x05\x01\x02").await.1, b"\x05\xff");
        assert_eq!(say(b"\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x16").await.1[2..4], [5, NO_COMMAND]);
        assert_eq!(say(b"\x04\x02\x00\x16\x7f\x00\x00\x01\0").await.1[1], REJECTED_4);
        assert!(say(b"GET / HTTP/1.1").await.0.is_err());
        assert!(say(&[&b"\x04\x01\x00\x16\x7f\x00\x00\x01"[..], &[b'a'; 300], b"\0"].concat()).await.0.is_err());
    }
}
