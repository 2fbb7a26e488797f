//! `Transfer`: many tasks in one call, by one process.

use futures_util::{StreamExt, stream};
use telexec_executor::{ExecutorError, InvalidCommand};
use telexec_files::frame::{Kind, MAX_BYTES};
use telexec_files::message::{Done, Outcome, Task};
use telexec_proto::convert::error_to_status;
use telexec_proto::v1::transfer_request::Step as Asking;
use telexec_proto::v1::transfer_response::Step as Answer;
use telexec_proto::v1::{TransferFailure, TransferRequest, TransferResponse};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, Streaming};
use tracing::Instrument;

use super::session::{Job, Session, unexpected};
use super::wire::{Answered, Ask, Asked, read_step};
use crate::admission::Stack;
use crate::call::Call;
use crate::call::events::Responses;
use crate::call::status::invalid;
use crate::policy::FileAction;

/// Answers that wait for the caller.
const MAX_WAITING: usize = 8;

/// Carries out requests in their order.
pub(super) fn transfer(stack: Stack, call: Call, requests: Streaming<TransferRequest>) -> Responses<TransferResponse> {
    let (answers, waiting) = mpsc::channel(MAX_WAITING);
    let transfer = Transfer { stack, call, requests, answers, session: None };
    // a task of its own: what is to be written goes on while the caller does not read
    let task = AbortOnDropHandle::new(tokio::spawn(transfer.run().in_current_span()));
    let responses = stream::unfold((waiting, task), async |(mut waiting, task)| {
        let answer = waiting.recv().await?;
        Some((answer, (waiting, task)))
    });
    responses.boxed()
}

struct Transfer {
    stack: Stack,
    call: Call,
    requests: Streaming<TransferRequest>,
    answers: mpsc::Sender<Result<TransferResponse, Status>>,
    session: Option<Session>,
}

/// Why a transfer ends before its caller ends it.
enum Stopped {
    /// The caller is gone.
    Gone,
    Failed(Status),
}

impl From<ExecutorError> for Stopped {
    fn from(error: ExecutorError) -> Self {
        Self::Failed(error_to_status(&error))
    }
}

impl Transfer {
    async fn run(mut self) {
        let stopped = match self.carry_out_all().await {
            Ok(()) => self.sync().await.err(),
            Err(stopped) => Some(stopped),
        };
        if let Some(Stopped::Failed(status)) = stopped {
            let _ = self.answers.send(Err(status)).await;
        }
    }

    async fn carry_out_all(&mut self) -> Result<(), Stopped> {
        while let Some(asking) = self.next().await? {
            match asking {
                Asking::Read(request) => self.read(request.ask()).await?,
                Asking::Write(header) => {
                    if !header.upload_id.is_empty() || header.offset > 0 {
                        return Err(malformed("write.upload_id", "is for WriteFile"));
                    }
                    self.write(header.ask()).await?;
                }
                Asking::Info(request) => self.one(request.ask(), Answer::Info).await?,
                Asking::List(request) => self.one(request.ask(), Answer::List).await?,
                Asking::MakeDirectory(request) => self.one(request.ask(), Answer::MakeDirectory).await?,
                Asking::MakeLink(request) => self.one(request.ask(), Answer::MakeLink).await?,
                Asking::Move(request) => self.one(request.ask(), Answer::Move).await?,
                Asking::Remove(request) => self.one(request.ask(), Answer::Remove).await?,
                Asking::Data(_) | Asking::Hole(_) | Asking::End(_) => {
                    return Err(malformed("step", "is of a file, and no write has begun"));
                }
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<Asking>, Stopped> {
        self.call.reservation.release();
        let Some(request) = self.requests.next().await.transpose().map_err(Stopped::Failed)? else { return Ok(None) };
        request.step.map(Some).ok_or_else(|| malformed("step", "is missing"))
    }

    /// The process, with this task.
    async fn begin(&mut self, asked: Asked) -> Result<&mut Session, ExecutorError> {
        let Asked { user, job } = asked;
        let session = match self.session.take() {
            Some(mut session) => {
                if user.is_some_and(|user| user != session.user()) {
                    return Err(InvalidCommand::new("user", "is not that of the first request").into());
                }
                session.begin(job);
                session
            }
            None => Session::start(&self.stack, &self.call, user.as_deref(), job).await?,
        };
        Ok(self.session.insert(session))
    }

    /// A task with one answer.
    async fn one<A: Answered>(
        &mut self,
        asked: Result<Asked, InvalidCommand>,
        answer: fn(A) -> Answer,
    ) -> Result<(), Stopped> {
        let asked = asked.map_err(|error| Stopped::Failed(invalid(error)))?;
        let outcome = self.begin(asked).await?.finish().await;
        self.answer(outcome.and_then(|outcome| A::answered(outcome).ok_or_else(unexpected)).map(answer)).await
    }

    async fn read(&mut self, asked: Result<Asked, InvalidCommand>) -> Result<(), Stopped> {
        let asked = asked.map_err(|error| Stopped::Failed(invalid(error)))?;
        self.begin(asked).await?;
        loop {
            let session = self.session.as_mut().ok_or(Stopped::Gone)?;
            let step = session.next().await.and_then(|step| read_step(step).ok_or_else(unexpected));
            let is_last = step.as_ref().map_or(true, |(_, is_last)| *is_last);
            self.answer(step.map(|(step, _)| Answer::Read(step))).await?;
            if is_last {
                return Ok(());
            }
        }
    }

    async fn write(&mut self, asked: Result<Asked, InvalidCommand>) -> Result<(), Stopped> {
        let mut asked = asked.map_err(|error| Stopped::Failed(invalid(error)))?;
        if let Task::Write(task) = &mut asked.job.task {
            task.is_synced_later = true;
        }
        let permitted = self.begin(asked).await?.permitted().await;
        let mut is_wanted = permitted.is_ok();
        loop {
            let piece = self.next().await?;
            let session = self.session.as_mut().ok_or(Stopped::Gone)?;
            match piece {
                Some(Asking::Data(_) | Asking::Hole(_)) if !is_wanted => {}
                Some(Asking::Data(mut data)) => {
                    while !data.is_empty() {
                        session.queue(Kind::Data, data.split_to(data.len().min(MAX_BYTES)));
                    }
                }
                Some(Asking::Hole(length)) => session.queue(Kind::Hole, length.to_be_bytes().to_vec().into()),
                Some(Asking::End(_)) => break,
                Some(_) => return Err(malformed("step", "must be data, hole or end, within a write")),
                None => return Err(malformed("step", "is missing: the last write has no end")),
            }
            // a process that is gone is noticed at the end
            is_wanted &= session.flush_much().await.is_ok();
        }
        let outcome = match (permitted, self.session.as_mut()) {
            (Ok(()), Some(session)) => {
                session.queue(Kind::End, bytes::Bytes::new());
                session.finish().await
            }
            (Ok(()), None) => Err(unexpected()),
            (Err(error), _) => Err(error),
        };
        self.answer(outcome.and_then(|outcome| Answered::answered(outcome).ok_or_else(unexpected)).map(Answer::Write))
            .await
    }

    /// All that was written is on the disk when this returns.
    async fn sync(&mut self) -> Result<(), Stopped> {
        let Some(mut session) = self.session.take() else { return Ok(()) };
        session.begin(Job { task: Task::Sync(Done {}), action: FileAction::List, paths: Vec::new() });
        match session.finish().await? {
            Outcome::Done(_) => {
                session.close();
                Ok(())
            }
            _ => Err(unexpected().into()),
        }
    }

    /// Sends an answer; what came of one task alone is for the caller to see, and the next one follows.
    async fn answer(&mut self, answer: Result<Answer, ExecutorError>) -> Result<(), Stopped> {
        let step = match answer {
            Ok(answer) => answer,
            Err(error) if concerns_one_file(&error) => Answer::Failed(failure(&error)),
            Err(error) => return Err(error.into()),
        };
        let response = TransferResponse { step: Some(step) };
        self.answers.send(Ok(response)).await.map_err(|_| Stopped::Gone)
    }
}

/// Whether the process is as good as before.
fn concerns_one_file(error: &ExecutorError) -> bool {
    matches!(error, ExecutorError::File(_) | ExecutorError::Corrupted { .. } | ExecutorError::Denied { .. })
}

fn failure(error: &ExecutorError) -> TransferFailure {
    let status = error_to_status(error);
    TransferFailure {
        code: status.code().into(),
        message: status.message().to_owned(),
        details: status.details().to_vec().into(),
    }
}

fn malformed(field: &'static str, reason: &'static str) -> Stopped {
    Stopped::Failed(invalid(InvalidCommand::new(field, reason)))
}
