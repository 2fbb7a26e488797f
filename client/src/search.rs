//! Searching the files of a remote machine.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use telexec_executor::{
    ExecutorError, FileMatches, FilePath, FileTarget, Found, FoundFiles, MatchedLine, SearchQuery, SearchSummary,
};
use telexec_proto::convert::file_info_from_wire;
use telexec_proto::v1::{self, SearchFilesEnd, SearchFilesRequest, SearchFilesResponse};
use tonic::Streaming;

use crate::error;
use crate::files::target;

pub(crate) fn search_request(directory: FileTarget, query: SearchQuery) -> SearchFilesRequest {
    let (path, path_bytes, user) = target(directory);
    SearchFilesRequest {
        path,
        user,
        glob: query.glob,
        regex: query.regex,
        case_insensitive: query.case_insensitive,
        multiline: query.multiline,
        before_context: query.before_context,
        after_context: query.after_context,
        include_hidden: query.include_hidden,
        include_ignored: query.include_ignored,
        follow_links: query.follow_links,
        max_matches: query.max_matches,
        max_matches_per_file: query.max_matches_per_file,
        max_bytes: query.max_bytes,
        max_file_bytes: query.max_file_bytes,
        max_line_bytes: query.max_line_bytes,
        path_bytes,
    }
}

/// What the answers of an agent have.
pub(crate) fn found(answers: Streaming<SearchFilesResponse>, endpoint: Arc<str>) -> FoundFiles {
    let begun = (Some(answers), VecDeque::new());
    let found = stream::try_unfold(begun, move |(mut answers, mut queue): (_, VecDeque<Found>)| {
        let endpoint = Arc::clone(&endpoint);
        async move {
            loop {
                if let Some(next) = queue.pop_front() {
                    return Ok(Some((next, (answers, queue))));
                }
                let Some(open) = &mut answers else { return Ok(None) };
                let answer = open.message().await.map_err(|status| error::following(status, &endpoint))?;
                // complete only with its end
                let answer = answer.ok_or_else(|| error::lost(&endpoint, "the answer ended early"))?;
                if answer.end.is_some() {
                    answers = None;
                }
                add(answer, &mut queue)?;
            }
        }
    });
    found.boxed()
}

fn add(answer: SearchFilesResponse, queue: &mut VecDeque<Found>) -> Result<(), ExecutorError> {
    for info in answer.files {
        queue.push_back(Found::File(file_info_from_wire(Some(info))?));
    }
    queue.extend(answer.matches.into_iter().map(matches).map(Found::Matches));
    queue.extend(answer.end.map(summary).map(Found::End));
    Ok(())
}

fn matches(found: v1::FileMatches) -> FileMatches {
    let path = match found.path_bytes.is_empty() {
        true => FilePath::new(found.path),
        false => FilePath::new(found.path_bytes),
    };
    let line = |line: v1::MatchedLine| {
        let v1::MatchedLine { number, text, is_context, is_cut } = line;
        MatchedLine { number, text, is_context, is_cut }
    };
    FileMatches { path, lines: found.lines.into_iter().map(line).collect() }
}

fn summary(end: SearchFilesEnd) -> SearchSummary {
    SearchSummary {
        files_searched: end.files_searched,
        matches: end.matches,
        skipped_binary: end.skipped_binary,
        skipped_too_large: end.skipped_too_large,
        skipped_unreadable: end.skipped_unreadable,
        skipped_denied: end.skipped_denied,
        limit_reached: end.limit_reached,
    }
}
