//! What goes over the pipes for a search.

use crate::message::Info;

/// Finds files below a directory, or lines in them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SearchTask {
    /// Where: a directory, or one file.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// Which files; empty: all.
    #[prost(string, tag = "2")]
    pub glob: String,
    /// What is looked for in them; absent: their names are enough.
    #[prost(string, optional, tag = "3")]
    pub regex: Option<String>,
    /// Both patterns.
    #[prost(bool, tag = "4")]
    pub case_insensitive: bool,
    /// A match may span lines.
    #[prost(bool, tag = "5")]
    pub multiline: bool,
    /// So many lines before each match.
    #[prost(uint32, tag = "6")]
    pub before_context: u32,
    /// And after it.
    #[prost(uint32, tag = "7")]
    pub after_context: u32,
    /// Also names that begin with a dot.
    #[prost(bool, tag = "8")]
    pub include_hidden: bool,
    /// Also what git ignores.
    #[prost(bool, tag = "9")]
    pub include_ignored: bool,
    /// Symbolic links stand for what they point to.
    #[prost(bool, tag = "10")]
    pub follow_links: bool,
    /// At most so many files or matching lines.
    #[prost(uint64, tag = "11")]
    pub max_matches: u64,
    /// At most so many matches of one file; 0: any number.
    #[prost(uint64, tag = "12")]
    pub max_matches_per_file: u64,
    /// At most so many bytes of paths and lines.
    #[prost(uint64, tag = "13")]
    pub max_bytes: u64,
    /// Larger files are not searched.
    #[prost(uint64, tag = "14")]
    pub max_file_bytes: u64,
    /// Longer lines are cut.
    #[prost(uint32, tag = "15")]
    pub max_line_bytes: u32,
    /// Not only the first question is to be asked: there is a policy.
    #[prost(bool, tag = "16")]
    pub asks_each: bool,
}

/// Some of what was found. The first one is empty: the search has begun.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Found {
    /// Files, if names are enough.
    #[prost(message, repeated, tag = "1")]
    pub files: Vec<Info>,
    /// Or lines in them.
    #[prost(message, repeated, tag = "2")]
    pub matches: Vec<Matches>,
}

/// Lines of one file, in order. More of them may follow.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Matches {
    /// Which file.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// Those that match, and those around them.
    #[prost(message, repeated, tag = "2")]
    pub lines: Vec<Line>,
}

/// A line.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Line {
    /// The first one is 1.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Without its end.
    #[prost(bytes = "vec", tag = "2")]
    pub text: Vec<u8>,
    /// It does not match, and is near one that does.
    #[prost(bool, tag = "3")]
    pub is_context: bool,
    /// It is longer.
    #[prost(bool, tag = "4")]
    pub is_cut: bool,
}

/// All was searched, or as much as the limits let through.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Searched {
    /// Files that were looked at.
    #[prost(uint64, tag = "1")]
    pub files_searched: u64,
    /// Files, or matching lines, that were sent.
    #[prost(uint64, tag = "2")]
    pub matches: u64,
    /// Files that are not text.
    #[prost(uint64, tag = "3")]
    pub skipped_binary: u64,
    /// Files that are too large, or have a line that is.
    #[prost(uint64, tag = "4")]
    pub skipped_too_large: u64,
    /// Files and directories that the system does not let the user read.
    #[prost(uint64, tag = "5")]
    pub skipped_unreadable: u64,
    /// Files and directories of which the verdict was no.
    #[prost(uint64, tag = "6")]
    pub skipped_denied: u64,
    /// There is more, beyond a limit.
    #[prost(bool, tag = "7")]
    pub limit_reached: bool,
}

/// A pattern that is none.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Malformed {
    /// Whether it is the regex, not the glob.
    #[prost(bool, tag = "1")]
    pub is_regex: bool,
    /// What is wrong with it.
    #[prost(string, tag = "2")]
    pub reason: String,
}
