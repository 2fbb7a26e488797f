//! The tools for files: `read_file`, `write_file`, `edit_file`, `list_directory`, `glob` and `grep`, over any [`Files`].
//!
//! They share what was read: a file that has changed since is neither edited nor replaced before it is read again.

mod edit_file;
mod glob;
mod grep;
mod lines;
mod list_directory;
mod machine;
mod read_file;
mod seen;
mod write_file;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use telexec_executor::Files;

pub use self::edit_file::{EditFileArgs, EditFileOutput};
pub use self::glob::{GlobArgs, GlobOutput};
pub use self::grep::{GrepArgs, GrepFile, GrepLine, GrepOutput, GrepOutputMode};
pub use self::list_directory::{ListDirectoryArgs, ListDirectoryEntry, ListDirectoryOutput};
use self::machine::Machine;
pub use self::read_file::{ReadFileArgs, ReadFileOutput};
pub use self::write_file::{WriteFileArgs, WriteFileOutput};
use crate::failure::{Failure, answer};
use crate::summary::shorten;
use crate::{Tool, ToolContext, ToolDefinition, ToolError, ToolResult};

/// Makes the tools for the files of one machine, as one user.
pub struct FileTools(Machine);

impl FileTools {
    /// For these files, as their default user.
    pub fn new(files: Arc<dyn Files>) -> Self {
        Self(Machine::new(files))
    }

    /// Who opens the files. Default: the default user of `files`.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.0.user = Some(name.into());
        self
    }

    /// Where relative paths begin: an absolute path. Default: the home directory of the user.
    #[must_use]
    pub fn cwd(mut self, path: impl Into<String>) -> Self {
        self.0.directory = Some(path.into());
        self
    }

    /// The most that an answer has, in characters, but at least 1,000; what is left out is said. Default: 30,000.
    #[must_use]
    pub fn max_output_characters(mut self, characters: usize) -> Self {
        self.0.limit_output(characters);
        self
    }

    /// The tools, in the order of [`ToolDefinition::name`] above.
    pub fn into_tools(self) -> Vec<Box<dyn Tool>> {
        let machine = Arc::new(self.0);
        Kind::ALL.into_iter().map(|kind| Box::new(FileTool::new(kind, Arc::clone(&machine))) as Box<dyn Tool>).collect()
    }
}

/// One of the tools.
struct FileTool {
    kind: Kind,
    definition: ToolDefinition,
    machine: Arc<Machine>,
}

#[derive(Clone, Copy)]
enum Kind {
    ReadFile,
    WriteFile,
    EditFile,
    ListDirectory,
    Glob,
    Grep,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::ReadFile, Self::WriteFile, Self::EditFile, Self::ListDirectory, Self::Glob, Self::Grep];

    fn definition(self) -> ToolDefinition {
        match self {
            Self::ReadFile => read_file::definition(),
            Self::WriteFile => write_file::definition(),
            Self::EditFile => edit_file::definition(),
            Self::ListDirectory => list_directory::definition(),
            Self::Glob => glob::definition(),
            Self::Grep => grep::definition(),
        }
    }

    /// What it does now, and that it did not succeed.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::ReadFile => ("Reading", "Read failed"),
            Self::WriteFile => ("Writing", "Write failed"),
            Self::EditFile => ("Editing", "Edit failed"),
            Self::ListDirectory => ("Listing", "List failed"),
            Self::Glob | Self::Grep => ("Searching", "Search failed"),
        }
    }

    /// The parameter that says most about a call.
    fn subject(self, params: &Value) -> Option<&str> {
        let name = match self {
            Self::Glob | Self::Grep => "pattern",
            _ => "path",
        };
        params.get(name).and_then(Value::as_str)
    }
}

impl FileTool {
    fn new(kind: Kind, machine: Arc<Machine>) -> Self {
        Self { kind, definition: kind.definition(), machine }
    }

    async fn call(&self, params: Value) -> Result<ToolResult, Failure> {
        let machine = &self.machine;
        match self.kind {
            Kind::ReadFile => read_file::call(machine, params).await,
            Kind::WriteFile => write_file::call(machine, params).await,
            Kind::EditFile => edit_file::call(machine, params).await,
            Kind::ListDirectory => list_directory::call(machine, params).await,
            Kind::Glob => glob::call(machine, params).await,
            Kind::Grep => grep::call(machine, params).await,
        }
    }
}

#[async_trait]
impl Tool for FileTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn execute(&self, params: Value, context: ToolContext) -> Result<ToolResult, ToolError> {
        let (_, failed) = self.kind.words();
        answer(failed, context.cancel.run_until_cancelled(self.call(params)).await)
    }

    fn is_destructive(&self) -> bool {
        !self.is_read_only()
    }

    fn is_read_only(&self) -> bool {
        !matches!(self.kind, Kind::WriteFile | Kind::EditFile)
    }

    fn is_concurrent_safe(&self) -> bool {
        self.is_read_only()
    }

    fn is_idempotent(&self) -> bool {
        !matches!(self.kind, Kind::EditFile)
    }

    fn summary(&self, params: &Value) -> String {
        let name = &self.definition.name;
        let subject = self.kind.subject(params);
        subject.map_or_else(|| format!("[{name}]"), |subject| format!("[{name}: {}]", shorten(subject)))
    }

    fn activity_description(&self, params: &Value) -> Option<String> {
        let (doing, _) = self.kind.words();
        self.kind.subject(params).map(|subject| format!("{doing} {}...", shorten(subject)))
    }
}
