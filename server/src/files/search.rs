//! `SearchFiles`: what is asked for, and what is found.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use telexec_executor::{ExecutorError, FileInfo, FilePath, InvalidCommand};
use telexec_files::message::{Outcome, Task};
use telexec_files::search::message::{Found, Line, Malformed, Matches, SearchTask, Searched};
use telexec_proto::convert::{error_to_status, file_info_to_wire, path_from_wire, path_to_wire};
use telexec_proto::v1::{FileMatches, MatchedLine, SearchFilesEnd, SearchFilesRequest, SearchFilesResponse};
use tonic::Status;

use super::session::{Session, Step, unexpected};
use super::wire::{Ask, Asked};
use crate::admission::Stack;
use crate::call::Call;
use crate::call::events::Responses;
use crate::policy::FileAction;

const MAX_GLOB_BYTES: usize = 4096;
const MAX_REGEX_BYTES: usize = 16 * 1024;
/// Lines before a match, and after it.
const MAX_CONTEXT: u32 = 1000;
const MATCHES: u64 = 10_000;
const MAX_MATCHES: u64 = 1_000_000;
const BYTES: u64 = 16 * 1024 * 1024;
const MAX_BYTES: u64 = 1024 * 1024 * 1024;
const FILE_BYTES: u64 = 64 * 1024 * 1024;
const LINE_BYTES: u32 = 4096;
const MAX_LINE_BYTES: u32 = 64 * 1024;

impl Ask for SearchFilesRequest {
    fn ask(self) -> Result<Asked, InvalidCommand> {
        let path = path_from_wire("path", self.path, &self.path_bytes)?;
        if self.glob.len() > MAX_GLOB_BYTES {
            return Err(InvalidCommand::new("glob", format!("is longer than {MAX_GLOB_BYTES} bytes")));
        }
        if self.regex.as_ref().is_some_and(|regex| regex.len() > MAX_REGEX_BYTES) {
            return Err(InvalidCommand::new("regex", format!("is longer than {MAX_REGEX_BYTES} bytes")));
        }
        let limit = |asked: u64, default: u64, most: u64| if asked == 0 { default } else { asked.min(most) };
        let line_bytes = limit(self.max_line_bytes.into(), LINE_BYTES.into(), MAX_LINE_BYTES.into());
        let task = SearchTask {
            path: path.as_bytes().to_vec(),
            glob: self.glob,
            regex: self.regex,
            case_insensitive: self.case_insensitive,
            multiline: self.multiline,
            before_context: self.before_context.min(MAX_CONTEXT),
            after_context: self.after_context.min(MAX_CONTEXT),
            include_hidden: self.include_hidden,
            include_ignored: self.include_ignored,
            follow_links: self.follow_links,
            max_matches: limit(self.max_matches, MATCHES, MAX_MATCHES),
            max_matches_per_file: self.max_matches_per_file,
            max_bytes: limit(self.max_bytes, BYTES, MAX_BYTES),
            max_file_bytes: limit(self.max_file_bytes, FILE_BYTES, u64::MAX),
            max_line_bytes: u32::try_from(line_bytes).unwrap_or(MAX_LINE_BYTES),
            // the session knows
            asks_each: false,
        };
        Ok(Asked::new(self.user, Task::Search(task), FileAction::List, vec![path]))
    }
}

/// Searches. What cannot be searched at all is the error of the call, not of its stream.
///
/// # Errors
/// That is denied, cannot be, or a pattern is malformed.
pub(super) async fn search(
    stack: &Stack,
    call: &Call,
    asked: Asked,
) -> Result<Responses<SearchFilesResponse>, ExecutorError> {
    let Asked { user, job } = asked;
    let mut session = Session::start(stack, call, user.as_deref(), job).await?;
    match session.next().await? {
        // it has begun
        Step::Outcome(Outcome::Found(_)) => {}
        Step::Outcome(Outcome::Malformed(malformed)) => {
            session.close();
            return Err(invalid(malformed).into());
        }
        _ => return Err(unexpected()),
    }
    let responses = stream::try_unfold(Some(session), |session: Option<Session>| async move {
        let Some(mut session) = session else { return Ok(None) };
        let step = session.next().await.map_err(failed)?;
        let (response, is_last) = response(step).ok_or_else(|| failed(unexpected()))?;
        Ok(Some(match is_last {
            true => {
                session.close();
                (response, None)
            }
            false => (response, Some(session)),
        }))
    });
    Ok(responses.boxed())
}

fn failed(error: ExecutorError) -> Status {
    error_to_status(&error)
}

fn invalid(malformed: Malformed) -> InvalidCommand {
    InvalidCommand::new(if malformed.is_regex { "regex" } else { "glob" }, malformed.reason)
}

/// What was found, and whether that is the end; `None`: that is nothing of the kind.
fn response(step: Step) -> Option<(SearchFilesResponse, bool)> {
    match step {
        Step::Outcome(Outcome::Found(Found { files, matches: found })) => {
            let files = files.into_iter().map(|info| file_info_to_wire(FileInfo::from(info))).collect();
            let matches = found.into_iter().map(matches).collect();
            Some((SearchFilesResponse { files, matches, end: None }, false))
        }
        Step::Outcome(Outcome::Searched(searched)) => {
            Some((SearchFilesResponse { end: Some(end(searched)), ..SearchFilesResponse::default() }, true))
        }
        _ => None,
    }
}

fn matches(found: Matches) -> FileMatches {
    let (path, path_bytes) = path_to_wire(FilePath::new(found.path));
    let line = |line: Line| {
        let Line { number, text, is_context, is_cut } = line;
        MatchedLine { number, text: Bytes::from(text), is_context, is_cut }
    };
    FileMatches { path, lines: found.lines.into_iter().map(line).collect(), path_bytes }
}

fn end(searched: Searched) -> SearchFilesEnd {
    SearchFilesEnd {
        files_searched: searched.files_searched,
        matches: searched.matches,
        skipped_binary: searched.skipped_binary,
        skipped_too_large: searched.skipped_too_large,
        skipped_unreadable: searched.skipped_unreadable,
        skipped_denied: searched.skipped_denied,
        limit_reached: searched.limit_reached,
    }
}

/// Bytes of lines in this.
pub(super) fn content_bytes(found: &Found) -> u64 {
    let lines = found.matches.iter().flat_map(|matches| &matches.lines);
    lines.map(|line| line.text.len() as u64).sum()
}
