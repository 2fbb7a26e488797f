//! One output stream of a command while it runs: its preview, and all of it once the preview is not all.

use std::io;

use super::artifacts::{Buffer, CommandArtifact, Store};
use crate::preview::{Preview, Unit, shares};

/// What is kept of a stream.
pub(super) struct Capture {
    stream: &'static str,
    preview: Preview,
    whole: Whole,
}

enum Whole {
    /// The preview has it.
    InPreview,
    In(Buffer),
    Failed(io::Error),
}

/// What an answer has of a stream.
pub(super) struct Captured {
    /// `None`: nothing was written.
    pub(super) text: Option<String>,
    /// The text is not all.
    pub(super) cut: bool,
    /// What is, if it is not.
    pub(super) artifact: Option<CommandArtifact>,
    /// Why there is no artifact.
    pub(super) problem: Option<String>,
}

impl Capture {
    /// Nothing yet; `stream` names it.
    pub(super) fn new(stream: &'static str, limit: usize) -> Self {
        Self { stream, preview: Preview::new(limit, Unit::Bytes), whole: Whole::InPreview }
    }

    /// Adds what came next. A file that cannot be written does not hold up the command.
    pub(super) async fn push(&mut self, chunk: &[u8]) {
        if matches!(self.whole, Whole::InPreview) && !self.preview.has_room_for(chunk.len()) {
            self.spill().await;
        }
        if let Whole::In(buffer) = &mut self.whole
            && let Err(error) = buffer.write(chunk).await
        {
            self.whole = Whole::Failed(error);
        }
        self.preview.push(chunk);
    }

    /// Begins the buffer, with all that was kept so far.
    async fn spill(&mut self) {
        self.whole = match self.begin().await {
            Ok(buffer) => Whole::In(buffer),
            Err(error) => Whole::Failed(error),
        };
    }

    async fn begin(&self) -> io::Result<Buffer> {
        let mut buffer = Buffer::new().await?;
        for part in self.preview.kept() {
            buffer.write(part).await?;
        }
        Ok(buffer)
    }

    async fn finish(mut self, limit: usize, store: &Store) -> Captured {
        let (text, cut) = self.preview.text(limit);
        if cut && matches!(self.whole, Whole::InPreview) {
            self.spill().await;
        }
        let kept = match self.whole {
            Whole::InPreview => Ok(None),
            Whole::In(buffer) => store.keep(self.stream, buffer).await.map(Some),
            Whole::Failed(error) => Err(error.into()),
        };
        let (artifact, problem) = match kept {
            Ok(artifact) => (artifact, None),
            Err(error) => (None, Some(format!("There is no artifact with the whole of {}: {error}.", self.stream))),
        };
        Captured { text: (!self.preview.is_empty()).then_some(text), cut, artifact, problem }
    }
}

/// What an answer has of two streams, whose texts have at most `limit` bytes together.
pub(super) async fn finish(stdout: Capture, stderr: Capture, limit: usize, store: &Store) -> (Captured, Captured) {
    let (first, second) = shares(limit, stdout.preview.text_len(), stderr.preview.text_len());
    tokio::join!(stdout.finish(first, store), stderr.finish(second, store))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use telexec_executor::{ExitCause, OutputStream};

    use super::*;
    use crate::fake::{Fake, State, exited};

    fn fake(cause: ExitCause) -> Arc<Fake> {
        let output = vec![(OutputStream::Stdout, "/artifact\n")];
        Fake::new(State { output, exited: Some(exited(cause)), ..State::default() })
    }

    async fn captured(fake: &Arc<Fake>, limit: usize, chunks: &[&[u8]]) -> Captured {
        let mut capture = Capture::new("stdout", limit);
        for chunk in chunks {
            capture.push(chunk).await;
        }
        let store = Store { executor: Arc::clone(fake) as _, user: None, directory: None };
        finish(capture, Capture::new("stderr", limit), limit, &store).await.0
    }

    #[tokio::test]
    async fn what_fits_leaves_no_file() {
        let fake = fake(ExitCause::Exited(0));
        let captured = captured(&fake, 6, &[b"abc", b"def"]).await;
        assert_eq!((captured.text.as_deref(), captured.cut, captured.artifact), (Some("abcdef"), false, None));
        assert!(fake.state().commands.is_empty());
    }

    #[tokio::test]
    async fn silence_is_no_text() {
        let captured = captured(&fake(ExitCause::Exited(0)), 6, &[]).await;
        assert_eq!((captured.text, captured.cut), (None, false));
    }

    #[tokio::test]
    async fn what_was_cut_is_whole_in_the_file() {
        let fake = fake(ExitCause::Exited(0));
        let captured = captured(&fake, 4, &[b"abc", b"d\xff", b"gh"]).await;
        let text = "ab\n... (output truncated: 3 bytes left out, line 1) ...\ngh";
        assert_eq!(captured.text.as_deref(), Some(text));
        assert_eq!(captured.artifact.unwrap().path, "/artifact");
        assert_eq!(fake.state().commands[0].stdin(), &b"abcd\xffgh"[..]);
    }

    #[tokio::test]
    async fn two_streams_that_do_not_fit_together_both_have_files() {
        let fake = fake(ExitCause::Exited(0));
        let mut streams = ["stdout", "stderr"].map(|stream| Capture::new(stream, 8));
        for stream in &mut streams {
            stream.push(b"012345").await;
        }
        let [stdout, stderr] = streams;
        let store = Store { executor: Arc::clone(&fake) as _, user: None, directory: None };
        let (stdout, stderr) = finish(stdout, stderr, 8, &store).await;
        for captured in [stdout, stderr] {
            let text = "01\n... (output truncated: 2 bytes left out, line 1) ...\n45";
            assert_eq!(captured.text.as_deref(), Some(text));
            assert!(captured.artifact.unwrap().complete);
        }
        assert!(fake.state().commands.iter().all(|command| command.stdin() == &b"012345"[..]));
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_made_is_a_remark() {
        let captured = captured(&fake(ExitCause::Exited(1)), 2, &[b"abc"]).await;
        assert!(captured.cut && captured.artifact.is_none());
        let problem = "There is no artifact with the whole of stdout: writing it ended with code 1.";
        assert_eq!(captured.problem.as_deref(), Some(problem));
    }
}
