//! The tool `grep`: lines of files by a regular expression.

use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use telexec_executor::{FileMatches, Found, SearchQuery, SearchSummary};

use super::glob::{left_out, search_failure, shown, with_filters};
use super::list_directory::here;
use super::machine::Machine;
use super::read_file::limit;
use crate::failure::{Failure, result};
use crate::parameters::{flag, number, parse, text};
use crate::{ToolDefinition, ToolResult};

const NAME: &str = "grep";
const DEFAULT_MATCHES: u64 = 1_000;
/// An answer is held in memory.
const MAX_MATCHES: u64 = 100_000;

/// The parameters of `grep`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrepArgs {
    /// The regular expression, in Rust's syntax.
    pub pattern: String,
    /// The directory or the file to search. Default: the directory where relative paths begin.
    #[serde(default = "here")]
    pub path: String,
    /// Which files, as in .gitignore. Default: all.
    #[serde(default)]
    pub glob: String,
    /// What the answer has.
    #[serde(default)]
    pub output_mode: GrepOutputMode,
    /// Letters match whatever their case. Default: no.
    #[serde(default)]
    pub case_insensitive: bool,
    /// A match may span lines. Default: no.
    #[serde(default)]
    pub multiline: bool,
    /// Lines around each match. Default: 0.
    #[serde(default)]
    pub context: u32,
    /// Lines before each match, instead of `context`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_context: Option<u32>,
    /// Lines after each match, instead of `context`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_context: Option<u32>,
    /// Also files with a name that begins with a dot. Default: no.
    #[serde(default)]
    pub include_hidden: bool,
    /// Also what .gitignore says is to be ignored. Default: no.
    #[serde(default)]
    pub include_ignored: bool,
    /// The most matching lines, or files: 1 to 100,000. Default: 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// What the answer of `grep` has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrepOutputMode {
    /// The lines.
    #[default]
    Content,
    /// The paths of the files that have some.
    FilesWithMatches,
    /// How many each of these files has.
    Count,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GrepOutput {
    /// The files that have matches, in the order of their paths.
    pub files: Vec<GrepFile>,
    /// There is more.
    pub truncated: bool,
}

/// The matches of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GrepFile {
    /// Begins with `path`, as it was asked for.
    pub path: String,
    /// How many lines match; of [`GrepOutputMode::FilesWithMatches`]: `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Of [`GrepOutputMode::Content`]: the lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<GrepLine>,
}

/// A line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GrepLine {
    /// From 1 on.
    pub number: u64,
    /// Without its end.
    pub text: String,
    /// It does not match, but is near a line that does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub context: bool,
}

pub(super) fn definition() -> ToolDefinition {
    let about = "Searches the content of files for a regular expression (Rust syntax), as ripgrep does. Lines are \
                 shown as path:line:text. Binary and hidden files and what .gitignore names are skipped by default.";
    let modes = json!({
        "type": "string",
        "description": "Show matching lines, the paths of files that have some, or their number for each file",
        "enum": [GrepOutputMode::Content, GrepOutputMode::FilesWithMatches, GrepOutputMode::Count],
        "default": GrepOutputMode::default(),
    });
    let definition = ToolDefinition::new(NAME, about).parameter("pattern", text("Regular expression"), true);
    with_filters(definition, &text("Directory or file: an absolute path, or relative to the home directory"))
        .parameter("glob", text("Search only files that match this glob pattern"), false)
        .parameter("output_mode", modes, false)
        .parameter("case_insensitive", flag("Ignore case", json!(false)), false)
        .parameter("multiline", flag("Let matches span lines", json!(false)), false)
        .parameter("context", number("Lines to show around each match", 0), false)
        .parameter("before_context", json!({ "type": "integer", "minimum": 0 }), false)
        .parameter("after_context", json!({ "type": "integer", "minimum": 0 }), false)
        .parameter("limit", limit("Maximum number of matching lines, or files", DEFAULT_MATCHES), false)
        .closed()
        .returns::<GrepOutput>()
}

pub(super) async fn call(machine: &Machine, params: Value) -> Result<ToolResult, Failure> {
    let args: GrepArgs = parse(NAME, params)?;
    let file = machine.target(NAME, &args.path)?;
    let failed = |error| search_failure(NAME, [("regex", "pattern"), ("glob", "glob")].as_slice(), error);
    let mut found = machine.files.search(file, query(&args)).await.map_err(failed)?;
    let mut answer = Answer::new(&args, machine.limit);
    let mut summary = SearchSummary::default();
    while let Some(found) = found.next().await {
        match found.map_err(failed)? {
            Found::File(_) => {}
            Found::Matches(matches) if answer.add(&matches) => {}
            Found::Matches(_) => {
                answer.output.truncated = true;
                break;
            }
            Found::End(end) => summary = end,
        }
    }
    answer.output.truncated |= summary.limit_reached;
    let text = answer.render(&summary);
    result(text, &answer.output)
}

/// The most matching lines, or files.
fn matches(args: &GrepArgs) -> u64 {
    args.limit.unwrap_or(DEFAULT_MATCHES).clamp(1, MAX_MATCHES)
}

fn query(args: &GrepArgs) -> SearchQuery {
    let query = SearchQuery {
        regex: Some(args.pattern.clone()),
        glob: args.glob.clone(),
        case_insensitive: args.case_insensitive,
        multiline: args.multiline,
        include_hidden: args.include_hidden,
        include_ignored: args.include_ignored,
        max_matches: matches(args),
        ..SearchQuery::default()
    };
    match args.output_mode {
        GrepOutputMode::Content => SearchQuery {
            before_context: args.before_context.unwrap_or(args.context),
            after_context: args.after_context.unwrap_or(args.context),
            ..query
        },
        GrepOutputMode::FilesWithMatches => SearchQuery { max_matches_per_file: 1, max_line_bytes: 1, ..query },
        // the lines are only counted
        GrepOutputMode::Count => SearchQuery { max_matches: 1_000_000, max_line_bytes: 1, ..query },
    }
}

/// Leaves so many characters, and says so.
fn cut(text: &mut String, characters: usize) {
    const MARK: &str = "... (line cut)";
    if text.chars().count() > characters {
        let kept = characters.saturating_sub(MARK.len());
        *text = text.chars().take(kept).chain(MARK.chars()).collect();
    }
}

/// What was found until now, and room for more.
struct Answer {
    mode: GrepOutputMode,
    has_context: bool,
    max_files: u64,
    room: usize,
    output: GrepOutput,
}

impl Answer {
    fn new(args: &GrepArgs, room: usize) -> Self {
        let has_context = [args.before_context.unwrap_or(args.context), args.after_context.unwrap_or(args.context)]
            .iter()
            .any(|lines| *lines > 0);
        Self { mode: args.output_mode, has_context, max_files: matches(args), room, output: GrepOutput::default() }
    }

    /// Adds lines of a file. Returns whether there was room for all.
    fn add(&mut self, matches: &FileMatches) -> bool {
        let path = shown(&matches.path.to_string());
        if self.output.files.last().is_none_or(|file| file.path != path) {
            let is_one_more = self.mode == GrepOutputMode::Count && self.output.files.len() as u64 >= self.max_files;
            if is_one_more {
                return false;
            }
            if self.mode != GrepOutputMode::Content && !self.take(path.chars().count() + 8) {
                return false;
            }
            self.output.files.push(GrepFile { path: path.clone(), ..GrepFile::default() });
        }
        for line in &matches.lines {
            let mut text = String::from_utf8_lossy(&line.text).into_owned();
            if line.is_cut {
                text.push_str("... (line cut)");
            }
            if self.output.files.first().is_some_and(|file| file.lines.is_empty()) {
                // something of what was found is always shown
                cut(&mut text, self.room.saturating_sub(path.chars().count() + 12));
            }
            let length = path.chars().count() + text.chars().count() + 12;
            if self.mode == GrepOutputMode::Content && !self.take(length) {
                return false;
            }
            let Some(file) = self.output.files.last_mut() else { return false };
            match self.mode {
                GrepOutputMode::FilesWithMatches => continue,
                _ => *file.count.get_or_insert_default() += u64::from(!line.is_context),
            }
            if self.mode == GrepOutputMode::Content {
                file.lines.push(GrepLine { number: line.number, text, context: line.is_context });
            }
        }
        true
    }

    fn take(&mut self, length: usize) -> bool {
        let left = self.room.checked_sub(length);
        self.room = left.unwrap_or(0);
        left.is_some()
    }

    fn render(&self, summary: &SearchSummary) -> String {
        let mut lines = Vec::new();
        for file in &self.output.files {
            match self.mode {
                GrepOutputMode::Content => self.render_lines(file, &mut lines),
                GrepOutputMode::FilesWithMatches => lines.push(file.path.clone()),
                GrepOutputMode::Count => lines.push(format!("{}:{}", file.path, file.count.unwrap_or_default())),
            }
        }
        if lines.is_empty() && !self.output.truncated {
            lines.push("No matches found".to_owned());
        }
        if self.output.truncated {
            lines.push("(output truncated: narrow the search)".to_owned());
        }
        lines.extend(left_out(summary));
        lines.join("\n")
    }

    /// As grep does: a colon after what matches, a dash after what is near it, and a line between what is not adjacent.
    fn render_lines(&self, file: &GrepFile, lines: &mut Vec<String>) {
        let mut last = None;
        for GrepLine { number, text, context } in &file.lines {
            if self.has_context && !lines.is_empty() && last.is_none_or(|last: u64| last + 1 != *number) {
                lines.push("--".to_owned());
            }
            let mark = if *context { '-' } else { ':' };
            lines.push(format!("{}{mark}{number}{mark}{text}", file.path));
            last = Some(*number);
        }
    }
}
