//! The stdio transport of MCP: one message per line.

use std::io;
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use rmcp::RoleServer;
use rmcp::model::{ErrorData, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Empty, Stdin, Stdout};
use tokio_util::sync::CancellationToken;

/// As long as rmcp's other transports permit.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// What the client is told, and why.
type Refusal = Box<(ErrorData, Option<RequestId>)>;

/// Answers lines that are no messages. One that comes before any message is taken for the end: this is no MCP client.
/// Cancels a token as soon as the client is gone: the service itself would first wait for its calls to end.
pub(super) struct StdioTransport {
    input: BufReader<Stdin>,
    line: Vec<u8>,
    /// The rest of a line that is too long is not wanted.
    is_skipping: bool,
    output: AsyncRwTransport<RoleServer, Empty, Stdout>,
    /// An answer that is being sent; kept here, because `receive` may be dropped and called again.
    refusal: Option<BoxFuture<'static, io::Result<()>>>,
    has_received: bool,
    nonsense: Arc<OnceLock<String>>,
    closed: CancellationToken,
}

impl StdioTransport {
    /// `nonsense` gets the reason if what comes first is no message.
    pub(super) fn new(closed: CancellationToken, nonsense: Arc<OnceLock<String>>) -> Self {
        Self {
            input: BufReader::new(tokio::io::stdin()),
            line: Vec::new(),
            is_skipping: false,
            output: AsyncRwTransport::new(tokio::io::empty(), tokio::io::stdout()),
            refusal: None,
            has_received: false,
            nonsense,
            closed,
        }
    }

    /// The next message, or what is wrong with the line; `None`: there are no more. May be dropped and called again.
    async fn next(&mut self) -> io::Result<Option<Result<RxJsonRpcMessage<RoleServer>, Refusal>>> {
        loop {
            let room = MAX_LINE_BYTES.saturating_sub(self.line.len() as u64);
            let read = (&mut self.input).take(room).read_until(b'\n', &mut self.line).await?;
            let is_whole = self.line.ends_with(b"\n");
            let is_end = read == 0 && room > 0;
            if is_end && self.line.is_empty() {
                return Ok(None);
            }
            if !is_whole && !is_end && self.line.len() as u64 >= MAX_LINE_BYTES {
                self.line.clear();
                if !std::mem::replace(&mut self.is_skipping, true) {
                    let text = format!("a message is longer than {MAX_LINE_BYTES} bytes");
                    return Ok(Some(Err(Box::new((ErrorData::invalid_request(text, None), None)))));
                }
            } else if is_whole || is_end {
                let line = std::mem::take(&mut self.line);
                let is_rest = std::mem::take(&mut self.is_skipping);
                if let Some(message) = (!is_rest).then(|| parse(line.trim_ascii())).flatten() {
                    return Ok(Some(message));
                }
            }
        }
    }
}

/// `None`: a line that needs no answer, because it is blank or a notification of an unknown kind.
fn parse(line: &[u8]) -> Option<Result<RxJsonRpcMessage<RoleServer>, Refusal>> {
    if line.is_empty() {
        return None;
    }
    let error = match serde_json::from_slice(line) {
        Ok(message) => return Some(Ok(message)),
        Err(error) => error,
    };
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => {
            return Some(Err(Box::new((ErrorData::parse_error(format!("not JSON: {error}"), None), None))));
        }
    };
    let id = value.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
    let is_notification = value.get("method").is_some() && value.get("id").is_none();
    let text = format!("not a JSON-RPC message of MCP: {error}");
    (!is_notification).then(|| Err(Box::new((ErrorData::invalid_request(text, None), id))))
}

impl Transport<RoleServer> for StdioTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (sent, closed) = (self.output.send(message), self.closed.clone());
        async move { sent.await.inspect_err(|_| closed.cancel()) }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some(refusal) = &mut self.refusal {
                let sent = refusal.await;
                self.refusal = None;
                if sent.is_err() || self.nonsense.get().is_some() {
                    break;
                }
            }
            match self.next().await {
                Ok(Some(Ok(message))) => {
                    self.has_received = true;
                    return Some(message);
                }
                Ok(Some(Err(refusal))) => {
                    let (error, id) = *refusal;
                    if !self.has_received {
                        let _ = self.nonsense.set(error.message.to_string());
                    }
                    self.refusal = Some(Box::pin(self.output.send(TxJsonRpcMessage::<RoleServer>::error(error, id))));
                }
                Ok(None) | Err(_) => break,
            }
        }
        self.closed.cancel();
        None
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.output.close().await
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::ErrorCode;

    use super::*;

    fn refused(line: &str) -> (ErrorCode, Option<RequestId>) {
        match parse(line.as_bytes()) {
            Some(Err(refusal)) => (refusal.0.code, refusal.1),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn lines_that_are_no_messages_are_refused_by_kind() {
        for line in ["hello", "{", "GET / HTTP/1.1", "\u{1}"] {
            assert_eq!(refused(line), (ErrorCode::PARSE_ERROR, None), "{line}");
        }
        for line in ["null", "[]", "1", "{}", "{\"jsonrpc\": \"1.0\", \"method\": \"ping\", \"id\": {}}"] {
            assert_eq!(refused(line), (ErrorCode::INVALID_REQUEST, None), "{line}");
        }
        assert_eq!(refused("{\"id\": 7}"), (ErrorCode::INVALID_REQUEST, Some(RequestId::Number(7))));
    }

    #[test]
    fn messages_are_messages() {
        let ping = parse(b"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}");
        assert!(matches!(ping, Some(Ok(_))), "{ping:?}");
        assert!(parse(b"").is_none());
    }
}
