//! The tool `edit_file`: replaces a text in a file by another.

use futures_util::StreamExt;
use memchr::memmem::{find, find_iter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use telexec_executor::text::counted;
use telexec_executor::{ExecutorError, FileInfo, FilePiece, FileRange, FileTarget, WriteOptions};

use super::lines::numbered;
use super::machine::{Machine, changed};
use super::seen::Version;
use super::write_file::write;
use crate::failure::{Failure, result};
use crate::parameters::{flag, parse, text};
use crate::{ToolDefinition, ToolFailure, ToolResult};

const NAME: &str = "edit_file";
/// Larger files are not edited: they are held in memory.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// Lines that are shown around a change.
const CONTEXT_LINES: usize = 3;
/// Lines that are shown at all.
const MAX_SHOWN_LINES: usize = 40;
/// Places that are named.
const MAX_NAMED_LINES: usize = 10;

/// The parameters of `edit_file`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditFileArgs {
    /// Absolute, or relative to the home directory of the user.
    pub path: String,
    /// What is to be replaced, exactly.
    pub old_string: String,
    /// By what.
    pub new_string: String,
    /// Everywhere. Default: `old_string` must be there once.
    #[serde(default)]
    pub replace_all: bool,
}

/// What was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EditFileOutput {
    /// As it was asked for.
    pub path: String,
    /// How often the text was replaced.
    pub replacements: u64,
    /// The line of the first.
    pub first_line: u64,
}

pub(super) fn definition() -> ToolDefinition {
    let about = "Replaces a text in a file. `old_string` must match exactly, including white space, without the line \
                 numbers of read_file; and it must be there once, unless `replace_all` is set. A file that changed \
                 since it was read is not edited.";
    ToolDefinition::new(NAME, about)
        .parameter("path", text("File: an absolute path, or relative to the home directory"), true)
        .parameter("old_string", text("Text to replace, with enough around it to be unique"), true)
        .parameter("new_string", text("Text to replace it with"), true)
        .parameter("replace_all", flag("Replace it everywhere", json!(false)), false)
        .closed()
        .returns::<EditFileOutput>()
}

pub(super) async fn call(machine: &Machine, params: Value) -> Result<ToolResult, Failure> {
    let args: EditFileArgs = parse(NAME, params)?;
    if args.old_string.is_empty() {
        return Err(Failure::invalid_input(NAME, "old_string: is empty; write_file writes whole files"));
    }
    if args.old_string == args.new_string {
        return Err(Failure::invalid_input(NAME, "new_string: is the same as old_string"));
    }
    let file = machine.target(NAME, &args.path)?;
    let _writing = machine.writing().await;
    let (info, content, sha256) = read(machine, &file).await?;
    let version = Version::new(&info, Some(sha256));
    machine.check_unchanged(&file, &version)?;
    let edit = Edit::new(&file, &content, &args)?;
    // what came in between must not be lost
    let now = machine.look(&file).await.map_err(|error| Failure::of(NAME, error))?;
    if now.is_none_or(|now| !Version::new(&now, None).is_same(&version)) {
        return Err(changed(&file, "changed while it was edited"));
    }
    let written = write(machine, &file, WriteOptions::default(), edit.content.clone().into()).await;
    written.map_err(|error| Failure::of(NAME, error))?;
    let output = EditFileOutput {
        path: args.path,
        replacements: edit.replacements,
        first_line: lines_before(&edit.content, edit.first) as u64 + 1,
    };
    let times = counted(edit.replacements, "replacement");
    result(format!("Edited {}: {times}\n{}", output.path, edit.shown()), &output)
}

async fn read(machine: &Machine, file: &FileTarget) -> Result<(FileInfo, Vec<u8>, [u8; 32]), Failure> {
    let failed = |error| Failure::of(NAME, error);
    let mut opened = machine.files.read(file.clone(), FileRange::default()).await.map_err(failed)?;
    let mut content = Vec::new();
    while let Some(piece) = opened.pieces.next().await {
        match piece.map_err(failed)? {
            FilePiece::Data(data) => content.extend_from_slice(&data),
            FilePiece::Hole(_) => break,
            FilePiece::End { sha256 } => return Ok((opened.info, content, sha256)),
        }
        if content.len() as u64 > MAX_BYTES {
            let message = format!("{} is larger than 64 MiB", file.path);
            return Err(ToolFailure::new("file_too_large", message).with_hint("edit it with bash").into());
        }
    }
    Err(failed(ExecutorError::Internal("the end of the file is missing".to_owned())))
}

/// A file with its replacements.
struct Edit {
    content: Vec<u8>,
    replacements: u64,
    /// Where the first replacement is, and its length.
    first: usize,
    length: usize,
}

impl Edit {
    fn new(file: &FileTarget, content: &[u8], args: &EditFileArgs) -> Result<Self, Failure> {
        let (mut old, mut new) = (args.old_string.clone(), args.new_string.clone());
        // read_file shows no CR
        if find(content, old.as_bytes()).is_none() && has_crlf(content) {
            (old, new) = (with_crlf(&old), with_crlf(&new));
        }
        let (old, new) = (old.as_bytes(), new.as_bytes());
        let Some(first) = find(content, old) else { return Err(not_found(file, content, &args.old_string)) };
        // occurrences that overlap leave open which is meant
        let again = content.get(first + 1..).and_then(|rest| find(rest, old));
        if again.is_some() && !args.replace_all {
            return Err(not_unique(file, content, old));
        }
        let (mut edited, mut end, mut replacements) = (Vec::new(), 0, 0);
        for at in find_iter(content, old) {
            edited.extend_from_slice(content.get(end..at).unwrap_or_default());
            edited.extend_from_slice(new);
            end = at + old.len();
            replacements += 1;
        }
        edited.extend_from_slice(content.get(end..).unwrap_or_default());
        Ok(Self { content: edited, replacements, first, length: new.len() })
    }

    /// The lines around the first replacement.
    fn shown(&self) -> String {
        let first = lines_before(&self.content, self.first);
        let last = lines_before(&self.content, self.first + self.length);
        let begin = first.saturating_sub(CONTEXT_LINES);
        let text = String::from_utf8_lossy(&self.content);
        let count = (last + CONTEXT_LINES + 1 - begin).min(MAX_SHOWN_LINES);
        let lines = text.lines().enumerate().skip(begin).take(count);
        lines.map(|(index, line)| numbered(index as u64 + 1, line)).collect::<Vec<_>>().join("\n")
    }
}

fn lines_before(content: &[u8], at: usize) -> usize {
    content.get(..at).unwrap_or(content).iter().filter(|byte| **byte == b'\n').count()
}

/// All its lines end with CR LF.
fn has_crlf(content: &[u8]) -> bool {
    let newlines = content.iter().filter(|byte| **byte == b'\n').count();
    newlines > 0 && find_iter(content, b"\r\n").count() == newlines
}

fn with_crlf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}

fn not_unique(file: &FileTarget, content: &[u8], old: &[u8]) -> Failure {
    let mut lines = overlapping(content, old).map(|at| lines_before(content, at) + 1);
    let named: Vec<_> = lines.by_ref().take(MAX_NAMED_LINES).collect();
    let more = if lines.next().is_some() { " and others" } else { "" };
    let places = named.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let message = format!("old_string is in {} more than once (lines {places}{more}); nothing was written", file.path);
    ToolFailure::new("text_not_unique", message)
        .with_hint("give more of the text around it, or set replace_all")
        .with_details(json!({ "lines": named }))
        .into()
}

/// Where a text is, also where it overlaps itself.
fn overlapping<'a>(content: &'a [u8], text: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from + find(content.get(from..)?, text)?;
        from = at + 1;
        Some(at)
    })
}

fn not_found(file: &FileTarget, content: &[u8], old: &str) -> Failure {
    let hint = match () {
        () if has_numbers(old) => "leave out the line numbers of read_file".to_owned(),
        () => match find_by_words(content, old) {
            Some(line) => format!("line {line} has this text with other white space"),
            None => "read the file again: the text must match exactly".to_owned(),
        },
    };
    let message = format!("old_string is not in {}; nothing was written", file.path);
    ToolFailure::new("text_not_found", message).with_hint(hint).into()
}

/// Each line begins with a number and a tab.
fn has_numbers(text: &str) -> bool {
    let is_numbered = |line: &str| {
        let number = line.split_once('\t').map(|(number, _)| number.trim_start());
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    text.lines().all(is_numbered)
}

/// The line from which on the same words come, line by line.
fn find_by_words(content: &[u8], wanted: &str) -> Option<usize> {
    let text = String::from_utf8_lossy(content);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<_> = text.lines().map(words).collect();
    let wanted: Vec<_> = wanted.trim().lines().map(words).collect();
    let found = lines.windows(wanted.len().max(1)).position(|lines| lines == wanted);
    found.map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(content: &str, old: &str, new: &str, replace_all: bool) -> Result<Edit, Box<ToolFailure>> {
        let args =
            EditFileArgs { path: "f".to_owned(), old_string: old.to_owned(), new_string: new.to_owned(), replace_all };
        Edit::new(&FileTarget::new("f"), content.as_bytes(), &args).map_err(|failure| match failure {
            Failure::Reported(failure) => failure,
            Failure::Call(error) => panic!("{error}"),
        })
    }

    fn edited(content: &str, old: &str, new: &str, replace_all: bool) -> String {
        String::from_utf8(edit(content, old, new, replace_all).ok().unwrap().content).unwrap()
    }

    fn refused(content: &str, old: &str) -> (String, String) {
        let failure = edit(content, old, "new", false).err().unwrap();
        (failure.kind.to_owned(), failure.recovery_hint.unwrap())
    }

    #[test]
    fn one_text_is_replaced_or_all() {
        assert_eq!(edited("a b a", "b", "c", false), "a c a");
        assert_eq!(edited("a b a", "a", "c", true), "c b c");
        assert_eq!(edited("a", "a", "", false), "");
        assert_eq!(edited("x\r\ny\r\n", "x\ny", "1\n2", false), "1\r\n2\r\n");
        assert_eq!(edited("x\r\ny\n", "y", "z", false), "x\r\nz\n");
    }

    #[test]
    fn what_is_not_there_once_is_refused() {
        let failure = edit("a\nb\na\n", "a", "c", false).err().unwrap();
        assert_eq!(failure.message, "old_string is in f more than once (lines 1, 3); nothing was written");
        assert_eq!((failure.kind, &failure.details["lines"]), ("text_not_unique", &json!([1, 3])));
        assert_eq!(refused("aaa", "aa").0, "text_not_unique");
        let many = edit(&"}\n".repeat(1_000_000), "}", "", false).err().unwrap();
        assert!(many.message.contains("(lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and others)"), "{}", many.message);
        assert_eq!(refused("  if x {\n    y\n", "if x {\ny").1, "line 1 has this text with other white space");
        assert_eq!(refused("one\n", "     1\tone").1, "leave out the line numbers of read_file");
        assert!(refused("one\n", "two").1.starts_with("read the file again"));
    }

    #[test]
    fn the_change_is_shown() {
        let content: String = (1..=20).map(|n| format!("line {n}\n")).collect();
        let shown = edit(&content, "line 10\n", "ten\nmore\n", false).ok().unwrap().shown();
        assert!(shown.starts_with("     7\tline 7\n") && shown.contains("\n    10\tten\n    11\tmore\n"), "{shown}");
    }
}
