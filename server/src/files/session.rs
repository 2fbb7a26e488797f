//! What one process does for one caller, a task after another, each as far as it is permitted.

use bytes::Bytes;
use prost::Message;
use telexec_executor::{ExecutorError, FilePath};
use telexec_files::frame::{self, Kind};
use telexec_files::message::{Access, Answer, Digest, Events, Failed, Outcome, Question, Request, Task, Written};
use telexec_files::search::MAX_QUESTIONS;

use super::helper::Helper;
use super::judge::{Use, admit};
use super::search::content_bytes;
use super::watch::Decisions;
use crate::admission::Stack;
use crate::call::Call;
use crate::digest::hex;
use crate::policy::{FileAction, FileUse};

/// What a search was permitted last is decided again while that may still come: questions that it asks at once, and those
/// about what links lead to.
const RETAINED: usize = 2 * MAX_QUESTIONS;

/// A task, and what it is about as long as nobody has looked.
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) action: FileAction,
    pub(super) paths: Vec<FilePath>,
}

/// What comes of a task.
pub(super) enum Step {
    Data(Bytes),
    Hole(u64),
    /// The last one, except of the information before a file's content.
    Outcome(Outcome),
}

/// A process, for one caller.
pub(super) struct Session {
    stack: Stack,
    call: Call,
    helper: Helper,
    current: Current,
}

/// The task at hand.
#[derive(Default)]
struct Current {
    paths: Vec<(FileAction, FilePath)>,
    /// What was permitted of it.
    uses: Vec<Use>,
    /// Why not, when the process was told so.
    denied: Option<ExecutorError>,
    /// The content of a file follows.
    is_written: bool,
    /// It is a search; after its first question come many.
    search: Option<Searching>,
    /// It is a watch; after its first question come those about the directories below.
    watch: Option<Decisions>,
}

/// A search.
struct Searching {
    /// What is looked for in files; `None`: names are enough.
    regex: Option<String>,
}

impl Session {
    /// Starts a process for a caller, and gives it the first task.
    ///
    /// # Errors
    /// The limit of starts is reached, the process cannot be started, or whoever may not do that anyway learns so.
    pub(super) async fn start(stack: &Stack, call: &Call, user: Option<&str>, job: Job) -> Result<Self, ExecutorError> {
        admit(stack, call, &[job.action], job.paths.first().and_then(shortest)).await?;
        stack.start_limiter.count(&call.caller.identity)?;
        match Helper::start(&stack.engine, call.caller.identity.as_str(), user).await {
            Ok(helper) => {
                let mut this = Self { stack: stack.clone(), call: call.clone(), helper, current: Current::default() };
                this.begin(job);
                Ok(this)
            }
            Err(error) => {
                // whether there is such a user is not for everybody to know
                for path in &job.paths {
                    judge_unseen(stack, call, (job.action, path), user, &error).await?;
                }
                Err(error)
            }
        }
    }

    /// Gives the process its next task.
    pub(super) fn begin(&mut self, job: Job) {
        let mut request = request(&self.stack, job.task);
        let mut watch = None;
        let search = match &mut request.task {
            Some(Task::Search(task)) => {
                task.asks_each = self.stack.policy.is_some();
                Some(Searching { regex: task.regex.clone() })
            }
            Some(Task::Watch(task)) => {
                task.asks_each = self.stack.policy.is_some();
                watch = Some(Decisions::default());
                None
            }
            _ => None,
        };
        let paths = job.paths.into_iter().map(|path| (job.action, path)).collect();
        let is_written = matches!(request.task, Some(Task::Write(_)));
        self.current = Current { paths, is_written, search, watch, ..Current::default() };
        self.helper.queue(Kind::Request, request.encode_to_vec().into());
    }

    /// Has the process end; no task is unfinished.
    pub(super) fn close(self) {
        self.helper.finish();
    }

    /// The user that the process runs as.
    pub(super) fn user(&self) -> &str {
        self.helper.user()
    }

    /// Queues a frame of a file's content, which goes with [`next`](Self::next) at the latest.
    pub(super) fn queue(&mut self, kind: Kind, data: Bytes) {
        if kind == Kind::Data {
            self.stack.metrics.file_received(data.len() as u64);
            self.count(data.len() as u64);
        }
        self.helper.queue(kind, data);
    }

    /// Writes what is queued, if that is much.
    ///
    /// # Errors
    /// The process has ended.
    pub(super) async fn flush_much(&mut self) -> Result<(), ExecutorError> {
        if self.helper.is_due() { self.helper.flush().await } else { Ok(()) }
    }

    /// Waits until the process may be sent the content of a file.
    ///
    /// # Errors
    /// That is denied, or cannot be.
    pub(super) async fn permitted(&mut self) -> Result<(), ExecutorError> {
        if !asks(&self.stack) {
            return Ok(());
        }
        self.helper.flush().await?;
        while self.current.uses.is_empty() {
            let frame = self.helper.next().await?;
            match frame.kind {
                Kind::Question => self.answer(&frame.data).await?,
                Kind::Answer => return Err(self.refused(&frame.data).await),
                _ => return Err(unexpected()),
            }
        }
        Ok(())
    }

    /// What comes next of the task.
    ///
    /// # Errors
    /// It is denied, or was by now; it failed; or the process has ended.
    pub(super) async fn next(&mut self) -> Result<Step, ExecutorError> {
        let permission = self.current.uses.last().map(|used| std::sync::Arc::clone(used.permission()));
        let step = match permission {
            Some(permission) => permission.during(self.step()).await,
            None => self.step().await,
        };
        if let Err(error) = &step {
            self.current.uses.drain(..).for_each(|used| used.failed(error));
        }
        step
    }

    async fn step(&mut self) -> Result<Step, ExecutorError> {
        loop {
            let Some(frame) = self.helper.advance().await? else { continue };
            match frame.kind {
                Kind::Data => {
                    self.stack.metrics.file_sent(frame.data.len() as u64);
                    self.count(frame.data.len() as u64);
                    return Ok(Step::Data(frame.data));
                }
                Kind::Hole => return frame::hole(&frame.data).map(Step::Hole).map_err(|_| unexpected()),
                Kind::Question => self.answer(&frame.data).await?,
                Kind::Answer => return self.outcome(&frame.data).await.map(Step::Outcome),
                Kind::Request | Kind::End | Kind::Verdict | Kind::Report => return Err(unexpected()),
            }
        }
    }

    /// The outcome of a task that has no other steps.
    ///
    /// # Errors
    /// As of [`next`](Self::next).
    pub(super) async fn finish(&mut self) -> Result<Outcome, ExecutorError> {
        match self.next().await? {
            Step::Outcome(outcome) => Ok(outcome),
            Step::Data(_) | Step::Hole(_) => Err(unexpected()),
        }
    }

    async fn outcome(&mut self, data: &[u8]) -> Result<Outcome, ExecutorError> {
        let answer = Answer::decode(data).map_err(|_| unexpected())?;
        let outcome = answer.outcome.ok_or_else(unexpected)?;
        match outcome {
            Outcome::Failed(failed) => Err(self.failure(failed).await),
            Outcome::Watching(_) => Ok(outcome),
            Outcome::Events(mut events) => {
                self.permitted_events(&mut events)?;
                Ok(Outcome::Events(events))
            }
            Outcome::Denied(_) => Err(self.current.denied.take().unwrap_or_else(unexpected)),
            Outcome::Written(Written { is_other: true, .. }) | Outcome::Read(Digest { is_other: true, .. }) => {
                let path = self.current.paths.pop().map(|(_, path)| path).unwrap_or_default();
                Err(ExecutorError::Corrupted { path })
            }
            outcome => {
                if let Outcome::Found(_) = outcome {
                    // what was permitted before is sent only if it is permitted now
                    self.current.uses.iter().try_for_each(|used| used.permission().check())?;
                }
                self.report(&outcome);
                Ok(outcome)
            }
        }
    }

    /// Why there is an answer where none was due.
    async fn refused(&mut self, data: &[u8]) -> ExecutorError {
        let error = self.outcome(data).await.err().unwrap_or_else(unexpected);
        self.current.uses.drain(..).for_each(|used| used.failed(&error));
        error
    }

    /// What failed before anything was permitted is for nobody to know who may not do it anyway.
    async fn failure(&mut self, failed: Failed) -> ExecutorError {
        let error = ExecutorError::File(failed.into());
        if self.current.uses.is_empty() {
            let user = Some(self.helper.user());
            for (action, path) in &self.current.paths {
                if let Err(denied) = judge_unseen(&self.stack, &self.call, (*action, path), user, &error).await {
                    return denied;
                }
            }
        }
        error
    }

    /// Decides about a file.
    async fn answer(&mut self, question: &[u8]) -> Result<(), ExecutorError> {
        let question = Question::decode(question).map_err(|_| unexpected())?;
        let action = match question.access() {
            Access::Read => FileAction::Read,
            Access::Write => FileAction::Write,
            Access::List => FileAction::List,
            Access::Watch => FileAction::Watch,
        };
        if self.current.watch.is_some() && !self.current.uses.is_empty() {
            let verdict = u8::from(self.permitted_below(question.path)?);
            self.helper.queue(Kind::Verdict, Bytes::from(vec![verdict]));
            return Ok(());
        }
        let user = Some(self.helper.user().to_owned());
        let file = FileUse { action, path: String::from_utf8(question.path).ok(), user };
        if question.is_part {
            let is_permitted = Use::permit_quietly(&self.stack, &self.call, file.clone()).is_ok();
            // one reason is enough
            if is_permitted || self.current.denied.is_some() {
                self.helper.queue(Kind::Verdict, Bytes::from(vec![u8::from(is_permitted)]));
                return Ok(());
            }
        }
        let permitted = match &self.current.search {
            Some(_) if !self.current.uses.is_empty() => Use::permit_quietly(&self.stack, &self.call, file),
            Some(Searching { regex: Some(regex) }) => {
                Use::permit_search(&self.stack, &self.call, file, regex.clone()).await
            }
            _ => Use::permit(&self.stack, &self.call, file).await,
        };
        let verdict = match permitted {
            Ok(used) => {
                if self.current.search.is_some() && self.current.uses.len() > RETAINED {
                    // that of the search stays
                    self.current.uses.remove(1);
                }
                self.current.uses.push(used);
                1
            }
            // the caller is known no more
            Err(error) if self.current.search.is_some() && !matches!(error, ExecutorError::Denied { .. }) => {
                return Err(error);
            }
            Err(denied) => {
                self.current.denied = Some(denied);
                0
            }
        };
        self.helper.queue(Kind::Verdict, Bytes::from(vec![verdict]));
        // the content of a file goes with it, and the verdicts on what a search asks at once go together
        let goes_later = self.current.search.is_some() || verdict == 1 && self.current.is_written;
        if goes_later { Ok(()) } else { self.helper.flush().await }
    }

    /// Leaves out what has changed in directories that are denied by now.
    fn permitted_events(&mut self, events: &mut Events) -> Result<(), ExecutorError> {
        self.current.uses.iter().try_for_each(|used| used.permission().check())?;
        let mut permitted = Vec::new();
        for event in std::mem::take(&mut events.events) {
            if event.below.is_empty() || self.permitted_below(event.below.clone())? {
                permitted.push(event);
            }
        }
        events.events = permitted;
        Ok(())
    }

    /// Whether a directory below the one that is watched may be watched too.
    fn permitted_below(&mut self, directory: Vec<u8>) -> Result<bool, ExecutorError> {
        let Some(decisions) = &mut self.current.watch else { return Err(unexpected()) };
        let policy = self.stack.policy.as_ref().map(|policy| std::sync::Arc::clone(&policy.current().digest));
        if let Some(known) = decisions.of(policy, &directory) {
            return Ok(known);
        }
        let user = Some(self.helper.user().to_owned());
        let file = FileUse { action: FileAction::Watch, path: String::from_utf8(directory.clone()).ok(), user };
        let is_permitted = match Use::permit_quietly(&self.stack, &self.call, file) {
            Ok(_) => true,
            Err(ExecutorError::Denied { .. }) => false,
            // the caller is known no more
            Err(error) => return Err(error),
        };
        decisions.add(directory, is_permitted);
        Ok(is_permitted)
    }

    fn count(&mut self, bytes: u64) {
        if let Some(used) = self.current.uses.last_mut() {
            used.bytes += bytes;
        }
    }

    fn report(&mut self, outcome: &Outcome) {
        if let Outcome::Found(found) = outcome {
            // there is more to come
            let bytes = content_bytes(found);
            self.stack.metrics.file_sent(bytes);
            if let Some(used) = self.current.uses.first_mut() {
                used.bytes += bytes;
            }
            return;
        }
        let sha256 = match outcome {
            // its content comes
            Outcome::Info(_) if self.is_read() => return,
            Outcome::Read(read) => Some(hex(&read.sha256)),
            Outcome::Written(written) => Some(hex(&written.sha256)),
            _ => None,
        };
        self.current.uses.drain(..).for_each(|used| used.done(sha256.clone()));
    }

    fn is_read(&self) -> bool {
        self.current.paths.iter().any(|(action, _)| *action == FileAction::Read)
    }
}

/// What a process is asked for.
pub(super) fn request(stack: &Stack, task: Task) -> Request {
    Request { asks: asks(stack), task: Some(task), asks_below: stack.policy.is_some() }
}

/// Whether each use of a file is decided, or recorded.
pub(super) fn asks(stack: &Stack) -> bool {
    stack.policy.is_some() || stack.audit.is_kept()
}

/// Decides about a file that no process has looked at, by the path that was asked for: whoever may use it learns of `error`.
async fn judge_unseen(
    stack: &Stack,
    call: &Call,
    (action, path): (FileAction, &FilePath),
    user: Option<&str>,
    error: &ExecutorError,
) -> Result<(), ExecutorError> {
    if asks(stack) {
        let file = FileUse { action, path: shortest(path), user: user.map(str::to_owned) };
        Use::permit(stack, call, file).await?.failed(error);
    }
    Ok(())
}

/// The shortest form of an absolute path, by its text alone.
fn shortest(path: &FilePath) -> Option<String> {
    let text = std::str::from_utf8(path.as_bytes()).ok()?.strip_prefix('/')?;
    let mut names = Vec::new();
    for name in text.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    Some(format!("/{}", names.join("/")))
}

pub(super) fn unexpected() -> ExecutorError {
    ExecutorError::Internal("the process for files said what was not asked".to_owned())
}
