//! Standard input and output as MCP has them: a message a line.

use std::io;

use rmcp::RoleServer;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{Stdin, Stdout};
use tokio_util::sync::CancellationToken;

/// Tells when the client is gone, at once: by itself the service would wait for its calls to end first.
pub(super) struct Watched {
    inner: AsyncRwTransport<RoleServer, Stdin, Stdout>,
    gone: CancellationToken,
}

impl Watched {
    pub(super) fn new(input: Stdin, output: Stdout, gone: CancellationToken) -> Self {
        Self { inner: AsyncRwTransport::new(input, output), gone }
    }
}

impl Transport<RoleServer> for Watched {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (sent, gone) = (self.inner.send(message), self.gone.clone());
        async move { sent.await.inspect_err(|_| gone.cancel()) }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let message = self.inner.receive().await;
        if message.is_none() {
            self.gone.cancel();
        }
        message
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}
