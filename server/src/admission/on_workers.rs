//! Polls a future on the threads of a pool: its computation is scheduled fairly per owner, and off the runtime.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use telexec_engine::{Lost, Workers};
use tokio::sync::Notify;

/// Runs the future to its end; each poll counts as work of `owner`. It may use sockets of the runtime, but must not start
/// tasks or timers. Dropping this stops the polling.
///
/// # Errors
/// It panicked.
pub(crate) async fn on_workers<F>(workers: &Workers, owner: &str, future: F) -> Result<F::Output, Lost>
where
    F: Future<Output: Send> + Send + 'static,
{
    let woken = Arc::new(Woken(Notify::new()));
    let mut future = Box::pin(future);
    loop {
        let waker = Waker::from(Arc::clone(&woken));
        let poll = move || {
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            (future, polled)
        };
        let polled;
        (future, polled) = workers.run(owner, poll).await?;
        match polled {
            Poll::Ready(output) => return Ok(output),
            // also if it was woken during the poll
            Poll::Pending => woken.0.notified().await,
        }
    }
}

struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_socket_of_the_runtime_wakes_it() {
        let workers = Workers::new("test", 1, 1).unwrap();
        let (mut here, mut there) = tokio::net::UnixStream::pair().unwrap();
        let read = on_workers(&workers, "a", async move {
            let mut read = [0; 6];
            there.read_exact(&mut read).await.map(|_| read)
        });
        let write = async {
            for byte in b"abcdef" {
                here.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        assert_eq!(&tokio::join!(read, write).0.unwrap().unwrap(), b"abcdef");
    }

    #[tokio::test]
    async fn a_panic_is_reported() {
        let workers = Workers::new("test", 1, 1).unwrap();
        assert!(on_workers(&workers, "a", async { panic!("on purpose") }).await.is_err());
    }
}
