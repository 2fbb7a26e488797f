//! Files with the whole of an output of which an answer has only a part: made by a command, where commands run and as
//! the user that they run as, so that the next command can read them.

use std::io::SeekFrom;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use telexec_executor::text::error_chain;
use telexec_executor::{Command, Event, Execution, Executor, ExecutorError, ExitCause, Input, OutputStream};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

/// A file has no more than this of an output.
const MAX_BYTES: u64 = 64 << 20;
/// What is sent at once.
const PIECE_BYTES: u64 = 1 << 20;
/// For 64 MiB by a slow connection; a disk that does not answer must not keep the model.
const TIMEOUT: Duration = Duration::from_secs(300);
/// What the command may say: a path, or why there is none.
const MAX_REPLY_BYTES: usize = 8 * 1024;

/// `$1` names the stream, `$2` a directory if one is configured. The default is a directory of the user, in which files
/// of last week make room. Not in XDG_RUNTIME_DIR: that is memory, and ends with the user's last login. The range is that of dynamic
/// users.
const SCRIPT: &str = r#"
set -eu
umask 077
user=$(id -u)
if [ "$user" -ge 2013265920 ] && [ "$user" -le 2147352575 ]; then
  echo "the command runs as a dynamic user, whose files are removed with it: name another user" >&2
  exit 1
fi
directory=$2
if [ -z "$directory" ]; then
  parent=${TMPDIR:-/tmp}
  [ -w "$parent" ] || parent=/tmp
  directory=$parent/telexec-$user
  mkdir -p "$directory"
  if [ -L "$directory" ] || [ ! -O "$directory" ]; then
    echo "$directory belongs to another user" >&2
    exit 1
  fi
  find "$directory" -type f -mtime +6 -exec rm -f {} +
fi
file=$(mktemp "$directory/$1-XXXXXXXX")
trap 'rm -f "$file"; exit 1' HUP INT TERM
cat >"$file" || { rm -f "$file"; exit 1; }
printf '%s\n' "$file"
"#;

/// A file with an output, exact bytes, on the machine where the command ran and readable by its user alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandArtifact {
    /// Where it is.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// It has all of the output; otherwise the beginning, as much as is kept (64 MiB) or came.
    pub complete: bool,
}

/// Where such files are made.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) executor: Arc<dyn Executor>,
    pub(super) user: Option<String>,
    /// `None`: one of the user's own.
    pub(super) directory: Option<String>,
}

/// Why there is no artifact.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// It could not be kept here until the command's end.
    #[error(transparent)]
    Buffer(#[from] std::io::Error),
    /// The command that writes it could not run.
    #[error("{}", error_chain(.0))]
    Executor(#[from] ExecutorError),
    /// It ran and failed.
    #[error("{0}")]
    Failed(String),
}

impl Store {
    /// Makes a file with these bytes.
    pub(super) async fn keep(&self, stream: &str, mut buffer: Buffer) -> Result<CommandArtifact, StoreError> {
        buffer.file.flush().await?;
        buffer.file.seek(SeekFrom::Start(0)).await?;
        let mut piece = buffer.piece().await?;
        let mut sent = piece.len() as u64;
        let execution = self.executor.execute(self.command(stream, piece, sent < buffer.bytes)?).await?;
        while sent < buffer.bytes {
            piece = buffer.piece().await?;
            let end = sent + piece.len() as u64;
            let input = Input { data: piece, offset: Some(sent), close: end >= buffer.bytes };
            // the command's own reason is better than that it reads no more
            if self.executor.write_input(execution.id(), input).await.is_err() {
                break;
            }
            sent = end;
        }
        let path = path(execution).await?;
        Ok(CommandArtifact { path, bytes: buffer.bytes, complete: buffer.complete })
    }

    fn command(&self, stream: &str, stdin: Bytes, accepts_input: bool) -> Result<Command, ExecutorError> {
        let directory = self.directory.as_deref().unwrap_or_default();
        let mut command = Command::argv(["sh", "-c", SCRIPT, "telexec", stream, directory])
            .working_directory("/")
            .stdin(stdin)
            .accepts_input(accepts_input)
            .timeout(TIMEOUT)
            .reason("keep the whole output of a command");
        if let Some(user) = &self.user {
            command = command.user(user);
        }
        Ok(command.build()?)
    }
}

/// The path that the command says, once it has succeeded.
async fn path(mut execution: Execution) -> Result<String, StoreError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = execution.next().await {
        match event? {
            Event::Output(output) => {
                let said = if output.stream == OutputStream::Stdout { &mut stdout } else { &mut stderr };
                let room = MAX_REPLY_BYTES.saturating_sub(said.len()).min(output.data.len());
                said.extend(output.data.iter().take(room));
            }
            Event::Exited(exited) => {
                let path = String::from_utf8_lossy(&stdout).trim_end_matches('\n').to_owned();
                if exited.cause == ExitCause::Exited(0) && path.starts_with('/') {
                    return Ok(path);
                }
                let reason = String::from_utf8_lossy(&stderr).trim().replace('\n', "; ");
                return Err(StoreError::Failed(match (reason.as_str(), exited.cause) {
                    ("", ExitCause::Exited(code)) => format!("writing it ended with code {code}"),
                    ("", cause) => format!("writing it ended: {}", cause.as_str()),
                    _ => reason,
                }));
            }
            Event::Started(_) | Event::Gap(_) | Event::Promoted => {}
        }
    }
    Err(StoreError::Failed("the executor did not report how it was written".to_owned()))
}

/// An output while its command runs: in a file without a name, of which nothing is left whatever happens.
pub(super) struct Buffer {
    file: File,
    bytes: u64,
    complete: bool,
}

impl Buffer {
    pub(super) async fn new() -> std::io::Result<Self> {
        let file = tokio::task::spawn_blocking(tempfile::tempfile).await??;
        Ok(Self { file: File::from_std(file), bytes: 0, complete: true })
    }

    /// Adds what came next, as far as there is room.
    pub(super) async fn write(&mut self, chunk: &[u8]) -> std::io::Result<()> {
        let room = usize::try_from(MAX_BYTES.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        let wanted = chunk.get(..room).unwrap_or(chunk);
        self.complete &= wanted.len() == chunk.len();
        self.bytes += wanted.len() as u64;
        self.file.write_all(wanted).await
    }

    /// What is read next.
    async fn piece(&mut self) -> std::io::Result<Bytes> {
        let mut piece = Vec::new();
        (&mut self.file).take(PIECE_BYTES).read_to_end(&mut piece).await?;
        match piece.is_empty() {
            true => Err(std::io::ErrorKind::UnexpectedEof.into()),
            false => Ok(piece.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, State, exited};

    async fn buffer(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new().await.unwrap();
        buffer.write(bytes).await.unwrap();
        buffer
    }

    fn store(fake: &Arc<Fake>) -> Store {
        Store { executor: Arc::clone(fake) as Arc<dyn Executor>, user: Some("ci".to_owned()), directory: None }
    }

    fn says(output: Vec<(OutputStream, &'static str)>, cause: ExitCause) -> Arc<Fake> {
        Fake::new(State { output, exited: Some(exited(cause)), ..State::default() })
    }

    #[tokio::test]
    async fn a_short_output_is_written_by_one_call() {
        let fake = says(vec![(OutputStream::Stdout, "/tmp/telexec-7/stdout-x\n")], ExitCause::Exited(0));
        let artifact = store(&fake).keep("stdout", buffer(b"a\xff").await).await.unwrap();
        assert_eq!(artifact, CommandArtifact { path: "/tmp/telexec-7/stdout-x".into(), bytes: 2, complete: true });
        let state = fake.state();
        let command = &state.commands[0];
        assert_eq!((&command.stdin()[..], command.accepts_input(), command.user()), (&b"a\xff"[..], false, Some("ci")));
        assert!(state.inputs.is_empty() && command.labels().is_empty());
    }

    #[tokio::test]
    async fn a_long_output_comes_in_pieces() {
        let fake = says(vec![(OutputStream::Stdout, "/a\n")], ExitCause::Exited(0));
        let bytes = vec![b'x'; (2 << 20) + 5];
        let artifact = store(&fake).keep("stdout", buffer(&bytes).await).await.unwrap();
        assert_eq!(artifact.bytes, bytes.len() as u64);
        let state = fake.state();
        assert!(state.commands[0].accepts_input());
        let pieces: Vec<_> = state.inputs.iter().map(|input| (input.offset, input.data.len(), input.close)).collect();
        assert_eq!(pieces, [(Some(1 << 20), 1 << 20, false), (Some(2 << 20), 5, true)]);
    }

    #[tokio::test]
    async fn a_failure_has_a_reason() {
        let full = vec![(OutputStream::Stdout, "/a\n"), (OutputStream::Stderr, "cat: write error:\nNo space left\n")];
        for (output, cause, reason) in [
            (full, ExitCause::Exited(1), "cat: write error:; No space left"),
            (vec![], ExitCause::TimedOut, "writing it ended: timed_out"),
            (vec![(OutputStream::Stdout, "odd\n")], ExitCause::Exited(0), "writing it ended with code 0"),
        ] {
            let failed = store(&says(output, cause)).keep("stdout", buffer(b"a").await).await.unwrap_err();
            assert_eq!(failed.to_string(), reason);
        }
    }

    #[tokio::test]
    async fn a_file_has_a_most() {
        let mut buffer = Buffer::new().await.unwrap();
        buffer.bytes = MAX_BYTES - 2;
        buffer.write(b"abc").await.unwrap();
        buffer.write(b"d").await.unwrap();
        assert_eq!((buffer.bytes, buffer.complete), (MAX_BYTES, false));
    }
}
