//! Reading a transcript.

use std::collections::VecDeque;
use std::sync::Arc;

use telexec_executor::{Event, Output};
use tracing::warn;

use super::state::{BATCH_BYTES, SMALL_WINDOW, after_position, end_of};
use super::{Found, Transcript, when};
use crate::output::in_memory::{HeldBytes, WAITING};
use crate::output::spool::SpoolFile;
use crate::wait::{RETRY_DELAY, is_transient};

/// The first piece for a call that attaches; each may be twice as long as the one before. A connection that breaks after a
/// few KiB each time delivers something then: of a long piece nothing arrives until all of it has.
const FIRST_PIECE_BYTES: usize = 4 * 1024;

/// Reads a transcript at its own speed.
pub(crate) struct Reader {
    transcript: Arc<Transcript>,
    position: u64,
    /// Read from disk, not delivered yet.
    read: VecDeque<Output>,
    /// What that takes of memory, with the piece of it that was delivered last.
    held: HeldBytes,
    /// The longest piece that is delivered next.
    piece: usize,
    /// Which owner it is, or was: 0 for the call that started the command; `None`: it never was one.
    generation: Option<u64>,
}

impl Reader {
    /// For the call that started the command: it reads all.
    pub(crate) fn owner(transcript: Arc<Transcript>) -> Self {
        Self::new(transcript, 0, usize::MAX, Some(0))
    }

    /// For any other call.
    pub(crate) fn at(transcript: Arc<Transcript>, position: u64) -> Self {
        Self::new(transcript, position, FIRST_PIECE_BYTES, None)
    }

    fn new(transcript: Arc<Transcript>, position: u64, piece: usize, generation: Option<u64>) -> Self {
        Self { transcript, position, read: VecDeque::new(), held: HeldBytes::waiting(), piece, generation }
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
                if let Some(rest) = after_position(&output, output.position.saturating_add(self.piece as u64)) {
                    self.read.push_front(rest);
                }
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

    /// Delivers the first piece of this.
    fn advance(&mut self, mut output: Output) -> Event {
        output.data.truncate(self.piece);
        self.piece = self.piece.saturating_mul(2);
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
