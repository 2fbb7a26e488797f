//! `ServeSftp`: an SFTP session, by one process.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use prost::Message;
use telexec_executor::{ExecutorError, InvalidCommand};
use telexec_files::frame::{Kind, MAX_BYTES};
use telexec_files::message::{Access, Answer, Done, Outcome, Question, Report, Task};
use telexec_proto::convert::error_to_status;
use telexec_proto::v1::{ServeSftpRequest, ServeSftpResponse, serve_sftp_request};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, Streaming};
use tracing::Instrument;

use super::frames::Frame;
use super::helper::Helper;
use super::judge::{Use, admit};
use super::session::{request, unexpected};
use crate::admission::Stack;
use crate::audit::FileOutcome;
use crate::call::Call;
use crate::call::events::Responses;
use crate::call::status::invalid;
use crate::policy::{FileAction, FileUse};

/// Pieces that wait for the caller.
const MAX_WAITING: usize = 4;
/// Reasons of denials that the caller is told.
const MAX_NOTICES: usize = 20;

/// Carries a session.
///
/// # Errors
/// The first request is malformed, or the process cannot be started.
pub(super) async fn serve(
    stack: Stack,
    call: Call,
    mut requests: Streaming<ServeSftpRequest>,
) -> Result<Responses<ServeSftpResponse>, Status> {
    let first = requests.next().await.transpose()?.and_then(|first| first.step);
    let Some(serve_sftp_request::Step::Header(header)) = first else {
        return Err(invalid(InvalidCommand::new("header", "is missing: it must be the first")));
    };
    let failed = |error: ExecutorError| error_to_status(&error);
    admit(&stack, &call, &FileAction::TRANSFER, None).await.map_err(failed)?;
    stack.start_limiter.count(&call.caller.identity).map_err(failed)?;
    let user = Some(header.user.as_str()).filter(|user| !user.is_empty());
    let mut helper = Helper::start(&stack.engine, call.caller.identity.as_str(), user).await.map_err(failed)?;
    let request = request(&stack, Task::Sftp(Done {}));
    helper.queue(Kind::Request, request.encode_to_vec().into());
    let (answers, waiting) = mpsc::channel(MAX_WAITING);
    let policy = current(&stack);
    let tunnel = Tunnel { stack, call, helper, requests, answers, policy, notices: 0 };
    let task = AbortOnDropHandle::new(tokio::spawn(tunnel.run().in_current_span()));
    let responses = stream::unfold((waiting, task), async |(mut waiting, task)| {
        let answer = waiting.recv().await?;
        Some((answer, (waiting, task)))
    });
    Ok(responses.boxed())
}

struct Tunnel {
    stack: Stack,
    call: Call,
    helper: Helper,
    requests: Streaming<ServeSftpRequest>,
    answers: mpsc::Sender<Result<ServeSftpResponse, Status>>,
    /// The policy that permitted all that is open.
    policy: Option<Arc<str>>,
    notices: usize,
}

impl Tunnel {
    async fn run(mut self) {
        match self.carry().await {
            Ok(()) => self.helper.finish(),
            Err(error) => drop(self.answers.send(Err(error_to_status(&error))).await),
        }
    }

    /// Carries both ways until the end.
    async fn carry(&mut self) -> Result<(), ExecutorError> {
        let mut is_over = false;
        loop {
            let is_idle = !is_over && self.helper.is_written();
            tokio::select! {
                biased;
                frame = self.helper.advance() => if let Some(frame) = frame? && self.hear(frame).await? {
                    return Ok(());
                },
                request = self.requests.next(), if is_idle => is_over = self.take(request.transpose())?,
            }
        }
    }

    /// Returns whether it was the last one.
    fn take(&mut self, request: Result<Option<ServeSftpRequest>, Status>) -> Result<bool, ExecutorError> {
        self.call.reservation.release();
        let request = request.map_err(|status| telexec_proto::convert::error_from_status(&status))?;
        match request.map(|request| request.step) {
            Some(Some(serve_sftp_request::Step::Data(mut data))) => {
                while !data.is_empty() {
                    self.helper.queue(Kind::Data, data.split_to(data.len().min(MAX_BYTES)));
                }
                Ok(false)
            }
            Some(_) => Err(InvalidCommand::new("step", "must be data, after the header").into()),
            None => {
                self.helper.queue(Kind::End, Bytes::new());
                Ok(true)
            }
        }
    }

    /// Returns whether the session has ended.
    async fn hear(&mut self, frame: Frame) -> Result<bool, ExecutorError> {
        match frame.kind {
            Kind::Data => {
                self.check()?;
                let sent = self.answers.send(Ok(ServeSftpResponse { data: frame.data, notice: String::new() })).await;
                // the caller is gone
                Ok(sent.is_err())
            }
            Kind::Question => {
                let question = Question::decode(&frame.data[..]).map_err(|_| unexpected())?;
                let verdict = self.judge(question).await?;
                self.helper.queue(Kind::Verdict, Bytes::from(vec![u8::from(verdict)]));
                Ok(false)
            }
            Kind::Report => {
                self.report(Report::decode(&frame.data[..]).map_err(|_| unexpected())?);
                Ok(false)
            }
            Kind::Answer => match Answer::decode(&frame.data[..]) {
                Ok(Answer { outcome: Some(Outcome::Done(_)) }) => Ok(true),
                _ => Err(unexpected()),
            },
            Kind::Hole | Kind::Request | Kind::End | Kind::Verdict => Err(unexpected()),
        }
    }

    async fn judge(&mut self, question: Question) -> Result<bool, ExecutorError> {
        let action = match question.access() {
            Access::Read => FileAction::Read,
            Access::Write => FileAction::Write,
            Access::List => FileAction::List,
            Access::Watch => FileAction::Watch,
        };
        let path = String::from_utf8(question.path.clone()).ok();
        let file = FileUse { action, path, user: Some(self.helper.user().to_owned()) };
        if question.is_part && Use::permit_quietly(&self.stack, &self.call, file.clone()).is_ok() {
            return Ok(true);
        }
        match Use::permit(&self.stack, &self.call, file).await {
            Ok(used) => {
                used.reported_elsewhere();
                Ok(true)
            }
            Err(error @ (ExecutorError::Denied { .. } | ExecutorError::Exhausted { .. })) => {
                self.notify(&error).await;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn notify(&mut self, denied: &ExecutorError) {
        if self.notices < MAX_NOTICES {
            self.notices += 1;
            let notice = ServeSftpResponse { data: Bytes::new(), notice: denied.to_string() };
            // a caller that is gone is noticed elsewhere
            let _ = self.answers.send(Ok(notice)).await;
        }
    }

    /// A file was closed.
    fn report(&self, report: Report) {
        self.stack.metrics.file_sent(report.bytes_read);
        self.stack.metrics.file_received(report.bytes_written);
        let path = String::from_utf8(report.path).ok();
        for (action, bytes) in [(FileAction::Read, report.bytes_read), (FileAction::Write, report.bytes_written)] {
            if bytes > 0 {
                let file = FileUse { action, path: path.clone(), user: Some(self.helper.user().to_owned()) };
                self.stack.audit.record_file(&self.call, &file, FileOutcome { bytes, ..FileOutcome::default() });
            }
        }
    }

    /// Whether what is open is still permitted. Which files these are only the process knows: another policy ends all.
    fn check(&self) -> Result<(), ExecutorError> {
        self.call.caller.check_open_call()?;
        match current(&self.stack) == self.policy {
            true => Ok(()),
            false => Err(ExecutorError::FailedPrecondition {
                reason: "the policy has changed: begin the session again".to_owned(),
            }),
        }
    }
}

/// The digest of the policy in use.
fn current(stack: &Stack) -> Option<Arc<str>> {
    stack.policy.as_ref().map(|policy| Arc::clone(&policy.current().digest))
}
