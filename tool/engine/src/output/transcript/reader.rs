//! Reading a transcript.

use std::collections::VecDeque;
use std::sync::Arc;

use telexec_executor::{Event, Output};
use tracing::warn;

use super::state::{BATCH_BYTES, SMALL_WINDOW, end_of};
use super::{Found, Transcript, when};
use crate::output::in_memory::{HeldBytes, WAITING};
use crate::output::spool::SpoolFile;
use crate::wait::{RETRY_DELAY, is_transient};

/// Reads a transcript at its own speed.
pub(crate) struct Reader {
    transcript: Arc<Transcript>,
    position: u64,
    /// Read from disk, not delivered yet.
    read: VecDeque<Output>,
    /// What that takes of memory, with the piece of it that was delivered last.
    held: HeldBytes,
    /// Which owner it is, or was: 0 for the call that started the command; `None`: it never was one.
    generation: Option<u64>,
}

impl Reader {
    /// For the call that started the command: it reads all.
    pub(crate) fn owner(transcript: Arc<Transcript>) -> Self {
        Self::new(transcript, 0, Some(0))
    }

    /// For any other call.
    pub(crate) fn at(transcript: Arc<Transcript>, position: u64) -> Self {
        Self::new(transcript, position, None)
    }

    fn new(transcript: Arc<Transcript>, position: u64, generation: Option<u64>) -> Self {
        Self { transcript, position, read: VecDeque::new(), held: HeldBytes::waiting(), generation }
    }

    /// Where it reads next.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Its call has [taken the place](Transcript::take_over) of the owner.
    pub(crate) fn succeed(&mut self, generation: u64) {
        self.generation = Some(generation);
    }

    fn is_first(&self) -> bool {
        self.generation == Some(0)
    }

    /// What comes next; not to be called after the last event.
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            if let Some(output) = self.read.pop_front() {
                return self.advance(output);
            }
            self.held.set(0);
            let transcript = Arc::clone(&self.transcript);
            match when(&transcript.added, || transcript.find(self.position, self.generation)).await {
                Found::Output(output) => return self.advance(output),
                Found::OnDisk(file, end) => {
                    if !self.read(file, end).await {
                        return self.skip_to(transcript.after_disk(self.is_first()));
                    }
                }
                // the owner learns at the end how much it has not got
                Found::Gap(position) if self.is_first() && transcript.generation() == 0 => self.position = position,
                Found::Gap(position) | Found::Lost(position) => return self.skip_to(position),
                Found::Promoted => return Event::Promoted,
                Found::Exited(exited) => return Event::Exited(*exited),
            }
        }
    }

    fn advance(&mut self, output: Output) -> Event {
        self.position = end_of(&output);
        Event::Output(output)
    }

    /// What is before is not delivered.
    fn skip_to(&mut self, position: u64) -> Event {
        self.position = position;
        Event::Gap(position)
    }

    /// False: it cannot be read any more.
    async fn read(&mut self, file: Arc<SpoolFile>, end: u64) -> bool {
        let length = if WAITING.is_high() { SMALL_WINDOW / 4 } else { BATCH_BYTES };
        let end = end.min(self.position.saturating_add(length as u64));
        // before the read, so that readers at the same time see it
        self.held.set(length);
        match file.read(self.position, end).await {
            Ok(chunks) if !chunks.is_empty() => {
                self.held.set(chunks.iter().map(|chunk| chunk.data.len()).sum());
                self.read = chunks.into();
            }
            Err(error) if is_transient(&error) => tokio::time::sleep(RETRY_DELAY).await,
            // someone has removed it, or the disk is broken
            unread => {
                warn!(error = unread.err().map(tracing::field::display), "kept output cannot be read");
                return false;
            }
        }
        true
    }
}
