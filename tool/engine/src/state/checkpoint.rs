//! What the next agent needs to continue an execution: a file in memory, see memfd_create(2), which the keeper holds too.
//!
//! It is complete at every moment, since an agent may be killed at any. Output comes into it by splice(2), so that a byte is
//! in the pipe or in the file, and the file's length says how much there is; which stream it is of is written before.
//!
//! At the beginning are fields of eight bytes, where the files of the spool are, and after that what the execution is, how
//! it has ended, the index of its output and the output: holes take no memory.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

use bytes::Bytes;
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::pipe::{SpliceFlags, splice};
use telexec_executor::{Output, OutputStream};

use super::memory_file::{GATHERED_BYTES, PAGE, broken, get, punch, put, read_exact, write_all};
use crate::lock::lock;
use crate::process::keeper::HeldState;

/// The content of another one is not understood.
pub(crate) const VERSION: u64 = 1;
/// Where the fields are.
const VERSION_AT: u64 = 0;
const ENDED_LENGTH_AT: u64 = 8;
const EXECUTION_LENGTH_AT: u64 = 16;
/// Which of the places for it is right, and in the lower half how long it is.
const SPOOL_CHOICE_AT: u64 = 24;
const PROMOTED_AT: u64 = 32;
const TYPED_AT: u64 = 40;
const INPUT_CLOSED_AT: u64 = 48;
/// Of standard output, and after it of standard error.
const UNKEPT_AT: u64 = 56;
const LINGERS_AT: u64 = 72;
const WINDOW_AT: u64 = 128;
/// Two places, in turn.
const SPOOL_AT: [u64; 2] = [PAGE, 4 * PAGE];
const MAX_SPOOL_BYTES: u64 = 3 * PAGE;
const EXECUTION_AT: u64 = 8 * PAGE;
const MAX_BLOB_BYTES: u64 = 32 << 20;
const ENDED_AT: u64 = 64 << 20;
const INDEX_AT: u64 = 128 << 20;
const ENTRY_BYTES: u64 = 8;
/// Entries are in turn in so many places: those in use are far fewer.
const INDEX_ENTRIES: u64 = 1 << 30;
const OUTPUT_AT: u64 = 16 << 30;
const _: () = assert!(INDEX_AT + INDEX_ENTRIES * ENTRY_BYTES <= OUTPUT_AT);
/// Of the output that is read at once.
const CHUNK_BYTES: u64 = 64 * 1024;

/// What the next agent needs of one execution. Dropping it lets the keeper forget that.
pub(crate) struct Checkpoint {
    file: OwnedFd,
    progress: Mutex<Progress>,
    held: OnceLock<HeldState>,
}

/// Whether the input of a command is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Closed {
    #[default]
    No = 0,
    /// The end may have been typed.
    Begun = 1,
    Yes = 2,
}

/// What is in the file of the output.
struct Progress {
    window: Window,
    /// The runs of one stream from the window's first on.
    runs: VecDeque<(u64, OutputStream)>,
    end: u64,
    /// Up to here of the window's beginning nothing is in memory.
    punched: u64,
}

/// The output that is still there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Window {
    start: u64,
    /// The number of the entry that the first byte belongs to.
    entry: u64,
    /// Bytes of standard output before it.
    stdout: u64,
    /// What was dropped of each stream before it.
    dropped: [u64; 2],
}

/// What the output of an execution was, when its agent was killed.
pub(crate) struct Saved {
    pub(crate) chunks: Vec<Output>,
    pub(crate) end: u64,
    /// Bytes of each stream that were kept, up to the end.
    pub(crate) kept: [u64; 2],
    /// Of these, those that no reader has got.
    pub(crate) dropped: [u64; 2],
    /// Bytes of each stream that were read, and not kept.
    pub(crate) unkept: [u64; 2],
    pub(crate) promoted: Option<u64>,
}

impl Checkpoint {
    /// An empty one.
    ///
    /// # Errors
    /// There are no descriptors, there is no memory, or files may not be so large.
    pub(crate) fn new() -> io::Result<Self> {
        let file = memfd_create("telexec-execution", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, OUTPUT_AT)?;
        put(&file, VERSION_AT, &[VERSION])?;
        let progress = Progress { window: Window::default(), runs: VecDeque::new(), end: 0, punched: 0 };
        Ok(Self { file, progress: Mutex::new(progress), held: OnceLock::new() })
    }

    /// One of an earlier agent.
    ///
    /// # Errors
    /// It is not one, or of another version.
    pub(crate) fn open(file: OwnedFd) -> io::Result<Self> {
        let [version] = get(&file, VERSION_AT)?;
        if version != VERSION {
            return Err(io::Error::other(format!(
                "its checkpoint is of version {version}, and this agent reads {VERSION}"
            )));
        }
        let [start, entry, stdout, stdout_dropped, stderr_dropped] = get(&file, WINDOW_AT)?;
        let window = Window { start, entry, stdout, dropped: [stdout_dropped, stderr_dropped] };
        let end = u64::try_from(fstat(&file)?.st_size).unwrap_or(0).checked_sub(OUTPUT_AT).ok_or_else(broken)?;
        let runs = read_runs(&file, &window, end)?;
        let progress = Progress { window, runs, end, punched: start };
        Ok(Self { file, progress: Mutex::new(progress), held: OnceLock::new() })
    }

    /// The keeper has it, by this name.
    pub(crate) fn is_held(&self, state: HeldState) {
        let _ = self.held.set(state);
    }

    /// This agent continues it.
    pub(crate) fn claim(&self) {
        self.held.get().into_iter().for_each(HeldState::claim);
    }

    /// A descriptor that the keeper holds is needed no more.
    pub(crate) fn close(&self, number: u8) {
        self.held.get().into_iter().for_each(|held| held.close(number));
    }

    /// What the execution is.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn set_execution(&self, execution: &[u8]) -> io::Result<()> {
        self.set_blob(EXECUTION_AT, MAX_BLOB_BYTES, EXECUTION_LENGTH_AT, execution)
    }

    /// How it has ended: it needs no process any more.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn set_ended(&self, ended: &[u8]) -> io::Result<()> {
        self.set_blob(ENDED_AT, MAX_BLOB_BYTES, ENDED_LENGTH_AT, ended)
    }

    /// Where the files of the spool are.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn set_spool(&self, spool: &[u8]) -> io::Result<()> {
        let [choice] = get(&self.file, SPOOL_CHOICE_AT)?;
        // the one before is right until the last step
        let other = 1 - (choice >> 32 & 1);
        let [first, second] = SPOOL_AT;
        write_blob(&self.file, if other == 0 { first } else { second }, MAX_SPOOL_BYTES, spool)?;
        put(&self.file, SPOOL_CHOICE_AT, &[other << 32 | spool.len() as u64])
    }

    /// Once.
    fn set_blob(&self, at: u64, most: u64, length_at: u64, blob: &[u8]) -> io::Result<()> {
        write_blob(&self.file, at, most, blob)?;
        put(&self.file, length_at, &[blob.len() as u64])
    }

    /// # Errors
    /// It is not whole.
    pub(crate) fn execution(&self) -> io::Result<Vec<u8>> {
        self.blob(EXECUTION_AT, MAX_BLOB_BYTES, EXECUTION_LENGTH_AT)?.ok_or_else(broken)
    }

    /// `None`: it runs.
    ///
    /// # Errors
    /// It is not whole.
    pub(crate) fn ended(&self) -> io::Result<Option<Vec<u8>>> {
        self.blob(ENDED_AT, MAX_BLOB_BYTES, ENDED_LENGTH_AT)
    }

    /// `None`: there are none.
    ///
    /// # Errors
    /// It is not whole.
    pub(crate) fn spool(&self) -> io::Result<Option<Vec<u8>>> {
        let [choice] = get(&self.file, SPOOL_CHOICE_AT)?;
        let [first, second] = SPOOL_AT;
        let at = if choice >> 32 & 1 == 0 { first } else { second };
        self.blob_of(at, MAX_SPOOL_BYTES, choice & u64::from(u32::MAX))
    }

    fn blob(&self, at: u64, most: u64, length_at: u64) -> io::Result<Option<Vec<u8>>> {
        let [length] = get(&self.file, length_at)?;
        self.blob_of(at, most, length)
    }

    fn blob_of(&self, at: u64, most: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        if length > most {
            return Err(broken());
        }
        (length > 0).then(|| read_exact(&self.file, at, usize::try_from(length).unwrap_or(0))).transpose()
    }

    /// It continues in the background, from this position on.
    pub(crate) fn set_promoted(&self, position: u64) {
        self.note(PROMOTED_AT, position.saturating_add(1));
    }

    /// So much of a stream was read, and is not kept.
    pub(crate) fn set_unkept(&self, stream: OutputStream, bytes: u64) {
        self.note(UNKEPT_AT + 8 * number(stream) as u64, bytes);
    }

    /// So much was typed, and whether what is typed next begins a line.
    pub(crate) fn set_typed(&self, bytes: u64, at_line_start: bool) {
        self.note(TYPED_AT, bytes << 1 | u64::from(!at_line_start));
    }

    /// # Errors
    /// It is not whole.
    pub(crate) fn typed(&self) -> io::Result<(u64, bool)> {
        get(&self.file, TYPED_AT).map(|[typed]| (typed >> 1, typed & 1 == 0))
    }

    /// Its input is being closed, or is closed.
    pub(crate) fn set_input_closed(&self, closed: Closed) {
        self.note(INPUT_CLOSED_AT, closed as u64);
    }

    /// # Errors
    /// It is not whole.
    pub(crate) fn input_closed(&self) -> io::Result<Closed> {
        get(&self.file, INPUT_CLOSED_AT).map(|[closed]| match closed {
            0 => Closed::No,
            1 => Closed::Begun,
            _ => Closed::Yes,
        })
    }

    /// Its main process has ended, and it has left others running.
    pub(crate) fn set_lingers(&self, lingers: bool) {
        self.note(LINGERS_AT, u64::from(lingers));
    }

    /// # Errors
    /// It is not whole.
    pub(crate) fn lingers(&self) -> io::Result<bool> {
        get(&self.file, LINGERS_AT).map(|[lingers]| lingers != 0)
    }

    /// The first page is always in memory: this cannot fail.
    fn note(&self, at: u64, value: u64) {
        let _ = put(&self.file, at, &[value]);
    }

    /// Moves output from a pipe into the file, and returns where it is; nowhere: the end. One after the other.
    ///
    /// # Errors
    /// `WouldBlock`: there is none now.
    pub(crate) fn take(&self, stream: OutputStream, pipe: BorrowedFd<'_>, most: usize) -> io::Result<Range<u64>> {
        self.append(stream, |file, offset| {
            let mut offset = offset;
            Ok(splice(pipe, None, file, Some(&mut offset), most, SpliceFlags::NONBLOCK)?)
        })
    }

    /// Adds output that was read, and returns where it is. As [`take`](Self::take), one after the other.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn add(&self, stream: OutputStream, data: &[u8]) -> io::Result<Range<u64>> {
        self.append(stream, |file, offset| write_all(file, data, offset).map(|()| data.len()))
    }

    /// What was taken or added, in pieces of at most so many bytes.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn read(&self, taken: Range<u64>, piece: usize) -> io::Result<Vec<Bytes>> {
        let length = |at: &u64| usize::try_from(taken.end - at).unwrap_or(usize::MAX).min(piece);
        let pieces = taken.clone().step_by(piece.max(1));
        pieces.map(|at| read_exact(&self.file, at, length(&at)).map(Bytes::from)).collect()
    }

    fn append(
        &self,
        stream: OutputStream,
        append: impl FnOnce(BorrowedFd<'_>, u64) -> io::Result<usize>,
    ) -> io::Result<Range<u64>> {
        let offset = {
            let mut progress = lock(&self.progress);
            progress.begin_run(stream, &self.file)?;
            OUTPUT_AT + progress.end
        };
        // not with the lock: the command may hold this up
        let length = append(self.file.as_fd(), offset)? as u64;
        lock(&self.progress).end += length;
        Ok(offset..offset + length)
    }

    /// The last so many bytes of output are not to be kept.
    pub(crate) fn retract(&self, length: usize) {
        let mut progress = lock(&self.progress);
        let end = progress.end.saturating_sub(length as u64).max(progress.window.start);
        if ftruncate(&self.file, OUTPUT_AT + end).is_ok() {
            progress.end = end;
        }
    }

    /// What is before `start` is needed no more; of that, so much was dropped of each stream. `at_once`: however little it is.
    pub(crate) fn forget(&self, start: u64, dropped: [u64; 2], at_once: bool) {
        let mut progress = lock(&self.progress);
        if start.saturating_sub(progress.window.start) >= if at_once { 1 } else { GATHERED_BYTES } {
            let start = start.min(progress.end);
            progress.forget(start, dropped, &self.file);
        }
    }

    /// The output as it is.
    ///
    /// # Errors
    /// It is not whole.
    pub(crate) fn saved(&self) -> io::Result<Saved> {
        let progress = lock(&self.progress);
        let Progress { window, runs, end, .. } = &*progress;
        let ends = runs.iter().skip(1).map(|run| run.0).chain([*end]);
        let mut chunks = Vec::new();
        let mut stdout = window.stdout;
        for ((start, stream), run_end) in runs.iter().zip(ends) {
            let mut from = (*start).max(window.start);
            if *stream == OutputStream::Stdout {
                stdout += run_end.saturating_sub(from);
            }
            while from < run_end {
                let to = run_end.min(from + CHUNK_BYTES);
                let length = usize::try_from(to - from).unwrap_or(0);
                let data = read_exact(&self.file, OUTPUT_AT + from, length)?.into();
                chunks.push(Output { stream: *stream, data, position: from });
                from = to;
            }
        }
        let unkept = get(&self.file, UNKEPT_AT)?;
        let [promoted] = get(&self.file, PROMOTED_AT)?;
        let kept = [stdout, end.saturating_sub(stdout)];
        Ok(Saved { chunks, end: *end, kept, dropped: window.dropped, unkept, promoted: promoted.checked_sub(1) })
    }
}

impl AsFd for Checkpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Progress {
    /// What comes next is of this stream.
    fn begin_run(&mut self, stream: OutputStream, file: &OwnedFd) -> io::Result<()> {
        if self.runs.back().is_some_and(|run| run.1 == stream) {
            return Ok(());
        }
        // one in which nothing came
        if self.runs.back().is_some_and(|run| run.0 == self.end) {
            self.runs.pop_back();
        }
        let entry = self.window.entry + self.runs.len() as u64;
        put(file, entry_at(entry), &[self.end << 1 | number(stream) as u64])?;
        self.runs.push_back((self.end, stream));
        Ok(())
    }

    fn forget(&mut self, start: u64, dropped: [u64; 2], file: &OwnedFd) {
        let mut window = Window { start, dropped, ..self.window };
        let mut from = self.window.start;
        while let Some((_, stream)) = self.runs.front().copied() {
            let next = self.runs.get(1).map(|run| run.0);
            let end = next.unwrap_or(self.end).min(start);
            if stream == OutputStream::Stdout {
                window.stdout += end.saturating_sub(from);
            }
            from = from.max(end);
            if next.is_none_or(|next| next > start) {
                break;
            }
            self.runs.pop_front();
            window.entry += 1;
        }
        let Window { start, entry, stdout, dropped: [stdout_dropped, stderr_dropped] } = window;
        let earlier = self.window.entry;
        if put(file, WINDOW_AT, &[start, entry, stdout, stdout_dropped, stderr_dropped]).is_err() {
            return;
        }
        self.window = window;
        punch(file, OUTPUT_AT + self.punched, OUTPUT_AT + start);
        self.punched = start;
        if entry - earlier < INDEX_ENTRIES && earlier % INDEX_ENTRIES < entry % INDEX_ENTRIES {
            punch(file, entry_at(earlier), entry_at(entry));
        }
    }
}

/// The runs of a window, from the index.
fn read_runs(file: &OwnedFd, window: &Window, end: u64) -> io::Result<VecDeque<(u64, OutputStream)>> {
    let mut runs: VecDeque<(u64, OutputStream)> = VecDeque::new();
    if window.start >= end {
        return Ok(runs);
    }
    for entry in window.entry.. {
        let [value] = get(file, entry_at(entry))?;
        let (start, stream) = (value >> 1, if value & 1 == 0 { OutputStream::Stdout } else { OutputStream::Stderr });
        // what follows the last one is a hole, or was in this place before
        if start > end || runs.back().is_some_and(|last| last.0 >= start) {
            break;
        }
        runs.push_back((start, stream));
    }
    let is_whole = runs.front().is_some_and(|run| run.0 <= window.start);
    if is_whole { Ok(runs) } else { Err(broken()) }
}

fn entry_at(entry: u64) -> u64 {
    INDEX_AT + entry % INDEX_ENTRIES * ENTRY_BYTES
}

fn number(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
    }
}

fn write_blob(file: &OwnedFd, at: u64, most: u64, blob: &[u8]) -> io::Result<()> {
    match blob.len() as u64 > most {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => write_all(file, blob, at),
    }
}

#[cfg(test)]
mod tests;
