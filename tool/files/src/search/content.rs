//! Lines in one file.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use grep_regex::RegexMatcher;
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkError, SinkMatch};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use super::message::{Line, SearchTask};
use super::results::Results;
use crate::read::errno;
use crate::session::Session;

/// The longest line, and with `multiline` the largest file.
const MAX_HEAP_BYTES: usize = 64 * 1024 * 1024;

/// Searches files for a regex.
pub(super) struct Content {
    regex: RegexMatcher,
    searcher: Searcher,
    max_file_bytes: u64,
    max_line_bytes: usize,
}

/// What came of a file.
pub(super) enum Seen {
    Searched,
    Binary,
    TooLarge,
    /// It is no regular file any more.
    Other,
    Failed(Errno),
}

impl Content {
    pub(super) fn new(task: &SearchTask, regex: RegexMatcher) -> Self {
        let searcher = SearcherBuilder::new()
            .line_number(true)
            .multi_line(task.multiline)
            .before_context(task.before_context as usize)
            .after_context(task.after_context as usize)
            .heap_limit(Some(MAX_HEAP_BYTES))
            .binary_detection(BinaryDetection::quit(0))
            .max_matches(Some(task.max_matches_per_file).filter(|most| *most > 0))
            .build();
        let max_line_bytes = task.max_line_bytes as usize;
        Self { regex, searcher, max_file_bytes: task.max_file_bytes, max_line_bytes }
    }

    /// Whether a file of this size is searched.
    pub(super) fn takes(&self, size: i64) -> bool {
        u64::try_from(size).is_ok_and(|size| size <= self.max_file_bytes)
    }

    /// Searches a file that was opened, and sends its lines under this path.
    ///
    /// # Errors
    /// The pipe is closed.
    pub(super) fn search<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        results: &mut Results,
        file: OwnedFd,
        path: &[u8],
    ) -> io::Result<Seen> {
        match fstat(&file) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => return Ok(Seen::Other),
            Ok(stat) if !self.takes(stat.st_size) => return Ok(Seen::TooLarge),
            Ok(_) => {}
            Err(error) => return Ok(Seen::Failed(error)),
        }
        // one that grows all the time comes to an end too
        let file = File::from(file).take(self.max_file_bytes);
        let mut lines = Lines { session, results, path, max_bytes: self.max_line_bytes, is_binary: false };
        match self.searcher.search_reader(&self.regex, file, &mut lines) {
            Ok(()) if lines.is_binary => Ok(Seen::Binary),
            Ok(()) => Ok(Seen::Searched),
            Err(Stopped::Pipe(error)) => Err(error),
            Err(Stopped::Read(error)) if error.raw_os_error().is_some() => Ok(Seen::Failed(errno(&error))),
            // which only the limit of the heap is
            Err(Stopped::Read(_)) => Ok(Seen::TooLarge),
        }
    }
}

/// Takes the lines of one file.
struct Lines<'a, I, O> {
    session: &'a mut Session<I, O>,
    results: &'a mut Results,
    path: &'a [u8],
    max_bytes: usize,
    is_binary: bool,
}

impl<I: Read, O: Write> Lines<'_, I, O> {
    fn add(&mut self, line: &[u8], number: Option<u64>, is_context: bool) -> Result<bool, Stopped> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = line.get(..self.max_bytes).unwrap_or(line);
        let is_cut = text.len() < line.len();
        let line = Line { number: number.unwrap_or_default(), text: text.to_vec(), is_context, is_cut };
        self.results.line(self.session, self.path, line).map_err(Stopped::Pipe)
    }
}

impl<I: Read, O: Write> Sink for Lines<'_, I, O> {
    type Error = Stopped;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, Stopped> {
        for (line, number) in found.lines().zip(found.line_number().unwrap_or_default()..) {
            if !self.add(line, Some(number), false)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, line: &SinkContext<'_>) -> Result<bool, Stopped> {
        self.add(line.bytes(), line.line_number(), true)
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> Result<bool, Stopped> {
        self.is_binary = true;
        Ok(true)
    }
}

/// Why a file is not searched to its end.
enum Stopped {
    Read(io::Error),
    Pipe(io::Error),
}

impl SinkError for Stopped {
    fn error_message<T: std::fmt::Display>(message: T) -> Self {
        Self::Read(io::Error::other(message.to_string()))
    }

    fn error_io(error: io::Error) -> Self {
        Self::Read(error)
    }
}
