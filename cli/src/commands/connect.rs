//! `telexec connect`: joins standard input and output to a connection from the agent's machine.

use std::fs::OpenOptions;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use telexec_client::{Dial, Endpoint, ForwardError, Forwards};
use tokio::io::{AsyncWrite, Stdout};

use super::forward::failure;
use crate::args::ConnectToArgs;
use crate::config::ConnectArgs;
use crate::connect::with_forwards;
use crate::output::{Failure, exit};
use crate::syntax::Destination;

pub(crate) async fn run(args: ConnectToArgs) -> Result<u8, Failure> {
    if args.user.is_some() && matches!(args.to, Endpoint::Tcp { .. }) {
        let text = format!("--user is for Unix sockets, and {} is none: the agent speaks TCP itself", args.to);
        return Err(Failure::message(exit::USAGE, text));
    }
    join(&args.agent.target, &args.connect, Dial::with_user(args.to, args.user.as_deref())).await
}

/// Joins standard input and output to a connection from the target.
pub(super) async fn join(target: &Destination, args: &ConnectArgs, to: Dial) -> Result<u8, Failure> {
    with_forwards(target, args, async |forwards| connect(target, to, forwards).await).await.map(|()| 0)
}

async fn connect(target: &Destination, to: Dial, forwards: &Forwards) -> Result<(), Failure> {
    let failed = |error: &ForwardError| failure(target, error);
    let connection = forwards.connect(to).await.map_err(|error| failed(&error))?;
    let done = connection.join(tokio::io::stdin(), Output(tokio::io::stdout())).await;
    done.map_err(|error| match &error {
        ForwardError::Here(broken) if broken.kind() == io::ErrorKind::BrokenPipe => Failure::silent(exit::BROKEN_PIPE),
        error => failed(error),
    })
}

/// Standard output, which ends when it is shut down: who reads it is waiting for that.
struct Output(Stdout);

impl AsyncWrite for Output {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.0).poll_flush(cx))?;
        let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
        Poll::Ready(rustix::stdio::dup2_stdout(nowhere).map_err(io::Error::from))
    }
}
