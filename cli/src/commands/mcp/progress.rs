//! Sends a command's output as progress notifications, if the call requested them. They are for human viewers, as the
//! result contains the output anyway: memory and rate are limited, and they never block the command.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, ServiceError};
use telexec_executor::{Output, without_cut_character};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Between notifications.
const INTERVAL: Duration = Duration::from_millis(100);
/// Maximum output in a notification; older output is dropped.
const MAX_BYTES: usize = 16 * 1024;

/// Sends the output of one call.
pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    unsent: Mutex<Unsent>,
    changed: Notify,
    /// There is no more output.
    ended: CancellationToken,
}

impl Progress {
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self { peer, token, unsent: Mutex::default(), changed: Notify::new(), ended: CancellationToken::new() }
    }

    /// Sends the output until all of it is sent or the client is gone.
    pub(super) async fn follow(self, output: mpsc::Receiver<Output>) {
        let ((), _gone) = tokio::join!(self.collect(output), self.send());
    }

    async fn collect(&self, mut output: mpsc::Receiver<Output>) {
        while let Some(chunk) = output.recv().await {
            self.unsent().push(&chunk.data);
            self.changed.notify_one();
        }
        self.ended.cancel();
        self.changed.notify_one();
    }

    async fn send(&self) -> Result<(), ServiceError> {
        loop {
            self.changed.notified().await;
            let ended = self.ended.is_cancelled();
            let next = self.unsent().take(ended);
            if let Some((position, text)) = next {
                let progress = ProgressNotificationParam::new(self.token.clone(), position as f64);
                self.peer.notify_progress(progress.with_message(text)).await?;
            }
            if ended {
                return Ok(());
            }
            self.ended.run_until_cancelled(sleep(INTERVAL)).await;
        }
    }

    fn unsent(&self) -> MutexGuard<'_, Unsent> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of the output that was not sent yet.
#[derive(Default)]
struct Unsent {
    bytes: Vec<u8>,
    left_out: usize,
    /// The position of its end in the whole output.
    position: u64,
}

impl Unsent {
    fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        self.position += chunk.len() as u64;
        let beyond = self.bytes.len().saturating_sub(MAX_BYTES);
        self.bytes.drain(..beyond);
        self.left_out += beyond;
    }

    /// The unsent output and the position of its end. Unless `ended`, an incomplete last character is held back.
    fn take(&mut self, ended: bool) -> Option<(u64, String)> {
        let whole = if ended { self.bytes.len() } else { without_cut_character(&self.bytes).len() };
        let rest = self.bytes.split_off(whole);
        let next = std::mem::replace(&mut self.bytes, rest);
        if next.is_empty() {
            return None;
        }
        let text = String::from_utf8_lossy(&next);
        let text = match std::mem::take(&mut self.left_out) {
            0 => text.into_owned(),
            bytes => format!("[{bytes} bytes left out]\n{text}"),
        };
        Some((self.position - self.bytes.len() as u64, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(unsent: &mut Unsent, ended: bool) -> Option<(u64, &'static str)> {
        unsent.take(ended).map(|(position, text)| (position, &*text.leak()))
    }

    #[test]
    fn characters_are_not_split() {
        let mut unsent = Unsent::default();
        assert_eq!(taken(&mut unsent, false), None);
        unsent.push(b"a\xff\xe8");
        assert_eq!(taken(&mut unsent, false), Some((2, "a\u{fffd}")));
        assert_eq!(taken(&mut unsent, false), None);
        unsent.push(b"\xaa\x9e");
        assert_eq!(taken(&mut unsent, false), Some((5, "語")));
        unsent.push(b"\xe8");
        assert_eq!(taken(&mut unsent, true), Some((6, "\u{fffd}")));
    }

    #[test]
    fn of_a_flood_the_end_is_sent() {
        let mut unsent = Unsent::default();
        for _ in 0..3 {
            unsent.push(&[b'a'; MAX_BYTES]);
        }
        unsent.push(b"end");
        assert_eq!(unsent.bytes.len(), MAX_BYTES);
        let (position, text) = unsent.take(false).unwrap();
        assert_eq!(position, 3 * MAX_BYTES as u64 + 3);
        assert!(text.starts_with("[32771 bytes left out]\naaa") && text.ends_with("aend"), "{text}");
        unsent.push(b"b");
        assert_eq!(unsent.take(false), Some((position + 1, "b".to_owned())));
    }
}
