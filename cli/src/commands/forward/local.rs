//! `-L` and `-D`: what connects here is connected from the agent's machine.

use std::sync::Arc;
use std::time::Duration;

use telexec_client::{Dial, ForwardError, Forwards, LocalListener, LocalSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{MAX_CONNECTIONS, report, socks};
use crate::output::{Failure, print_message_async};
use crate::syntax::Destination;

/// For what a client of the proxy says first.
const SOCKS_TIMEOUT: Duration = Duration::from_secs(30);

/// What a listener is for.
#[derive(Clone)]
pub(super) enum Service {
    To(Dial),
    /// To where the client says.
    Socks,
}

/// Never returns.
pub(super) async fn serve(
    listener: LocalListener,
    service: Service,
    forwards: Forwards,
    target: Destination,
) -> Result<(), Failure> {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let place = Arc::clone(&places).acquire_owned().await;
        let socket = match listener.accept().await {
            Ok(socket) => socket,
            Err(error) => {
                // most likely out of descriptors: some will be closed soon
                print_message_async(format!("{}: {error}", listener.endpoint())).await;
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (service, forwards, target) = (service.clone(), forwards.clone(), target.clone());
        connections.spawn(async move {
            let _place = place;
            let done = match service {
                Service::To(to) => join(socket, to, &forwards).await,
                Service::Socks => proxy(socket, &forwards).await,
            };
            if let Err(error) = done {
                report(&target, &error).await;
            }
        });
    }
}

async fn join(socket: LocalSocket, to: Dial, forwards: &Forwards) -> Result<(), ForwardError> {
    socket.join(forwards.connect(to).await?).await
}

async fn proxy(mut socket: LocalSocket, forwards: &Forwards) -> Result<(), ForwardError> {
    let asked = match timeout(SOCKS_TIMEOUT, socks::ask(&mut socket)).await {
        Ok(asked) => asked.map_err(ForwardError::Here)?,
        Err(_) => return Ok(()),
    };
    let Some(asked) = asked else {
        // what was refused has been answered
        socket.close();
        return Ok(());
    };
    let connected = forwards.connect(asked.to.clone()).await;
    asked.answer(&mut socket, connected.as_ref().err()).await.map_err(ForwardError::Here)?;
    match connected {
        Ok(connection) => socket.join(connection).await,
        Err(error) => {
            socket.close();
            Err(error)
        }
    }
}
