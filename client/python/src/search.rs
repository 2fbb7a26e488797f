//! Files that are searched: for their names, or for lines in them.

use futures_util::StreamExt;
use pyo3::prelude::*;
use telexec_client::RemoteFiles;
use telexec_executor::{FileTarget, Files, Found, SearchQuery, SearchSummary};

use crate::failure::Failure;
use crate::values;

/// All that a search has found.
pub(crate) struct Search {
    found: Vec<Found>,
    summary: SearchSummary,
}

/// A search has limits of its own, so that this does not grow without end.
pub(crate) async fn search(files: RemoteFiles, directory: FileTarget, query: SearchQuery) -> Result<Search, Failure> {
    let (mut stream, mut found) = (files.search(directory, query).await?, Vec::new());
    while let Some(next) = stream.next().await {
        match next? {
            Found::End(summary) => return Ok(Search { found, summary }),
            next => found.push(next),
        }
    }
    Err(Failure::new("Lost", "the search did not arrive to its end"))
}

pub(crate) fn to_python(py: Python<'_>, search: Search) -> PyResult<Py<PyAny>> {
    let mut matches = Vec::new();
    for found in search.found {
        match found {
            Found::File(info) => matches.push(values::file_info(py, info)?),
            Found::Matches(file) => {
                for line in &file.lines {
                    matches.push(values::line(py, &file.path, line)?);
                }
            }
            Found::End(_) => {}
        }
    }
    values::found(py, matches, &search.summary)
}
