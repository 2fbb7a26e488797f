//! The stdio transport of MCP: one message per line.

use std::io;

use rmcp::RoleServer;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{Stdin, Stdout};
use tokio_util::sync::CancellationToken;

/// Cancels a token as soon as the client is gone: the service itself would first wait for its calls to end.
pub(super) struct NotifyOnClose {
    inner: AsyncRwTransport<RoleServer, Stdin, Stdout>,
    closed: CancellationToken,
}

impl NotifyOnClose {
    pub(super) fn new(input: Stdin, output: Stdout, closed: CancellationToken) -> Self {
        Self { inner: AsyncRwTransport::new(input, output), closed }
    }
}

impl Transport<RoleServer> for NotifyOnClose {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (sent, closed) = (self.inner.send(message), self.closed.clone());
        async move { sent.await.inspect_err(|_| closed.cancel()) }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let message = self.inner.receive().await;
        if message.is_none() {
            self.closed.cancel();
        }
        message
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}
