//! What executions that outlive their agent need beside all others: to be saved, and to be followed from the middle.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use telexec_executor::{Command, OnDisconnect};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::recovery::handed_over::save_places;
use crate::recovery::unfinished::Unfinished;
use crate::start::{Main, ToSave};
use crate::state::checkpoint::{Checkpoint, Closed};
use crate::streams::input::{InputReceiver, InputWriter};
use crate::streams::{Ends, HeldFiles, InputState};
use crate::supervise::{Concluded, Supervisor};

/// The streams of an execution that an earlier agent has started.
pub(crate) struct RestoredStreams {
    pub(crate) ends: Ends,
    /// What the command has not got of what it starts with.
    pub(crate) first: Bytes,
    pub(crate) input: InputState,
    /// `None`: it accepts no input.
    pub(crate) inputs: Option<InputReceiver>,
}

impl Supervisor {
    /// Follows an execution that an earlier agent has started to its end.
    pub(crate) async fn run_restored(self, main: Main, streams: RestoredStreams) {
        let supervised = AssertUnwindSafe(self.follow_restored(&main, streams)).catch_unwind().await;
        let concluded = match supervised {
            Ok(concluded) => concluded,
            Err(_) => self.settle(&main).await,
        };
        self.finish(main, concluded).await;
    }

    async fn follow_restored(&self, main: &Main, streams: RestoredStreams) -> Concluded {
        let RestoredStreams { ends: Ends { stdin, stdout, stderr, terminal }, first, input, mut inputs } = streams;
        terminal.iter().for_each(|terminal| self.observers.terminal(terminal));
        drop(terminal);
        let exited = CancellationToken::new();
        let output = self.carry_output(stdout, stderr, &exited);
        let writing = tokio::sync::Mutex::new(());
        let mut writer = InputWriter::restored(stdin, input, &self.observers, &writing);
        let write = async {
            if input.closed == Closed::Begun {
                writer.close().await;
            }
            writer.run(first, inputs.as_mut()).await;
        };
        let carried = self.carry(output, write, &writing);
        let (ending, rests) = tokio::join!(self.follow(main, &exited), carried);
        Concluded { ending, rests, inputs }
    }

    /// Where it is saved for the next agent; `None`: it ends with this one.
    pub(crate) fn checkpoint(&self, command: &Command) -> io::Result<Option<Arc<Checkpoint>>> {
        let may_survive = command.may_go_to_background() || self.record.waits_for_caller;
        if self.shared.kept.is_none() || self.record.is_internal() || !may_survive {
            return Ok(None);
        }
        let checkpoint = match Checkpoint::new() {
            Ok(checkpoint) => Arc::new(checkpoint),
            // by RLIMIT_FSIZE
            Err(error) if error.raw_os_error() == Some(libc::EFBIG) => {
                debug!("files may not be so large: it ends with this agent");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let transcript = &self.record.transcript;
        transcript.location().into_iter().for_each(|place| save_places(&checkpoint, &[place]));
        transcript.save_to(Arc::clone(&checkpoint));
        self.shared.registry.changed();
        Ok(Some(checkpoint))
    }

    pub(crate) fn to_save(&self, checkpoint: Arc<Checkpoint>, command: &Command, held: HeldFiles) -> ToSave {
        let states = self.observers.states();
        let limits = (self.first_timeout, self.grace());
        let unfinished = Unfinished::new(&self.record, command, limits, &self.allowance, &held, states);
        let survives = command.on_disconnect() == OnDisconnect::Detach || self.record.waits_for_caller;
        ToSave { checkpoint, unfinished, held, survives }
    }
}
