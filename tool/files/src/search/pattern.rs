//! What is looked for. Patterns are compiled here, in a process that a hostile one may hold up as long as it likes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};

use super::message::{Malformed, SearchTask};

/// Of a compiled regex, and of the automaton that is made of it while it runs.
const MAX_COMPILED_BYTES: usize = 10 * 1024 * 1024;
/// The rest of a message says no more.
const MAX_REASON: usize = 300;

/// Which files are meant.
pub(super) struct FileGlob {
    /// `None`: all.
    set: Option<GlobSet>,
    /// Those that do not match.
    is_negated: bool,
    /// Directories.
    only_directories: bool,
}

impl FileGlob {
    /// # Errors
    /// It does not compile.
    pub(super) fn compile(task: &SearchTask) -> Result<Self, Malformed> {
        let (is_negated, glob) = match task.glob.strip_prefix('!') {
            Some(glob) => (true, glob),
            None => (false, &*task.glob),
        };
        let (only_directories, glob) = match glob.strip_suffix('/') {
            Some(glob) => (true, glob),
            None => (false, glob),
        };
        if glob.is_empty() && !is_negated && !only_directories {
            return Ok(Self { set: None, is_negated, only_directories });
        }
        // as in .gitignore: a name without a slash is meant at any depth
        let anchored = match glob.strip_prefix('/') {
            Some(glob) => glob.to_owned(),
            None if glob.contains('/') => glob.to_owned(),
            None => format!("**/{glob}"),
        };
        let glob = GlobBuilder::new(&anchored)
            .literal_separator(true)
            .case_insensitive(task.case_insensitive)
            .backslash_escape(true)
            .build();
        let set = glob.and_then(|glob| GlobSetBuilder::new().add(glob).build());
        let set = set.map_err(|error| match error.kind() {
            globset::ErrorKind::Regex(_) => malformed(false, "too large, or nested too deeply"),
            kind => malformed(false, &kind.to_string()),
        })?;
        Ok(Self { set: Some(set), is_negated, only_directories })
    }

    /// Whether this one is meant, by its path below the directory that is searched.
    pub(super) fn finds(&self, relative: &[u8], is_directory: bool) -> bool {
        if is_directory != self.only_directories {
            return false;
        }
        let is_match = |set: &GlobSet| set.is_match(Path::new(OsStr::from_bytes(relative)));
        self.set.as_ref().is_none_or(|set| is_match(set) != self.is_negated)
    }
}

/// What is looked for in files, if anything.
///
/// # Errors
/// It does not compile.
pub(super) fn regex(task: &SearchTask) -> Result<Option<RegexMatcher>, Malformed> {
    let Some(regex) = &task.regex else { return Ok(None) };
    let mut builder = RegexMatcherBuilder::new();
    builder
        .case_insensitive(task.case_insensitive)
        .multi_line(true)
        .dot_matches_new_line(task.multiline)
        .size_limit(MAX_COMPILED_BYTES)
        .dfa_size_limit(MAX_COMPILED_BYTES);
    if !task.multiline {
        builder.line_terminator(Some(b'\n'));
    }
    builder.build(regex).map(Some).map_err(|error| match error.kind() {
        grep_regex::ErrorKind::NotAllowed(_) => malformed(true, "matches the end of a line: set multiline"),
        _ => malformed(true, &error.to_string()),
    })
}

/// The last line of what a parser says is the reason; those before it draw where.
fn malformed(is_regex: bool, said: &str) -> Malformed {
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or(said);
    let reason = last.strip_prefix("error: ").unwrap_or(last);
    Malformed { is_regex, reason: format!("is malformed: {reason}").chars().take(MAX_REASON).collect() }
}
