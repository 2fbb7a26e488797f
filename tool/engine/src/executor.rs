//! The engine as an [`Executor`].

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream;
use telexec_executor::{
    Attach, Command, Execution, ExecutionId, ExecutionInfo, ExecutionState, Executor, ExecutorError, Input, ListPage,
    ListQuery, Signal, SpawnError, Started, TerminalSize,
};
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError, oneshot};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument, debug, info_span};

use crate::binding::Binding;
use crate::grant::{Allowance, ConnectionState, Grant};
use crate::observer::Observers;
use crate::output::pump::Totals;
use crate::output::transcript::Reader;
use crate::process::keeper::Keeper;
use crate::process::requirements;
use crate::registry::{Owner, Record, Reserved};
use crate::shared::Shared;
use crate::supervise::Supervisor;
use crate::wait::until;
use crate::{ContainmentKind, LocalConfig};

/// What a command resolves to on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedCommand {
    /// The name of the user.
    pub user: String,
    /// The user's id.
    pub uid: u32,
    /// Where the command would start.
    pub working_directory: String,
    /// What would run shell text; `None`: it is a program without a shell.
    pub shell: Option<String>,
    /// The variables of its environment that its request does not set.
    pub variables: Vec<String>,
    /// Nothing that it executes gives it privileges.
    pub no_new_privileges: bool,
}

/// Runs commands on this machine, as the user of this process or another one.
///
/// A command starts clean: file descriptors 0 to 2 only, a session of its own, default signal dispositions, umask 022,
/// default resource limits and priorities as far as this process may set them, no ambient capabilities, and none of
/// this process's environment. Ending one ends all of its processes.
///
/// Executions belong to identities, and so do their ids: what [`acting_as`](Self::acting_as) gives starts and finds
/// those of one identity. A new engine acts as the empty identity, which is all that a program for itself needs.
///
/// Clones share one engine. Dropping the last one ends nothing by itself: every [`Execution`] ends its own command when
/// it is dropped. It needs a Tokio runtime with I/O and time enabled, and a process that neither ignores SIGCHLD nor
/// reaps children that it did not start.
#[derive(Clone)]
pub struct LocalExecutor {
    pub(crate) shared: Arc<Shared>,
    /// Whose executions it starts and finds.
    identity: Arc<str>,
}

/// What a request leads to.
enum Reservation {
    /// A command that is to be started, and may be.
    New(Arc<Record>, TaskTrackerToken, OwnedSemaphorePermit),
    /// An execution that was asked for before.
    Repeated(Execution),
}

impl LocalExecutor {
    /// An engine on this machine.
    ///
    /// # Errors
    /// The machine lacks `/proc` or a system call that is needed, the state directory cannot be made or used, or does
    /// not answer within a minute, a user that commands may run as is not there, threads cannot be made, `/dev/null` cannot be opened, or the containment that the
    /// configuration requires does not work here.
    pub fn new(config: LocalConfig) -> io::Result<Self> {
        requirements::check(config.keeper.as_ref().and_then(Keeper::pid))?;
        Ok(Self { identity: Arc::default(), shared: Arc::new(Shared::new(config)?) })
    }

    /// How the processes of an execution are kept together, as a trial has shown to work.
    pub fn containment(&self) -> ContainmentKind {
        self.shared.cgroups.kind()
    }

    /// Which limits a command may have here, by their names in a request, such as `limits.cpus`.
    pub fn limits(&self) -> Vec<&'static str> {
        self.shared.cgroups.limits()
    }

    /// The kernel divides the processors between identities by their [shares](crate::Share), rather than between executions.
    pub fn divides_processors(&self) -> bool {
        self.shared.cgroups.divides_processors()
    }

    /// The user that commands run as if they name none: the one of this process, or [`DYNAMIC_USER`](crate::DYNAMIC_USER).
    pub fn user(&self) -> &str {
        self.shared.defaults.user()
    }

    /// The same engine, acting as this identity: what it starts belongs to that, and ids are looked up among those of
    /// that identity. What it lists is a matter of the query, [`ListQuery::identity`].
    pub fn acting_as(&self, identity: &str) -> Self {
        Self { shared: Arc::clone(&self.shared), identity: identity.into() }
    }

    /// The identities that have an execution with this id, no matter which one this acts as.
    pub fn owners(&self, id: &ExecutionId) -> Vec<String> {
        self.shared.registry.owners(id)
    }

    /// Whether an execution of the identity that this acts as is bound to its caller, with a
    /// [grace](Command::disconnect_grace) for lost connections.
    pub fn waits_for_caller(&self, id: &ExecutionId) -> bool {
        self.record(id).is_ok_and(|record| record.waits_for_caller && !record.transcript.is_promoted())
    }

    /// Where and as whom a command would run. May take long, or forever, where users are looked up over a network.
    ///
    /// # Errors
    /// There is no such user, or it cannot be looked up.
    pub fn resolve(&self, command: &Command) -> Result<ResolvedCommand, SpawnError> {
        let defaults = &self.shared.defaults;
        let account = defaults.account(command)?;
        let base = defaults.base(command, &account);
        let shell = defaults.shell_of(command, &account, &base);
        let working_directory = defaults.working_directory(command, &account);
        let variables = base.into_keys().map(str::to_owned).collect();
        let no_new_privileges = defaults.no_new_privileges(command, &account);
        let (user, uid) = (account.name, account.uid);
        Ok(ResolvedCommand { user, uid, working_directory, shell, variables, no_new_privileges })
    }

    /// Whether the command names a user who has to be looked up, which may take long.
    pub fn names_user(&self, command: &Command) -> bool {
        self.shared.defaults.named_user(command).is_some()
    }

    /// Whether commands may run so on this machine: as one of [`LocalConfig::command_users`].
    ///
    /// # Errors
    /// [`telexec_executor::ExecutorError::Denied`].
    pub fn check_user(&self, place: &ResolvedCommand) -> Result<(), ExecutorError> {
        self.shared.command_users.check(&place.user, place.uid, place.user == crate::DYNAMIC_USER)
    }

    /// The shell that would read its text; `None`: it is a program without a shell. Never waits: whether there is such a
    /// shell is not looked up, nor for a user that the command names what
    /// [`USER_SHELL`](telexec_executor::USER_SHELL) stands for.
    pub fn shell(&self, command: &Command) -> Option<String> {
        self.shared.defaults.known_shell(command)
    }

    /// The time that a command would get at most; `None`: as long as it takes.
    pub fn timeout(&self, command: &Command) -> Option<Duration> {
        self.shared.timeout(command, &Allowance::default())
    }

    /// How many executions run now.
    pub fn running(&self) -> usize {
        self.shared.registry.running()
    }

    /// Starts a command as [`Executor::execute`] does, with what was granted to it, for the identity of the grant.
    ///
    /// # Errors
    /// As for `execute`.
    pub async fn execute_granted(&self, command: Command, grant: Grant) -> Result<Execution, ExecutorError> {
        let Grant { identity, id, allowance, trace, connection, observers, stdin, internal_of, repeats } = grant;
        let mut observers = Observers::new(observers);
        let command = match trace {
            Some(trace) => command.with_trace(Some(trace)),
            None => command,
        };
        let owner = Owner { identity, concurrent: allowance.concurrent, internal_of, repeats };
        let id = id.unwrap_or_else(ExecutionId::generate);
        let reserved = tokio::select! {
            biased;
            reserved = self.reserve(&command, &owner, id, &connection) => reserved,
            // nothing has been started for it
            () = until(command.deadline()) => Err(ExecutorError::DeadlineExceeded),
        };
        let (record, tracked, permit) = match reserved {
            Ok(Reservation::New(record, tracked, permit)) => (record, tracked, permit),
            Ok(Reservation::Repeated(execution)) => {
                observers.repeated();
                return Ok(execution);
            }
            Err(error) => {
                observers.not_started(&error);
                return Err(error);
            }
        };
        let span = span(&record, &command);
        span.in_scope(|| self.log_request(&command));

        let binding = Binding::owner(&record, command.on_disconnect(), self.disconnect_grace(&command), connection);
        let (started, start) = oneshot::channel();
        let (shared, abandoned) = (Arc::clone(&self.shared), self.shared.hurry.child_token());
        let (transcript, mut command) = (Arc::clone(&record.transcript), command);
        let whole = command.take_start();
        let (permit, forced, totals) = (Some(permit), OnceLock::new(), Totals::new());
        let first_timeout = shared.timeout(&command, &allowance);
        let supervisor = Supervisor {
            shared,
            record,
            command,
            allowance,
            first_timeout,
            observers,
            abandoned,
            tracked,
            permit,
            forced,
            totals,
        };
        // a task of its own: the command is ended in an orderly way also when this is no longer awaited
        tokio::spawn(supervisor.run(whole, stdin, started).instrument(span));

        let started = start.await.map_err(|_| ExecutorError::Internal("the command's task ended early".into()))??;
        // the supervisor keeps its deadline
        Ok(follow(Reader::owner(transcript), binding, started, None))
    }

    /// Follows an execution as [`Executor::attach`] does, for a call over this connection.
    ///
    /// # Errors
    /// As for `attach`.
    pub async fn attach_over(
        &self,
        id: &ExecutionId,
        from: Attach,
        connection: ConnectionState,
    ) -> Result<Execution, ExecutorError> {
        let record = self.record(id)?;
        let started = record.start().await.ok_or_else(|| ExecutorError::NotFound(id.clone()))?;
        let end = record.transcript.end();
        if from.position > end {
            return Err(ExecutorError::OutOfRange { field: "position".into(), end });
        }
        let grace = self.shared.disconnect_grace(from.on_disconnect, from.disconnect_grace);
        let binding = Binding::follower(&record, from.on_disconnect, grace, connection);
        Ok(follow_later(&record, from.position, binding, started, None))
    }

    fn disconnect_grace(&self, command: &Command) -> Duration {
        self.shared.disconnect_grace(command.on_disconnect(), command.disconnect_grace())
    }

    /// Reserves a record for the command, under this id if it names none itself; or finds what was asked for before.
    async fn reserve(
        &self,
        command: &Command,
        owner: &Owner,
        id: ExecutionId,
        connection: &ConnectionState,
    ) -> Result<Reservation, ExecutorError> {
        let grace = self.disconnect_grace(command);
        loop {
            let program = self.shared.defaults.program(command);
            let file = || self.shared.spool.file(&owner.identity);
            match self.shared.registry.reserve(command, program, owner, &id, grace, file)? {
                Reserved::New(record) => {
                    let tracked = self.shared.tracker.token();
                    let permit = self.permit().inspect_err(|_| self.shared.registry.release(&record))?;
                    return Ok(Reservation::New(record, tracked, permit));
                }
                // if that one could not be started, this one is reserved
                Reserved::Repeated(record) => {
                    // before it has started: the first caller may go while it does
                    let binding = Binding::repeat(&record, command.on_disconnect(), grace, connection.clone());
                    if let Some(started) = record.start().await {
                        let execution = follow_later(&record, 0, binding, started, command.deadline());
                        return Ok(Reservation::Repeated(execution));
                    }
                }
                Reserved::Duplicate(record) => {
                    record.start().await;
                    // if that one has ended meanwhile, this one is reserved
                    if let Some(info) = record.info(Instant::now()).await
                        && info.state == ExecutionState::Running
                    {
                        return Err(ExecutorError::AlreadyRunning(Box::new(info)));
                    }
                }
            }
        }
    }

    /// # Errors
    /// [`ExecutorError::NotFound`].
    fn record(&self, id: &ExecutionId) -> Result<Arc<Record>, ExecutorError> {
        self.shared.registry.get(&self.identity, id)
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit, ExecutorError> {
        Arc::clone(&self.shared.permits).try_acquire_owned().map_err(|error| match error {
            TryAcquireError::Closed => ExecutorError::ShuttingDown,
            TryAcquireError::NoPermits => ExecutorError::Exhausted {
                reason: format!(
                    "the agent already has {} running, the limit (max_executions)",
                    self.shared.max_executions
                ),
                retry_after: Some(Duration::from_secs(1)),
            },
        })
    }

    fn log_request(&self, command: &Command) {
        let text = command.text();
        match self.shared.log_commands {
            true => tracing::info!(command = text, "requested"),
            false => debug!(command = text, "requested"),
        }
    }
}

#[async_trait]
impl Executor for LocalExecutor {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        self.execute_granted(command, Grant { identity: self.identity.to_string(), ..Grant::default() }).await
    }

    async fn attach(&self, id: &ExecutionId, from: Attach) -> Result<Execution, ExecutorError> {
        self.attach_over(id, from, ConnectionState::default()).await
    }

    async fn write_input(&self, id: &ExecutionId, input: Input) -> Result<u64, ExecutorError> {
        let Some(sender) = self.record(id)?.channels()?.input else {
            let reason = "the command does not accept input, since it was started without accepts_input";
            return Err(ExecutorError::FailedPrecondition { reason: reason.into() });
        };
        sender.write(input).await
    }

    async fn resize(&self, id: &ExecutionId, size: TerminalSize) -> Result<(), ExecutorError> {
        let Some(terminal) = self.record(id)?.channels()?.terminal else {
            return Err(ExecutorError::FailedPrecondition { reason: "the command has no terminal".into() });
        };
        terminal.resize(size).map_err(|error| ExecutorError::Internal(format!("the terminal was not resized: {error}")))
    }

    async fn signal(&self, id: &ExecutionId, signal: Signal) -> Result<ExecutionInfo, ExecutorError> {
        let record = self.record(id)?;
        if let Some(containment) = record.containment() {
            if signal == Signal::KILL {
                record.kill.cancel();
            }
            containment.signal(signal).await;
        }
        record.info(Instant::now()).await.ok_or_else(|| ExecutorError::NotFound(id.clone()))
    }

    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
        let record = self.record(id)?;
        record.info(Instant::now()).await.ok_or_else(|| ExecutorError::NotFound(id.clone()))
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError> {
        let (records, next_page_token) = self.shared.registry.list(&query)?;
        let mut executions = Vec::with_capacity(records.len());
        let asked = Instant::now();
        for record in records {
            executions.extend(record.info(asked).await.map(without_receipt));
        }
        Ok(ListPage { executions, next_page_token })
    }
}

/// They are long, and for those who ask for one execution.
fn without_receipt(mut info: ExecutionInfo) -> ExecutionInfo {
    info.exited.iter_mut().for_each(|exited| exited.receipt = None);
    info
}

/// What every line of the log about an execution says.
fn span(record: &Record, command: &Command) -> tracing::Span {
    use tracing::field::Empty;

    let (id, identity) = (&record.id, record.identity());
    let span = info_span!("execution", %id, identity, trace_id = Empty, span_id = Empty, parent_span_id = Empty);
    if let Some(trace) = command.trace() {
        span.record("trace_id", trace.trace_id());
        span.record("span_id", trace.span_id());
        if let Some(parent) = trace.parent_id() {
            span.record("parent_span_id", parent);
        }
    }
    span
}

/// The events from a position on, for a call that has not started the command.
fn follow_later(
    record: &Arc<Record>,
    position: u64,
    mut binding: Binding,
    started: Started,
    deadline: Option<Instant>,
) -> Execution {
    let transcript = Arc::clone(&record.transcript);
    let mut reader = Reader::at(transcript, position);
    binding.take_over(Some(position)).into_iter().for_each(|generation| reader.succeed(generation));
    follow(reader, binding, started, deadline)
}

/// The events that a reader finds, until the deadline of its call. The binding ends with them.
fn follow(reader: Reader, binding: Binding, started: Started, deadline: Option<Instant>) -> Execution {
    let events = stream::unfold(Some((reader, binding)), move |state| async move {
        let (mut reader, mut binding) = state?;
        let event = loop {
            tokio::select! {
                biased;
                () = binding.vacated() => {
                    let generation = binding.take_over(Some(reader.position()));
                    generation.into_iter().for_each(|generation| reader.succeed(generation));
                }
                event = reader.next() => break event,
                () = until(deadline) => return Some((Err(ExecutorError::DeadlineExceeded), None)),
            }
        };
        let state = (!event.is_last()).then_some((reader, binding));
        Some((Ok(event), state))
    });
    Execution::new(started, events)
}
