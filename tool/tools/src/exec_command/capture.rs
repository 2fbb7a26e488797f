//! One output stream of a command while it runs: its preview, and its file once the preview is not all.

use std::io;
use std::sync::Arc;

use super::artifacts::{ArtifactDirectory, ArtifactFile, CommandArtifact};
use super::preview::{Preview, shares};

/// What is kept of a stream.
pub(super) struct Capture {
    stream: &'static str,
    preview: Preview,
    directory: Arc<ArtifactDirectory>,
    file: Spill,
}

enum Spill {
    NotNeeded,
    To(ArtifactFile),
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
    /// Why there is no file.
    pub(super) problem: Option<String>,
}

impl Capture {
    /// Nothing yet; `stream` names it.
    pub(super) fn new(stream: &'static str, limit: usize, directory: &Arc<ArtifactDirectory>) -> Self {
        Self { stream, preview: Preview::new(limit), directory: Arc::clone(directory), file: Spill::NotNeeded }
    }

    /// Adds what came next. A file that cannot be written does not hold up the command.
    pub(super) async fn push(&mut self, chunk: &[u8]) {
        if matches!(self.file, Spill::NotNeeded) && !self.preview.has_room_for(chunk.len()) {
            self.spill().await;
        }
        if let Spill::To(file) = &mut self.file
            && let Err(error) = file.write(chunk).await
        {
            self.file = Spill::Failed(error);
        }
        self.preview.push(chunk);
    }

    /// Begins the file, with all that was kept so far.
    async fn spill(&mut self) {
        self.file = match self.begin().await {
            Ok(file) => Spill::To(file),
            Err(error) => Spill::Failed(error),
        };
    }

    async fn begin(&self) -> io::Result<ArtifactFile> {
        let (directory, stream) = (Arc::clone(&self.directory), self.stream);
        let mut file = tokio::task::spawn_blocking(move || directory.create(stream)).await??;
        for part in self.preview.kept() {
            file.write(part).await?;
        }
        Ok(file)
    }

    async fn finish(mut self, limit: usize) -> Captured {
        let (text, cut) = self.preview.text(limit);
        if cut && matches!(self.file, Spill::NotNeeded) {
            self.spill().await;
        }
        let kept = match self.file {
            Spill::NotNeeded => Ok(None),
            Spill::To(file) => file.keep().await.map(Some),
            Spill::Failed(error) => Err(error),
        };
        let (artifact, problem) = match kept {
            Ok(artifact) => (artifact, None),
            Err(error) => (None, Some(format!("The whole of {} could not be kept: {error}.", self.stream))),
        };
        Captured { text: (!self.preview.is_empty()).then_some(text), cut, artifact, problem }
    }
}

/// What an answer has of two streams, whose texts have at most `limit` bytes together.
pub(super) async fn finish(stdout: Capture, stderr: Capture, limit: usize) -> (Captured, Captured) {
    let (first, second) = shares(limit, stdout.preview.text_len(), stderr.preview.text_len());
    (stdout.finish(first).await, stderr.finish(second).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn captured(
        directory: ArtifactDirectory,
        limit: usize,
        chunks: &[&[u8]],
    ) -> (Captured, Arc<ArtifactDirectory>) {
        let directory = Arc::new(directory);
        let mut capture = Capture::new("stdout", limit, &directory);
        for chunk in chunks {
            capture.push(chunk).await;
        }
        (finish(capture, Capture::new("stderr", limit, &directory), limit).await.0, directory)
    }

    #[tokio::test]
    async fn what_fits_leaves_no_file() {
        let place = tempfile::tempdir().unwrap();
        let directory = ArtifactDirectory::at(place.path().to_owned());
        let (captured, _directory) = captured(directory, 6, &[b"abc", b"def"]).await;
        assert_eq!((captured.text.as_deref(), captured.cut, captured.artifact), (Some("abcdef"), false, None));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn silence_is_no_text() {
        let (captured, _directory) = captured(ArtifactDirectory::default(), 6, &[]).await;
        assert_eq!((captured.text, captured.cut), (None, false));
    }

    #[tokio::test]
    async fn what_was_cut_is_whole_in_the_file() {
        let (captured, _directory) = captured(ArtifactDirectory::default(), 4, &[b"abc", b"d\xff", b"gh"]).await;
        assert_eq!(captured.text.as_deref(), Some("ab\n... (output cut: 7 bytes in all) ...\ngh"));
        assert_eq!(std::fs::read(captured.artifact.unwrap().path).unwrap(), b"abcd\xffgh");
    }

    #[tokio::test]
    async fn two_streams_that_do_not_fit_together_both_have_files() {
        let directory = Arc::new(ArtifactDirectory::default());
        let mut streams = ["stdout", "stderr"].map(|stream| Capture::new(stream, 8, &directory));
        for stream in &mut streams {
            stream.push(b"012345").await;
        }
        let [stdout, stderr] = streams;
        let (stdout, stderr) = finish(stdout, stderr, 8).await;
        for captured in [stdout, stderr] {
            assert_eq!(captured.text.as_deref(), Some("01\n... (output cut: 6 bytes in all) ...\n45"));
            assert_eq!(std::fs::read(captured.artifact.unwrap().path).unwrap(), b"012345");
        }
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_made_is_a_remark() {
        let directory = ArtifactDirectory::at("/no/such/directory".into());
        let (captured, _directory) = captured(directory, 2, &[b"abc"]).await;
        assert!(captured.cut && captured.artifact.is_none());
        assert!(captured.problem.unwrap().starts_with("The whole of stdout could not be kept: "));
    }
}
