//! Finding files, by their names or by what is in them.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;

use crate::{ExecutorError, FileInfo, FilePath};

/// What to look for. The default finds every file that is neither hidden nor ignored by git.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchQuery {
    /// Which files, as in .gitignore: `*.rs` at any depth, `src/**/*.rs` from the directory on, `!*.rs` all others, `*/`
    /// directories; empty: every file.
    pub glob: String,
    /// What to look for in these files; `None`: names are enough, and [`Found::File`] comes for each file.
    /// `Some`: [`Found::Matches`] does.
    pub regex: Option<String>,
    /// In both patterns.
    pub case_insensitive: bool,
    /// A match may span lines, and `.` is also the end of a line.
    pub multiline: bool,
    /// Lines before each match, at most 1,000.
    pub before_context: u32,
    /// And after it.
    pub after_context: u32,
    /// Also names that begin with a dot, and what is in such directories.
    pub include_hidden: bool,
    /// Also what .gitignore and .ignore say is to be ignored, and `.git`.
    pub include_ignored: bool,
    /// Symbolic links stand for what they lead to.
    pub follow_links: bool,
    /// The most files, or matching lines; 0: 10,000. At most 1,000,000.
    pub max_matches: u64,
    /// The most matches of one file; 0: all. With 1 and a regex: the names of files that match.
    pub max_matches_per_file: u64,
    /// The most bytes of paths and lines; 0: 16 MiB. At most 1 GiB.
    pub max_bytes: u64,
    /// Larger files are skipped; 0: those larger than 64 MiB.
    pub max_file_bytes: u64,
    /// Longer lines are cut; 0: at 4 KiB. At most 64 KiB.
    pub max_line_bytes: u32,
}

/// What a search finds, in the order of the names' bytes. It ends with [`Found::End`], or an error. Dropping it ends the
/// search; one that is not read waits.
pub type FoundFiles = Pin<Box<dyn Stream<Item = Result<Found, ExecutorError>> + Send>>;

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A file, without a regex. Its path begins with that of the search.
    File(FileInfo),
    /// Lines of a file, with a regex.
    Matches(FileMatches),
    /// The last one.
    End(SearchSummary),
}

/// Lines of one file, in order. A file with many of them has several of these, one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMatches {
    /// Begins with that of the search.
    pub path: FilePath,
    /// Those that match, and those around them: where the numbers jump, something is left out.
    pub lines: Vec<MatchedLine>,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedLine {
    /// The first one of a file is 1.
    pub number: u64,
    /// Without its end.
    pub text: Bytes,
    /// It does not match, but is near a line that does.
    pub is_context: bool,
    /// It is longer, and this is its beginning.
    pub is_cut: bool,
}

/// What became of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchSummary {
    /// Files that were looked at.
    pub files_searched: u64,
    /// Files, or matching lines, that were found.
    pub matches: u64,
    /// Files that are no text.
    pub skipped_binary: u64,
    /// Files that are too large.
    pub skipped_too_large: u64,
    /// Files and directories that the user may not read.
    pub skipped_unreadable: u64,
    /// Files and directories that the machine's policy denies.
    pub skipped_denied: u64,
    /// There is more: a limit was reached.
    pub limit_reached: bool,
}
