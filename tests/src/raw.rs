//! HTTP/2 by hand: frames that no client sends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio_rustls::TlsConnector;

use crate::{Agent, Stream, Wire, within};

/// With what HTTP/2 begins.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Kinds of frames.
pub mod kind {
    #![allow(missing_docs, reason = "RFC 9113, section 6")]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// The last frame of this direction of its stream; of SETTINGS and PING: an acknowledgement.
pub const END_STREAM: u8 = 1;
/// The last frame of its header block.
pub const END_HEADERS: u8 = 4;

/// Of the errors of RFC 9113, section 7.
pub const REFUSED_STREAM: u32 = 7;
/// The same.
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Of [`kind`], or unknown.
    pub kind: u8,
    /// What they mean depends on the kind.
    pub flags: u8,
    /// 0: the connection.
    pub stream: u32,
    /// As it is on the wire.
    pub payload: Vec<u8>,
}

impl Frame {
    fn is_pong(&self, payload: &[u8]) -> bool {
        self.kind == kind::PING && self.flags == END_STREAM && self.payload == payload
    }
}

/// The bytes of a frame.
///
/// # Panics
/// The payload is 16 MiB or more.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    assert_eq!(length[0], 0, "a length has three bytes");
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header as HPACK has it: not compressed, and not kept in a table.
pub fn header(name: &str, value: &str) -> Vec<u8> {
    [vec![0], string(name), string(value)].concat()
}

/// The same, kept in the table: one byte of 0xbe stands for it from then on, while it is the newest.
pub fn header_to_keep(name: &str, value: &str) -> Vec<u8> {
    [vec![0x40], string(name), string(value)].concat()
}

/// A string as HPACK has it, not compressed.
fn string(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    if text.len() < 127 {
        bytes.push(text.len() as u8);
    } else {
        bytes.push(127);
        let mut rest = text.len() - 127;
        while rest >= 128 {
            bytes.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        bytes.push(rest as u8);
    }
    bytes.extend(text.as_bytes());
    bytes
}

/// The header block of a call.
pub fn call(path: &str) -> Vec<u8> {
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    headers.iter().flat_map(|(name, value)| header(name, value)).collect()
}

/// A gRPC message, not compressed.
///
/// # Panics
/// It has 4 GiB or more.
pub fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0][..], &u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

/// One connection, of which a test writes every byte.
pub struct Raw {
    read: ReadHalf<Box<dyn Stream>>,
    write: WriteHalf<Box<dyn Stream>>,
    /// What was read and is no whole frame yet.
    buffer: Vec<u8>,
}

impl Raw {
    /// To this agent, in plain text; it says nothing yet.
    pub async fn dial(agent: &Agent) -> Self {
        Self::over(Wire::dial(agent).await)
    }

    /// The same with TLS.
    ///
    /// # Panics
    /// One side refuses the other.
    pub async fn dial_tls(agent: &Agent, config: Arc<ClientConfig>) -> Self {
        let name = ServerName::try_from("localhost").unwrap();
        let stream = within(TlsConnector::from(config).connect(name, Wire::dial(agent).await)).await.unwrap();
        Self::over(Box::new(stream))
    }

    fn over(stream: Box<dyn Stream>) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self { read, write, buffer: Vec::new() }
    }

    /// To this agent, in plain text; both sides have said and seen what comes first.
    pub async fn connect(agent: &Agent) -> Self {
        Self::dial(agent).await.begin().await
    }

    /// Says and waits for what comes first.
    ///
    /// # Panics
    /// The agent closes the connection.
    pub async fn begin(mut self) -> Self {
        self.write(&[PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat()).await.unwrap();
        self.until(|frame| frame.kind == kind::SETTINGS && frame.flags == 0).await.expect("the agent's settings");
        self.write(&frame(kind::SETTINGS, END_STREAM, 0, &[])).await.unwrap();
        self.lives().await;
        self
    }

    /// Makes sure that the agent still answers here.
    ///
    /// # Panics
    /// It does not.
    pub async fn lives(&mut self) {
        let payload = fastrand::u64(..).to_be_bytes();
        self.write(&frame(kind::PING, 0, 0, &payload)).await.expect("the connection lives");
        self.until(|frame| frame.is_pong(&payload)).await.expect("the connection lives");
    }

    /// Writes all of it, and reads nothing.
    ///
    /// # Errors
    /// The agent has closed the connection.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        within(async {
            self.write.write_all(bytes).await?;
            self.write.flush().await
        })
        .await
    }

    /// Writes it again and again and reads nothing, until the agent takes no more for `rest`; gives how much it took.
    pub async fn write_until_stuck(&mut self, bytes: &[u8], rest: Duration, most: usize) -> usize {
        let mut written = 0;
        while written < most {
            match tokio::time::timeout(rest, self.write.write(&bytes[written % bytes.len()..])).await {
                Ok(Ok(more)) => written += more,
                _ => break,
            }
        }
        written
    }

    /// The next frame; `None`: the agent has closed the connection.
    pub async fn next(&mut self) -> Option<Frame> {
        within(async {
            loop {
                if let Some(frame) = frames(&mut self.buffer, 1).pop() {
                    return Some(frame);
                }
                if !matches!(self.read.read_buf(&mut self.buffer).await, Ok(1..)) {
                    return None;
                }
            }
        })
        .await
    }

    /// Reads up to the first such frame; `None`: the agent has closed the connection before.
    pub async fn until(&mut self, mut is_it: impl FnMut(&Frame) -> bool) -> Option<Frame> {
        loop {
            let frame = self.next().await?;
            if is_it(&frame) {
                return Some(frame);
            }
        }
    }

    /// Writes it all and then asks whether the agent is still there, while it reads what the agent says; ends with the
    /// answer, or when the agent closes the connection.
    pub async fn flood(&mut self, chunks: impl Iterator<Item = Vec<u8>>) -> Answer {
        let Self { read, write, buffer } = self;
        let payload = fastrand::u64(..).to_be_bytes();
        let writing = async {
            for chunk in chunks.chain([frame(kind::PING, 0, 0, &payload)]) {
                write.write_all(&chunk).await?;
            }
            write.flush().await
        };
        let reading = async {
            let mut answer = Answer::default();
            loop {
                let frames = frames(buffer, usize::MAX);
                if frames.iter().any(|frame| frame.is_pong(&payload)) {
                    return answer;
                }
                answer.count(frames);
                if !matches!(read.read_buf(buffer).await, Ok(1..)) {
                    return Answer { is_closed: true, ..answer };
                }
            }
        };
        // when nothing more can be written, the reason may still have been sent
        let writing = writing.then(|_| std::future::pending());
        within(async {
            tokio::select! {
                answer = reading => answer,
                () = writing => unreachable!(),
            }
        })
        .await
    }
}

/// Takes at most so many whole frames out of what was read.
fn frames(buffer: &mut Vec<u8>, most: usize) -> Vec<Frame> {
    let (mut frames, mut at) = (Vec::new(), 0);
    while let Some(&[l0, l1, l2, kind, flags, s0, s1, s2, s3]) = buffer[at..].first_chunk()
        && frames.len() < most
    {
        let end = at + 9 + u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let Some(payload) = buffer.get(at + 9..end) else { break };
        frames.push(Frame { kind, flags, stream: u32::from_be_bytes([s0, s1, s2, s3]), payload: payload.to_vec() });
        at = end;
    }
    buffer.drain(..at);
    frames
}

/// What an agent said to a flood.
#[derive(Debug, Default)]
pub struct Answer {
    /// It closed the connection.
    pub is_closed: bool,
    /// The error of its GOAWAY.
    pub goaway: Option<u32>,
    /// The streams that it reset, and the errors.
    pub resets: Vec<(u32, u32)>,
}

impl Answer {
    /// Adds what these frames say.
    ///
    /// # Panics
    /// One is too short.
    pub fn count(&mut self, frames: impl IntoIterator<Item = Frame>) {
        for frame in frames {
            let error = |at: usize| u32::from_be_bytes(frame.payload[at..at + 4].try_into().unwrap());
            match frame.kind {
                kind::GOAWAY => self.goaway = Some(error(4)),
                kind::RST_STREAM => self.resets.push((frame.stream, error(0))),
                _ => {}
            }
        }
    }
}
