//! The tool `list_directory`: what is in a directory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use telexec_executor::text::counted;
use telexec_executor::{DirectoryQuery, FileInfo};

use super::machine::Machine;
use super::read_file::limit;
use crate::failure::{Failure, result};
use crate::parameters::{parse, text};
use crate::{ToolDefinition, ToolResult};

const NAME: &str = "list_directory";
const DEFAULT_ENTRIES: u64 = 1_000;
/// An answer is held in memory.
const MAX_ENTRIES: u64 = 10_000;

/// The parameters of `list_directory`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListDirectoryArgs {
    /// Absolute, or relative to the home directory of the user. Default: the directory where relative paths begin.
    #[serde(default = "here")]
    pub path: String,
    /// The most entries: 1 to 10,000. Default: 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

pub(super) fn here() -> String {
    ".".to_owned()
}

/// What is in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListDirectoryOutput {
    /// As it was asked for.
    pub path: String,
    /// In the order of the names' bytes.
    pub entries: Vec<ListDirectoryEntry>,
    /// There are more.
    pub truncated: bool,
}

/// One file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListDirectoryEntry {
    /// In the directory.
    pub name: String,
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `character_device` or `block_device`.
    pub r#type: String,
    /// In bytes.
    pub size: u64,
    /// The permission bits, such as `0644`.
    pub mode: String,
    /// Where a symbolic link points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

impl ListDirectoryEntry {
    fn of(info: &FileInfo) -> Self {
        let kind = info.kind.as_str();
        Self {
            name: info.path.to_string(),
            r#type: kind.to_owned(),
            size: info.size,
            mode: format!("{:04o}", info.mode),
            target: info.link_target.as_ref().map(ToString::to_string),
        }
    }

    fn line(&self) -> String {
        match (self.r#type.as_str(), &self.target) {
            ("directory", _) => format!("{}/", self.name),
            ("symlink", Some(target)) => format!("{} -> {target}", self.name),
            ("file", _) => format!("{} ({})", self.name, counted(self.size, "byte")),
            (other, _) => format!("{} ({})", self.name, other.replace('_', " ")),
        }
    }
}

pub(super) fn definition() -> ToolDefinition {
    let about = "Lists a directory: directories end with /, files have their size, symbolic links their target.";
    ToolDefinition::new(NAME, about)
        .parameter("path", text("Directory: an absolute path, or relative to the home directory (the default)"), false)
        .parameter("limit", limit("Maximum number of entries", DEFAULT_ENTRIES), false)
        .closed()
        .returns::<ListDirectoryOutput>()
}

pub(super) async fn call(machine: &Machine, params: Value) -> Result<ToolResult, Failure> {
    let args: ListDirectoryArgs = parse(NAME, params)?;
    let most = args.limit.unwrap_or(DEFAULT_ENTRIES).clamp(1, MAX_ENTRIES);
    let directory = machine.target(NAME, &args.path)?;
    let (mut room, mut query) = (machine.limit, DirectoryQuery::default());
    let mut output = ListDirectoryOutput { path: args.path, ..ListDirectoryOutput::default() };
    loop {
        let left = most - output.entries.len() as u64;
        query.page_size = u32::try_from(left).unwrap_or(u32::MAX);
        let page = machine.files.list(directory.clone(), query.clone()).await;
        let page = page.map_err(|error| Failure::of(NAME, error))?;
        for entry in page.entries.iter().map(ListDirectoryEntry::of) {
            match room.checked_sub(entry.line().chars().count() + 1) {
                Some(less) => room = less,
                None => {
                    output.truncated = true;
                    return result(render(&output), &output);
                }
            }
            output.entries.push(entry);
        }
        query.page_token = page.next_page_token;
        output.truncated = !query.page_token.is_empty();
        if !output.truncated || output.entries.len() as u64 >= most {
            return result(render(&output), &output);
        }
    }
}

fn render(output: &ListDirectoryOutput) -> String {
    let mut lines: Vec<_> = output.entries.iter().map(ListDirectoryEntry::line).collect();
    if output.truncated {
        lines.push(format!("(output truncated after {} entries)", output.entries.len()));
    } else if lines.is_empty() {
        lines.push("(empty directory)".to_owned());
    }
    lines.join("\n")
}
