//! The tool `glob`: files by their names.

use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use telexec_executor::{ExecutorError, Found, SearchQuery, SearchSummary};

use super::list_directory::here;
use super::machine::Machine;
use super::read_file::limit;
use crate::failure::{Failure, result};
use crate::parameters::{flag, parse, text};
use crate::{ToolDefinition, ToolResult};

const NAME: &str = "glob";
const DEFAULT_FILES: u64 = 1_000;
/// An answer is held in memory.
const MAX_FILES: u64 = 10_000;

/// The parameters of `glob`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobArgs {
    /// As in .gitignore: see [`SearchQuery::glob`]. An absolute one names the directory itself.
    pub pattern: String,
    /// The directory to search, with all below it. Default: the directory where relative paths begin.
    #[serde(default = "here")]
    pub path: String,
    /// Also what has a name that begins with a dot. Default: no.
    #[serde(default)]
    pub include_hidden: bool,
    /// Also what .gitignore says is to be ignored. Default: no.
    #[serde(default)]
    pub include_ignored: bool,
    /// The most files: 1 to 10,000. Default: 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// The files that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GlobOutput {
    /// In the order of their bytes.
    pub files: Vec<String>,
    /// There are more.
    pub truncated: bool,
}

pub(super) fn definition() -> ToolDefinition {
    let about = "Finds files by a pattern such as **/*.rs or src/*.{ts,tsx}. A pattern without / matches names in all \
                 directories. Hidden files and what .gitignore names are skipped by default.";
    let definition = ToolDefinition::new(NAME, about).parameter("pattern", text("Glob pattern"), true);
    with_filters(definition, &text("Directory to search: an absolute path, or relative to the home directory"))
        .parameter("limit", limit("Maximum number of files", DEFAULT_FILES), false)
        .closed()
        .returns::<GlobOutput>()
}

/// The parameters that say where to search.
pub(super) fn with_filters(definition: ToolDefinition, path: &Value) -> ToolDefinition {
    definition
        .parameter("path", path.clone(), false)
        .parameter("include_hidden", flag("Include names that begin with a dot", json!(false)), false)
        .parameter("include_ignored", flag("Include what .gitignore ignores", json!(false)), false)
}

pub(super) async fn call(machine: &Machine, params: Value) -> Result<ToolResult, Failure> {
    let mut args: GlobArgs = parse(NAME, params)?;
    if args.pattern.is_empty() {
        return Err(Failure::invalid_input(NAME, "pattern: is empty"));
    }
    if let Some((directory, pattern)) = split_absolute(&args).filter(|_| args.path == ".") {
        (args.path, args.pattern) = (directory, pattern);
    }
    let directory = machine.target(NAME, &args.path)?;
    let query = SearchQuery {
        glob: args.pattern.clone(),
        include_hidden: args.include_hidden,
        include_ignored: args.include_ignored,
        max_matches: args.limit.unwrap_or(DEFAULT_FILES).clamp(1, MAX_FILES),
        ..SearchQuery::default()
    };
    let failed = |error| search_failure(NAME, [("glob", "pattern")].as_slice(), error);
    let mut found = machine.files.search(directory, query).await.map_err(failed)?;
    let (mut output, mut summary, mut room) = (GlobOutput::default(), SearchSummary::default(), machine.limit);
    while let Some(found) = found.next().await {
        match found.map_err(failed)? {
            Found::File(info) => {
                let path = shown(&info.path.to_string());
                match room.checked_sub(path.chars().count() + 1) {
                    Some(less) => room = less,
                    None => {
                        output.truncated = true;
                        break;
                    }
                }
                output.files.push(path);
            }
            Found::Matches(_) => {}
            Found::End(end) => summary = end,
        }
    }
    output.truncated |= summary.limit_reached;
    result(render(&output, &summary), &output)
}

/// An absolute pattern is a directory, up to what is no plain name, and the pattern below it.
fn split_absolute(args: &GlobArgs) -> Option<(String, String)> {
    let first = args.pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(args.pattern.len());
    let (directory, _) = args.pattern.get(..first)?.rsplit_once('/')?;
    let pattern = args.pattern.get(directory.len()..)?;
    let is_absolute = args.pattern.starts_with('/') || args.pattern.starts_with("~/");
    let directory = if directory.is_empty() { "/" } else { directory };
    is_absolute.then(|| (directory.to_owned(), pattern.to_owned()))
}

/// Paths below `.` as they would be typed.
pub(super) fn shown(path: &str) -> String {
    path.strip_prefix("./").unwrap_or(path).to_owned()
}

/// Names a malformed pattern as the model knows it; `parameters` are fields of the query and parameters of the tool.
pub(super) fn search_failure(tool: &str, parameters: &[(&str, &str)], error: ExecutorError) -> Failure {
    if let ExecutorError::Invalid(invalid) = &error
        && let Some((_, parameter)) = parameters.iter().find(|(field, _)| invalid.field == *field)
    {
        return Failure::invalid_input(tool, format!("{parameter}: {}", invalid.reason));
    }
    Failure::of(tool, error)
}

/// What was left out, in words.
pub(super) fn left_out(summary: &SearchSummary) -> Option<String> {
    let counts = [
        (summary.skipped_denied, "denied by policy"),
        (summary.skipped_unreadable, "unreadable"),
        (summary.skipped_too_large, "too large"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, why)| format!("{count} {why}"));
    let counts: Vec<_> = counts.collect();
    (!counts.is_empty()).then(|| format!("(skipped: {})", counts.join(", ")))
}

fn render(output: &GlobOutput, summary: &SearchSummary) -> String {
    let mut lines = output.files.clone();
    if lines.is_empty() && !output.truncated {
        lines.push("No files found".to_owned());
    }
    if output.truncated {
        lines.push(format!("(output truncated after {} files: narrow the pattern)", output.files.len()));
    }
    lines.extend(left_out(summary));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_patterns_name_their_directory() {
        let split = |pattern: &str| {
            let args: GlobArgs = serde_json::from_value(json!({ "pattern": pattern })).unwrap();
            split_absolute(&args)
        };
        let of = |directory: &str, pattern: &str| Some((directory.to_owned(), pattern.to_owned()));
        assert_eq!(split("/etc/**/*.conf"), of("/etc", "/**/*.conf"));
        assert_eq!(split("/*.conf"), of("/", "/*.conf"));
        assert_eq!(split("/etc/hosts"), of("/etc", "/hosts"));
        assert_eq!(split("~/src/*.rs"), of("~/src", "/*.rs"));
        assert_eq!(split("src/*.rs"), None);
        assert_eq!(split("*.rs"), None);
    }
}
