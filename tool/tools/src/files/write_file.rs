//! The tool `write_file`: a whole file.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use telexec_executor::text::counted;
use telexec_executor::{ExecutorError, FileErrorKind, FilePiece, FileTarget, WriteOptions};

use super::machine::{Machine, changed};
use super::seen::Version;
use crate::failure::{Failure, result};
use crate::parameters::{parse, text};
use crate::{ToolDefinition, ToolResult};

const NAME: &str = "write_file";

/// The parameters of `write_file`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteFileArgs {
    /// Absolute, or relative to the home directory of the user.
    pub path: String,
    /// All that the file is to have.
    pub content: String,
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WriteFileOutput {
    /// As it was asked for.
    pub path: String,
    /// The size of the file.
    pub bytes: u64,
    /// There was a file before; `None`: that may not be seen.
    pub replaced: Option<bool>,
}

pub(super) fn definition() -> ToolDefinition {
    let about = "Writes a whole file, and makes the directories it is in. An existing file is replaced and keeps its \
                 mode; one that changed since it was read is not. To change a part of a file, use edit_file.";
    ToolDefinition::new(NAME, about)
        .parameter("path", text("File: an absolute path, or relative to the home directory"), true)
        .parameter("content", text("The whole content"), true)
        .closed()
        .returns::<WriteFileOutput>()
}

pub(super) async fn call(machine: &Machine, params: Value) -> Result<ToolResult, Failure> {
    let args: WriteFileArgs = parse(NAME, params)?;
    let file = machine.target(NAME, &args.path)?;
    let _writing = machine.writing().await;
    let replaced = check(machine, &file).await?;
    let is_new = replaced == Some(false);
    let options = WriteOptions { make_parents: true, exclusive: is_new, ..WriteOptions::default() };
    let bytes = match write(machine, &file, options, args.content.into()).await {
        Err(ExecutorError::File(error)) if is_new && error.kind() == FileErrorKind::AlreadyExists => {
            return Err(changed(&file, "was created meanwhile"));
        }
        written => written.map_err(|error| Failure::of(NAME, error))?,
    };
    let output = WriteFileOutput { path: args.path, bytes, replaced };
    let done = match replaced {
        Some(false) => "Created",
        Some(true) => "Replaced",
        None => "Wrote",
    };
    result(format!("{done} {} ({})", output.path, counted(bytes, "byte")), &output)
}

/// Whether there is a file, which must be as the caller knows it.
async fn check(machine: &Machine, file: &FileTarget) -> Result<Option<bool>, Failure> {
    match machine.look(file).await {
        Ok(Some(info)) => machine.check_unchanged(file, &Version::new(&info, None)).map(|()| Some(true)),
        Ok(None) => Ok(Some(false)),
        // who may write it need not be permitted to read it
        Err(ExecutorError::Denied { .. } | ExecutorError::File(_)) if !machine.knows(file) => Ok(None),
        Err(error) => Err(Failure::of(NAME, error)),
    }
}

/// Writes a file, which the caller knows from now on. Returns its size.
pub(super) async fn write(
    machine: &Machine,
    file: &FileTarget,
    options: WriteOptions,
    content: Bytes,
) -> Result<u64, ExecutorError> {
    let bytes = content.len() as u64;
    let pieces = stream::iter([Ok(FilePiece::Data(content))]).boxed();
    let written = machine.files.write(file.clone(), options, pieces).await?;
    machine.remember(file, Version::new(&written.info, Some(written.sha256)));
    Ok(bytes)
}
