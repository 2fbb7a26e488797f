//! `Transfer`: many tasks in one call, by one process.

use std::collections::VecDeque;

use futures_util::{StreamExt, stream};
use telexec_executor::{ExecutorError, FilePath, InvalidCommand};
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

use super::session::{Job, Session, Step, asks, unexpected};
use super::wire::{Answered, Ask, Asked, read_step};
use crate::admission::Stack;
use crate::call::Call;
use crate::call::events::Responses;
use crate::call::status::invalid;
use crate::policy::FileAction;

/// Answers that wait for the caller.
const MAX_WAITING: usize = 8;
/// Tasks that the process has, or will have next: it need not wait for the agent between two.
const MAX_PENDING: usize = 64;

/// Carries out requests in their order.
pub(super) fn transfer(stack: Stack, call: Call, requests: Streaming<TransferRequest>) -> Responses<TransferResponse> {
    let (answers, waiting) = mpsc::channel(MAX_WAITING);
    let is_asked = asks(&stack);
    let transfer = Transfer {
        stack,
        call,
        requests,
        answers,
        session: None,
        is_asked,
        pending: VecDeque::new(),
        is_writing: false,
        early: None,
    };
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
    /// The process asks about each file, so it does one after another.
    is_asked: bool,
    /// What the process has begun, or will, in its order.
    pending: VecDeque<Pending>,
    /// The last task is a write whose end has not come.
    is_writing: bool,
    /// Its answer, which is due at its end.
    early: Option<Result<Answer, ExecutorError>>,
}

/// A task without its whole answer.
struct Pending {
    path: FilePath,
    /// Its answer may be longer than the pipes take.
    is_long: bool,
    kind: PendingKind,
}

enum PendingKind {
    Read,
    /// One answer, which is made of the outcome; `None`: it is none of such a task.
    One(Box<dyn Fn(Outcome) -> Option<Answer> + Send>),
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
                Asking::Read(request) => self.ask(request.ask(), PendingKind::Read).await?,
                Asking::Write(header) => {
                    if !header.upload_id.is_empty() || header.offset > 0 {
                        return Err(malformed("write.upload_id", "is for WriteFile"));
                    }
                    self.write(header.ask()).await?;
                }
                Asking::Info(request) => self.ask(request.ask(), one(Answer::Info)).await?,
                Asking::List(request) => self.ask(request.ask(), one(Answer::List)).await?,
                Asking::MakeDirectory(request) => self.ask(request.ask(), one(Answer::MakeDirectory)).await?,
                Asking::MakeLink(request) => self.ask(request.ask(), one(Answer::MakeLink)).await?,
                Asking::Move(request) => self.ask(request.ask(), one(Answer::Move)).await?,
                Asking::Remove(request) => self.ask(request.ask(), one(Answer::Remove)).await?,
                Asking::Data(_) | Asking::Hole(_) | Asking::End(_) => {
                    return Err(malformed("step", "is of a file, and no write has begun"));
                }
            }
        }
        Ok(())
    }

    /// The next request. Until it comes, answers of the process go to the caller.
    async fn next(&mut self) -> Result<Option<Asking>, Stopped> {
        self.call.reservation.release();
        let request = loop {
            let is_full = self.pending.len() >= MAX_PENDING;
            let Some(session) = self.session.as_mut().filter(|_| !self.pending.is_empty()) else {
                break self.requests.next().await;
            };
            let step = tokio::select! {
                biased;
                request = self.requests.next(), if !is_full => break request,
                step = session.next() => step,
            };
            self.hear(step).await?;
        };
        let Some(request) = request.transpose().map_err(Stopped::Failed)? else { return Ok(None) };
        request.step.map(Some).ok_or_else(|| malformed("step", "is missing"))
    }

    /// Waits until the process has done all that it was asked for.
    async fn settle(&mut self) -> Result<(), Stopped> {
        while !self.pending.is_empty() {
            let session = self.session.as_mut().ok_or(Stopped::Gone)?;
            let step = session.next().await;
            self.hear(step).await?;
        }
        Ok(())
    }

    /// What comes of the first of the pending tasks.
    async fn hear(&mut self, step: Result<Step, ExecutorError>) -> Result<(), Stopped> {
        let front = self.pending.front().ok_or_else(unexpected)?;
        let (answer, is_last) = match (&front.kind, step) {
            (_, Err(error)) => (Err(error), true),
            (PendingKind::Read, Ok(step)) => match read_step(step) {
                Some((step, is_last)) => (Ok(Answer::Read(step)), is_last),
                None => (Err(unexpected()), true),
            },
            (PendingKind::One(answer), Ok(Step::Outcome(outcome))) => (answer(outcome).ok_or_else(unexpected), true),
            (PendingKind::One(_), Ok(Step::Data(_) | Step::Hole(_))) => (Err(unexpected()), true),
        };
        let done = if is_last { self.pending.pop_front() } else { None };
        let answer = match (answer, done) {
            (Err(ExecutorError::Corrupted { .. }), Some(Pending { path, .. })) => {
                Err(ExecutorError::Corrupted { path })
            }
            (answer, _) => answer,
        };
        if self.is_writing && self.pending.is_empty() {
            self.early = Some(answer);
            return Ok(());
        }
        self.answer(answer).await
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

    /// Asks the process for something.
    async fn ask(&mut self, asked: Result<Asked, InvalidCommand>, kind: PendingKind) -> Result<(), Stopped> {
        let asked = asked.map_err(|error| Stopped::Failed(invalid(error)))?;
        let path = asked.job.paths.first().cloned().unwrap_or_default();
        let is_long = matches!(asked.job.task, Task::Read(_) | Task::List(_));
        self.begin(asked).await?;
        self.pending.push_back(Pending { path, is_long, kind });
        if self.is_asked { self.settle().await } else { Ok(()) }
    }

    async fn write(&mut self, asked: Result<Asked, InvalidCommand>) -> Result<(), Stopped> {
        let mut asked = asked.map_err(|error| Stopped::Failed(invalid(error)))?;
        if let Task::Write(task) = &mut asked.job.task {
            task.is_synced_later = true;
        }
        // the process must not wait for the agent to read while the agent waits for it to do so
        if self.pending.iter().any(|pending| pending.is_long) {
            self.settle().await?;
        }
        let path = asked.job.paths.first().cloned().unwrap_or_default();
        let permitted = self.begin(asked).await?.permitted().await;
        let mut is_wanted = permitted.is_ok();
        match permitted {
            // if it fails early, the process skips what still comes of it
            Ok(()) => self.pending.push_back(Pending { path, is_long: false, kind: one(Answer::Write) }),
            Err(error) => self.early = Some(Err(error)),
        }
        self.is_writing = true;
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
        self.is_writing = false;
        if let Some(answer) = self.early.take() {
            return self.answer(answer).await;
        }
        if let Some(session) = self.session.as_mut() {
            session.queue(Kind::End, bytes::Bytes::new());
        }
        if self.is_asked { self.settle().await } else { Ok(()) }
    }

    /// All that was written is on the disk when this returns.
    async fn sync(&mut self) -> Result<(), Stopped> {
        self.settle().await?;
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

/// A task with one answer.
fn one<A: Answered + 'static>(answer: fn(A) -> Answer) -> PendingKind {
    PendingKind::One(Box::new(move |outcome| A::answered(outcome).map(answer)))
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
