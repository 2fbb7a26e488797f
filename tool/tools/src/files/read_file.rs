//! The tool `read_file`: lines of a file, with their numbers.

use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use telexec_executor::text::counted;
use telexec_executor::{FileContent, FilePiece, FileRange, FileTarget};

use super::lines::{Lines, Part, numbered};
use super::machine::Machine;
use super::seen::Version;
use crate::failure::{Failure, result};
use crate::parameters::{parse, text};
use crate::{ToolDefinition, ToolFailure, ToolResult};

const NAME: &str = "read_file";
/// What models are used to.
const DEFAULT_LINES: u64 = 2_000;
/// After the last line that is wanted, no more than this is read to count the others.
const MAX_COUNTED_BYTES: u64 = 64 * 1024 * 1024;

/// Lines from the end of a larger file are not counted.
const MAX_BYTES_TO_LAST: u64 = 256 * 1024 * 1024;

/// The parameters of `read_file`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadFileArgs {
    /// Absolute, or relative to the home directory of the user.
    pub path: String,
    /// The first line, from 1 on; negative: so many lines from the end. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// The most lines. Default: 2,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadFileOutput {
    /// As it was asked for.
    pub path: String,
    /// The lines, without numbers.
    pub content: String,
    /// The number of the first; 0: there is none.
    pub first_line: u64,
    /// The number of the last; 0: there is none.
    pub last_line: u64,
    /// How many the file has; `None`: it was not read to its end.
    pub total_lines: Option<u64>,
}

pub(super) fn definition() -> ToolDefinition {
    let about = "Reads a text file. Each line begins with its number and a tab. Long files are read in parts, by \
                 `offset` and `limit`.";
    let offset = "First line, from 1; negative: so many lines from the end (default: 1)";
    ToolDefinition::new(NAME, about)
        .parameter("path", text("File: an absolute path, or relative to the home directory"), true)
        .parameter("offset", json!({ "type": "integer", "description": offset }), false)
        .parameter("limit", limit("Maximum number of lines", DEFAULT_LINES), false)
        .closed()
        .returns::<ReadFileOutput>()
}

pub(super) fn limit(about: &str, default: u64) -> Value {
    json!({ "type": "integer", "description": about, "minimum": 1, "default": default })
}

pub(super) async fn call(machine: &Machine, params: Value) -> Result<ToolResult, Failure> {
    let args: ReadFileArgs = parse(NAME, params)?;
    let part = part(&args)?;
    let file = machine.target(NAME, &args.path)?;
    let opened = machine.files.read(file.clone(), FileRange::default()).await;
    let content = opened.map_err(|error| Failure::of(NAME, error))?;
    let info = content.info.clone();
    if matches!(part, Part::Last(_)) && info.size > MAX_BYTES_TO_LAST {
        let message = format!("{} is too large to count its lines ({})", file.path, counted(info.size, "byte"));
        return Err(ToolFailure::new("file_too_large", message).with_hint("use tail with bash").into());
    }
    let mut lines = Lines::new(part, machine.limit);
    let sha256 = read(&mut lines, content).await?;
    if lines.is_binary {
        return Err(binary(&file, info.size));
    }
    let total_lines = sha256.is_some().then_some(lines.complete);
    if let (Some(total), Part::From(first @ 2.., _), 0) = (total_lines, part, lines.kept().len()) {
        let message = format!("offset: {first} is beyond the end: {} has {}", file.path, counted(total, "line"));
        return Err(ToolFailure::new("out_of_range", message).with_details(json!({ "end": total })).into());
    }
    machine.remember(&file, Version::new(&info, sha256));
    let output = ReadFileOutput {
        path: args.path,
        content: lines.kept().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n"),
        first_line: lines.kept().next().map_or(0, |(number, _)| *number),
        last_line: lines.kept().last().map_or(0, |(number, _)| *number),
        total_lines,
    };
    result(render(&lines, &output), &output)
}

fn part(args: &ReadFileArgs) -> Result<Part, Failure> {
    let count = args.limit.unwrap_or(DEFAULT_LINES);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    match args.offset.unwrap_or(1) {
        _ if count == 0 => Err(Failure::invalid_input(NAME, "limit: must be at least 1")),
        0 => Err(Failure::invalid_input(NAME, "offset: lines are counted from 1")),
        first @ 1.. => Ok(Part::From(first.unsigned_abs(), count)),
        last => Ok(Part::Last(usize::try_from(last.unsigned_abs()).unwrap_or(usize::MAX).min(count))),
    }
}

/// Reads on until there is nothing more to learn. Returns the SHA-256 of the file, if all of it was read.
async fn read(lines: &mut Lines, mut content: FileContent) -> Result<Option<[u8; 32]>, Failure> {
    while let Some(piece) = content.pieces.next().await {
        match piece.map_err(|error| Failure::of(NAME, error))? {
            FilePiece::Data(data) => lines.push(&data),
            FilePiece::Hole(_) => lines.is_binary = true,
            FilePiece::End { sha256 } => {
                lines.finish();
                return Ok(Some(sha256));
            }
        }
        if lines.is_binary || (lines.is_full() && lines.total > MAX_COUNTED_BYTES) {
            break;
        }
    }
    Ok(None)
}

/// `binary_file`: it is no text.
pub(super) fn binary(file: &FileTarget, size: u64) -> Failure {
    let message = format!("{} is a binary file ({})", file.path, counted(size, "byte"));
    ToolFailure::new("binary_file", message).into()
}

fn render(lines: &Lines, output: &ReadFileOutput) -> String {
    if output.total_lines == Some(0) {
        return "(empty file)".to_owned();
    }
    let mut text: Vec<_> = lines.kept().map(|(number, text)| numbered(*number, text)).collect();
    if output.first_line > 1 && lines.is_cut && matches!(output.total_lines, Some(total) if total == output.last_line) {
        text.insert(0, format!("(output truncated: the lines before {} are left out)", output.first_line));
    }
    match output.total_lines {
        Some(total) if total == output.last_line => {}
        total => {
            let of =
                total.map_or_else(|| "more lines follow".to_owned(), |total| format!("the file has {total} lines"));
            text.push(format!("({of}; continue with offset {})", output.last_line + 1));
        }
    }
    if lines.crlf > 0 {
        text.push("(lines end with CR LF)".to_owned());
    }
    if lines.is_replaced {
        text.push("(not UTF-8: other bytes are shown as U+FFFD)".to_owned());
    }
    text.join("\n")
}
