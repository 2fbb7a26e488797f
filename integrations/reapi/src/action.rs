//! One action, from its lease to its result.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bazel_remote_apis::build::bazel::remote::execution::v2 as reapi;
use bazel_remote_apis::google::protobuf::Any;
use bazel_remote_apis::google::rpc;
use prost::Message;
use telexec_executor::{Command, Descendants, ExecutionId};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Code;
use tracing::{info, warn};

use crate::cache::CacheError;
use crate::cas::{Cas, is_small};
use crate::digest::Digest;
use crate::execution::{End, Ran, run};
use crate::failure::{Failure, TargetError};
use crate::layout::{add_expected, below, lay_out};
use crate::outputs::{self, OutputError};
use crate::platform::Terms;
use crate::target::Target;
use crate::times::{Times, length};
use crate::tree::{Directories, digest_of};

const RESULT_TYPE: &str = "type.googleapis.com/build.bazel.remote.execution.v2.ActionResult";
/// What a server takes of a result, which it is sent with others in one message of 4 MiB.
const MAX_RESULT_BYTES: usize = 3 * 1024 * 1024;

/// What all actions share.
pub(crate) struct Worker {
    pub(crate) cas: Cas,
    pub(crate) directories: Directories,
    pub(crate) max_timeout: Duration,
    pub(crate) max_output_size: u64,
    /// What is done after results were reported.
    pub(crate) tasks: TaskTracker,
}

/// What the server is told of a lease that has ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: rpc::Status,
    pub(crate) result: Option<Any>,
}

impl Outcome {
    /// What it takes of a message, about.
    pub(crate) fn size(&self) -> usize {
        self.status.encoded_len() + self.result.as_ref().map_or(0, Message::encoded_len)
    }

    pub(crate) fn failed(failure: &Failure) -> Self {
        Self { status: failure.to_status(), result: None }
    }
}

/// An action with all that belongs to it.
struct Job {
    action: reapi::Action,
    command: reapi::Command,
    terms: Terms,
    timeout: Duration,
}

/// Runs the action of a lease on a target.
pub(crate) struct Runner {
    pub(crate) worker: Arc<Worker>,
    pub(crate) target: Arc<Target>,
    pub(crate) bot_id: String,
    pub(crate) lease_id: String,
    /// The server has taken the lease back, or this program ends.
    pub(crate) let_go: CancellationToken,
    /// This program ends.
    pub(crate) stop: CancellationToken,
}

impl Runner {
    /// To its end, whatever that is.
    pub(crate) async fn outcome(self, payload: Option<Any>) -> Outcome {
        let mut times = Times::begin();
        let outcome = match self.perform(payload, &mut times).await {
            Ok(outcome) => outcome,
            Err(failure) => {
                match &failure {
                    Failure::LetGo => info!(lease = self.lease_id, "let go"),
                    failure => warn!(lease = self.lease_id, error = failure.text(), "not run"),
                }
                if failure.is_of_target() {
                    // not one of the tasks that this program waits for in the end
                    let (stop, rest) = (self.stop.clone(), Arc::clone(&self.target).rest(failure.is_full()));
                    tokio::spawn(async move { stop.run_until_cancelled(rest).await });
                }
                Outcome::failed(&failure)
            }
        };
        info!(bot = self.bot_id, lease = self.lease_id, code = outcome.status.code, %times, "done");
        outcome
    }

    async fn perform(&self, payload: Option<Any>, times: &mut Times) -> Result<Outcome, Failure> {
        let job = self.unless_let_go(self.read(payload)).await?;
        let directory = ActionDirectory { runner: self, path: self.target.action_directory() };
        self.unless_let_go(self.lay_out(&job, &directory.path)).await?;
        times.inputs = Some(SystemTime::now());

        let ran = run(&self.target, self.command(&job, &directory.path)?, &self.let_go).await?;
        times.run = Some((ran.ended, ran.wall_time));

        let uploading = SystemTime::now();
        let end = ran.end;
        let mut result = self.unless_let_go(self.upload(&job, &directory.path, ran)).await?;
        times.upload = Some((uploading, SystemTime::now()));
        result.execution_metadata = Some(times.to_wire(&self.bot_id));
        finished(&job, end, &result)
    }

    async fn unless_let_go<T>(&self, step: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        self.let_go.run_until_cancelled(step).await.unwrap_or(Err(Failure::LetGo))
    }

    fn of_target(&self, source: impl Into<TargetError>) -> Failure {
        Failure::of_target(&self.target.name, source)
    }

    async fn read(&self, payload: Option<Any>) -> Result<Job, Failure> {
        let payload = payload.ok_or_else(|| Failure::Invalid("the lease has no payload".to_owned()))?;
        let action: reapi::Action = match payload.type_url.rsplit('/').next() {
            Some("build.bazel.remote.execution.v2.Action") => decode("an Action", payload.value.as_slice())?,
            Some("build.bazel.remote.execution.v2.Digest") => {
                let digest: reapi::Digest = decode("a Digest", payload.value.as_slice())?;
                self.message("an Action", Digest::try_from(&digest)?).await?
            }
            _ => {
                let text = format!("the lease's payload is {:?}: expected an Action or its Digest", payload.type_url);
                return Err(Failure::Invalid(text));
            }
        };
        let command: reapi::Command = self.message("a Command", digest_of(action.command_digest.as_ref())?).await?;
        let terms = self.target.platform.terms(&action, &command)?;
        let timeout = self.timeout(&action)?;
        Ok(Job { action, command, terms, timeout })
    }

    async fn message<T: Message + Default>(&self, what: &str, digest: Digest) -> Result<T, Failure> {
        if !is_small(&digest) {
            return Err(Failure::TooLarge(format!("{digest} is larger than 4 MiB: it is {what}")));
        }
        decode(what, self.worker.cas.fetch(digest).await?)
    }

    fn timeout(&self, action: &reapi::Action) -> Result<Duration, Failure> {
        let longest = self.worker.max_timeout;
        let Some(timeout) = action.timeout else { return Ok(longest) };
        let timeout = length(timeout).ok_or_else(|| Failure::Invalid("the timeout is negative".to_owned()))?;
        match timeout {
            Duration::ZERO => Ok(longest),
            timeout if timeout > longest => {
                let (asked, longest) = (humantime::format_duration(timeout), humantime::format_duration(longest));
                Err(Failure::Invalid(format!("the timeout of {asked} is longer than {longest} (--max-timeout)")))
            }
            timeout => Ok(timeout),
        }
    }

    async fn lay_out(&self, job: &Job, directory: &str) -> Result<(), Failure> {
        let Worker { cas, directories, .. } = &*self.worker;
        let mut layout = directories.layout(cas, digest_of(job.action.input_root_digest.as_ref())?).await?;
        add_expected(&mut layout, &job.command)?;
        let (session, cache) = self.target.session().await.map_err(|error| self.of_target(error))?;
        let owner = self.target.owner(job.terms.user.as_deref());
        match lay_out(directory, &layout, owner, &cache, cas, &session).await {
            Ok(()) => {
                session.give_back();
                Ok(())
            }
            Err(CacheError::Cas(error)) => Err(error.into()),
            Err(CacheError::File(error)) if error.is_unfit() => {
                Err(Failure::Unsatisfied(format!("the inputs cannot be laid out: {error}")))
            }
            Err(CacheError::File(error)) => Err(self.of_target(error)),
            Err(error @ CacheError::TooLarge { .. }) => Err(Failure::TooLarge(error.to_string())),
            Err(error @ CacheError::Unstable { .. }) => Err(Failure::Unsatisfied(error.to_string())),
        }
    }

    fn command(&self, job: &Job, directory: &str) -> Result<Command, Failure> {
        let Job { command, terms, timeout, .. } = job;
        let invalid = |error: telexec_executor::InvalidCommand| Failure::Invalid(error.to_string());
        let id: ExecutionId = uuid::Uuid::new_v4().to_string().parse().map_err(invalid)?;
        let variables = command.environment_variables.iter().map(|pair| (pair.name.clone(), pair.value.clone()));
        let mut builder = Command::argv(&command.arguments)
            .clear_environment(true)
            .envs(variables)
            .working_directory(below(directory, &command.working_directory))
            .timeout(*timeout)
            .limits(terms.limits)
            .descendants(Descendants::Kill)
            .labels(self.target.labels())
            .execution_id(id);
        if let Some(user) = &terms.user {
            builder = builder.user(user);
        }
        builder.build().map_err(invalid)
    }

    async fn upload(&self, job: &Job, directory: &str, ran: Ran) -> Result<reapi::ActionResult, Failure> {
        let cas = &self.worker.cas;
        let mut result = reapi::ActionResult { exit_code: ran.exit_code, ..Default::default() };
        (result.stdout_raw, result.stdout_digest) = outputs::stream(ran.stdout, cas).await?;
        (result.stderr_raw, result.stderr_digest) = outputs::stream(ran.stderr, cas).await?;
        if outputs::is_any(&job.command) {
            let sessions = self.target.sessions_of(job.terms.user.as_deref());
            let session = sessions.take().await.map_err(|error| self.of_target(error))?;
            let directory = below(directory, &job.command.working_directory);
            let limit = self.worker.max_output_size;
            match outputs::capture(&directory, &job.command, limit, &mut result, cas, &session).await {
                Ok(()) => session.give_back(),
                Err(OutputError::Cas(error)) => return Err(error.into()),
                // the agent answers: it is the output that cannot be read
                Err(OutputError::File(error)) if error.is_refusal() => {
                    return Err(Failure::Unsatisfied(format!("an output cannot be read: {error}")));
                }
                Err(OutputError::File(error)) => return Err(self.of_target(error)),
                Err(error @ OutputError::TooLarge(_)) => return Err(Failure::TooLarge(error.to_string())),
                Err(error @ OutputError::Unfit { .. }) => return Err(Failure::Unsatisfied(error.to_string())),
            }
        }
        Ok(result)
    }
}

/// What comes of an action that ran.
fn finished(job: &Job, end: End, result: &reapi::ActionResult) -> Result<Outcome, Failure> {
    let value = result.encode_to_vec();
    if value.len() > MAX_RESULT_BYTES {
        return Err(Failure::TooLarge("the result names more outputs than a message has room for".to_owned()));
    }
    let status = match end {
        End::Exited => rpc::Status::default(),
        End::TimedOut => {
            let message = format!("the action was ended at its timeout of {}", humantime::format_duration(job.timeout));
            rpc::Status { code: Code::DeadlineExceeded.into(), message, details: Vec::new() }
        }
    };
    Ok(Outcome { status, result: Some(Any { type_url: RESULT_TYPE.to_owned(), value }) })
}

fn decode<T: Message + Default>(what: &str, blob: impl bytes::Buf) -> Result<T, Failure> {
    T::decode(blob).map_err(|error| Failure::Invalid(format!("what should be {what} is none: {error}")))
}

/// Is removed in the end, after the result was reported.
struct ActionDirectory<'a> {
    runner: &'a Runner,
    path: String,
}

impl Drop for ActionDirectory<'_> {
    fn drop(&mut self) {
        let target = Arc::clone(&self.runner.target);
        let path = std::mem::take(&mut self.path);
        self.runner.worker.tasks.spawn(async move { target.remove(&path).await });
    }
}
