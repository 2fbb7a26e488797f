//! A section of an execution's output.

use futures_util::StreamExt;
use telexec_executor::{Event, Execution, ExecutorError, Output};

/// Reads the output between two positions, or less if it ends before.
pub(crate) struct Section {
    execution: Execution,
    position: u64,
    end: u64,
}

/// A part of it.
pub(crate) enum SectionEvent {
    Output(Output),
    /// Output is missing here: it is available from this position on.
    Gap(u64),
}

impl Section {
    /// `execution` is read from `position` on.
    pub(crate) fn new(execution: Execution, position: u64, end: u64) -> Self {
        Self { execution, position, end }
    }

    /// # Errors
    /// The execution cannot be followed any more.
    pub(crate) async fn next(&mut self) -> Result<Option<SectionEvent>, ExecutorError> {
        while self.position < self.end {
            match self.execution.next().await.transpose()? {
                Some(Event::Output(mut chunk)) => {
                    let left = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
                    chunk.data.truncate(left);
                    self.position += chunk.data.len() as u64;
                    return Ok(Some(SectionEvent::Output(chunk)));
                }
                Some(Event::Gap(position)) => {
                    self.position = position;
                    return Ok(Some(SectionEvent::Gap(position)));
                }
                Some(Event::Started(_)) => {}
                Some(Event::Exited(_) | Event::Promoted) | None => return Ok(None),
            }
        }
        Ok(None)
    }
}
