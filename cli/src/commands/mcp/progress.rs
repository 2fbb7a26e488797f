//! A command's output as it comes, for a call that asked for progress. It is for people who watch: the answer has the
//! output anyway. So it costs bounded memory, comes no faster than people read, and never holds up the command.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, ServiceError};
use telexec_executor::{Output, without_cut_character};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// From one notification to the next.
const PACE: Duration = Duration::from_millis(100);
/// The most of the output in one notification: its end.
const MOST_BYTES: usize = 16 * 1024;

/// What a client is told of the output of one call.
pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    untold: Mutex<Untold>,
    changed: Notify,
    /// The command tells no more.
    ended: CancellationToken,
}

impl Progress {
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self { peer, token, untold: Mutex::default(), changed: Notify::new(), ended: CancellationToken::new() }
    }

    /// Tells the output, until all of it was told or the client is gone.
    pub(super) async fn follow(self, output: mpsc::Receiver<Output>) {
        let ((), _gone) = tokio::join!(self.gather(output), self.tell());
    }

    async fn gather(&self, mut output: mpsc::Receiver<Output>) {
        while let Some(chunk) = output.recv().await {
            self.untold().push(&chunk.data);
            self.changed.notify_one();
        }
        self.ended.cancel();
        self.changed.notify_one();
    }

    async fn tell(&self) -> Result<(), ServiceError> {
        loop {
            self.changed.notified().await;
            let ended = self.ended.is_cancelled();
            let told = self.untold().take(ended);
            if let Some((position, text)) = told {
                let progress = ProgressNotificationParam::new(self.token.clone(), position as f64);
                self.peer.notify_progress(progress.with_message(text)).await?;
            }
            if ended {
                return Ok(());
            }
            self.ended.run_until_cancelled(sleep(PACE)).await;
        }
    }

    fn untold(&self) -> MutexGuard<'_, Untold> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of the output that was not told yet.
#[derive(Default)]
struct Untold {
    bytes: Vec<u8>,
    left_out: usize,
    /// Where it ends, in the whole output.
    position: u64,
}

impl Untold {
    fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        self.position += chunk.len() as u64;
        let beyond = self.bytes.len().saturating_sub(MOST_BYTES);
        self.bytes.drain(..beyond);
        self.left_out += beyond;
    }

    /// What there is, up to which position; if more may come, without the beginning of a character.
    fn take(&mut self, ended: bool) -> Option<(u64, String)> {
        let whole = if ended { self.bytes.len() } else { without_cut_character(&self.bytes).len() };
        let rest = self.bytes.split_off(whole);
        let told = std::mem::replace(&mut self.bytes, rest);
        if told.is_empty() {
            return None;
        }
        let text = String::from_utf8_lossy(&told);
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

    fn taken(untold: &mut Untold, ended: bool) -> Option<(u64, &'static str)> {
        untold.take(ended).map(|(position, text)| (position, &*text.leak()))
    }

    #[test]
    fn characters_are_told_whole() {
        let mut untold = Untold::default();
        assert_eq!(taken(&mut untold, false), None);
        untold.push(b"a\xff\xe8");
        assert_eq!(taken(&mut untold, false), Some((2, "a\u{fffd}")));
        assert_eq!(taken(&mut untold, false), None);
        untold.push(b"\xaa\x9e");
        assert_eq!(taken(&mut untold, false), Some((5, "語")));
        untold.push(b"\xe8");
        assert_eq!(taken(&mut untold, true), Some((6, "\u{fffd}")));
    }

    #[test]
    fn of_a_flood_the_end_is_told() {
        let mut untold = Untold::default();
        for _ in 0..3 {
            untold.push(&[b'a'; MOST_BYTES]);
        }
        untold.push(b"end");
        assert_eq!(untold.bytes.len(), MOST_BYTES);
        let (position, text) = untold.take(false).unwrap();
        assert_eq!(position, 3 * MOST_BYTES as u64 + 3);
        assert!(text.starts_with("[32771 bytes left out]\naaa") && text.ends_with("aend"), "{text}");
        untold.push(b"b");
        assert_eq!(untold.take(false), Some((position + 1, "b".to_owned())));
    }
}
