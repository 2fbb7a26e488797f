//! One execution, from its start to the end of its last process: a straight line in one task.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use rustix::process::Pid;
use telexec_executor::{Command, Descendants, ExecutorError, ExitCause, Exited, Signal, Started};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{debug, error, info, warn};

use crate::boot_time::instant;
use crate::containment::KillOnDrop;
use crate::ending::Ending;
use crate::grant::Allowance;
use crate::linger::linger;
use crate::observer::{MainProcess, Observers};
use crate::output::pump::{Pump, Totals};
use crate::process::control::Ended;
use crate::recovery::unfinished::save_end;
use crate::registry::{Channels, Record};
use crate::shared::Shared;
use crate::start::{ForKeeper, Main, NotStarted, Starter, prepare};
use crate::streams::input::{self, InputReceiver, InputWriter};
use crate::streams::source::Source;
use crate::streams::{self, Ends, Streams};
use crate::wait::{RETRY_DELAY, until};

/// After the end: how long input may be on its way.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a reader that does not read is waited for after its call's deadline.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// What one execution is made of.
pub(crate) struct Supervisor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) record: Arc<Record>,
    /// Without what only its start needs.
    pub(crate) command: Command,
    pub(crate) allowance: Allowance,
    /// Its timeout by the settings of its start.
    pub(crate) first_timeout: Option<Duration>,
    /// Get every event.
    pub(crate) observers: Observers,
    /// Cancelled when the command no longer waits for the caller, not even to read its output.
    pub(crate) abandoned: CancellationToken,
    /// Held until no process is left but those that were asked to stay.
    pub(crate) tracked: TaskTrackerToken,
    /// Held until no process is left.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// Why it is ended, if it does not end by itself.
    pub(crate) forced: OnceLock<ExitCause>,
    /// What was read of its output.
    pub(crate) totals: Totals,
}

/// An execution whose main process has ended, and whose output was read as far as it will be.
pub(crate) struct Concluded {
    pub(crate) ending: Ending,
    /// What survivors may still write to.
    pub(crate) rests: Vec<Source>,
    pub(crate) inputs: Option<InputReceiver>,
}

impl Supervisor {
    /// Runs the execution of this command. `started` gets its start, or why there was none. A panic on the way ends the
    /// execution, which is an end like any other to all who wait for one.
    pub(crate) async fn run(
        mut self,
        command: Command,
        stdin: Option<OwnedFd>,
        started: oneshot::Sender<Result<Started, ExecutorError>>,
    ) {
        let mut main = None;
        let supervised = AssertUnwindSafe(self.supervise(command, stdin, &mut main, started)).catch_unwind().await;
        match (main, supervised) {
            (Some(main), Ok(Some(concluded))) => self.finish(main, concluded).await,
            (Some(main), _) => {
                let concluded = self.settle(&main).await;
                self.finish(main, concluded).await;
            }
            // the caller has its answer
            (None, Ok(_)) => {}
            (None, Err(_)) => {
                self.report_failure(&ExecutorError::Internal("the start has failed by a fault of the agent".into()));
                self.shared.registry.release(&self.record);
            }
        }
    }

    /// Runs it to the end of its main process and its output. `None`: it did not start, and that was reported.
    async fn supervise(
        &mut self,
        command: Command,
        stdin: Option<OwnedFd>,
        running: &mut Option<Main>,
        started: oneshot::Sender<Result<Started, ExecutorError>>,
    ) -> Option<Concluded> {
        let mut started = Some(started);
        let mut answer = |result| drop(started.take().map(|started| started.send(result)));
        match self.start_and_follow(command, stdin, running, &mut answer).await {
            Ok(concluded) => return Some(concluded),
            Err(NotStarted::Failed(error)) => {
                self.report_failure(&error);
                self.shared.registry.release(&self.record);
                // the permit is free before the caller has its answer
                self.permit = None;
                answer(Err(error));
            }
            Err(NotStarted::GivenUp(error, late)) => {
                self.report_failure(&error);
                answer(Err(error));
                late.end().await;
                self.shared.registry.release(&self.record);
            }
        }
        None
    }

    /// Starts it, as `running`, and follows it to the end of its main process and its output.
    ///
    /// # Errors
    /// It did not start.
    async fn start_and_follow(
        &self,
        command: Command,
        stdin: Option<OwnedFd>,
        running: &mut Option<Main>,
        answer: &mut impl FnMut(Result<Started, ExecutorError>),
    ) -> Result<Concluded, NotStarted> {
        if command.receipt() && !self.observers.any_gives_receipt() {
            return Err(NotStarted::Failed(no_receipts()));
        }
        let checkpoint = self.checkpoint(&command).map_err(prepare)?;
        let Streams { ends, command_ends, held } =
            streams::open(&command, stdin, checkpoint.as_ref(), &self.shared.stream_threads).map_err(prepare)?;
        let (first, exited) = (command.stdin().clone(), CancellationToken::new());
        let (input, mut inputs) = command.accepts_input().then(input::channel).unzip();
        let Ends { stdin, stdout, stderr, terminal } = ends;
        let to_save = checkpoint.map(|checkpoint| self.to_save(checkpoint, &command, held));
        let output = self.carry_output(stdout, stderr, &exited);
        tokio::pin!(output);
        // polled before there is a process: the runtime then reports its streams in the order in which it writes to
        // them
        let _ = poll_fn(|context| Poll::Ready(output.as_mut().poll(context))).await;

        let (shared, record) = (&self.shared, &*self.record);
        let reference = self.observers.reference();
        let time_limit = self.first_timeout.map(|timeout| timeout.saturating_add(self.grace()));
        let for_keeper = ForKeeper { time_limit, reference, to_save };
        let starter = Starter {
            shared,
            record,
            deadline: self.command.deadline(),
            share: (!record.is_internal()).then(|| self.allowance.share.unwrap_or_default()),
        };
        let main = running.insert(starter.start(command, command_ends, for_keeper).await?);
        let start_time = main.start_time;
        let (user, working_directory) = (main.user.clone(), main.working_directory.clone());
        let info = MainProcess { pid: number(main.pid), start_time, user, working_directory };
        let pid = info.pid;
        terminal.iter().for_each(|terminal| self.observers.terminal(terminal));
        self.record.started(info.clone(), main.containment.clone(), Channels { input, terminal });
        answer(Ok(Started { id: self.record.id.clone(), pid, start_time }));
        match self.record.is_internal() {
            true => debug!(pid, "started"),
            false => info!(pid, "started"),
        }
        self.observers.started(&info);

        let writing = tokio::sync::Mutex::new(());
        let input = InputWriter::new(stdin, &self.observers, &writing).run(first, inputs.as_mut());
        let carried = self.carry(output, input, &writing);
        let (ending, rests) = tokio::join!(self.follow(main, &exited), carried);
        Ok(Concluded { ending, rests, inputs })
    }

    /// After a panic: ends all of its processes, and finds out how the main one ended.
    pub(crate) async fn settle(&self, main: &Main) -> Concluded {
        error!("ended, by a fault of the agent");
        let ending = async {
            let left = main.containment.end(Duration::ZERO, std::future::pending()).await;
            let ending = self.ending(main, main.started.elapsed(), left).await;
            let transcript = &self.record.transcript;
            transcript.complete();
            transcript.keep(&self.shared.registry).await;
            ending
        };
        let ending = AssertUnwindSafe(ending).catch_unwind().await.unwrap_or_else(|_| {
            // it failed again: nothing more is asked of what fails
            main.containment.end_blocking();
            let wall_time = main.started.elapsed();
            Ending { cause: ExitCause::Signaled, ended: Ended::unknown(), wall_time, survivors: 0 }
        });
        Concluded { ending, rests: Vec::new(), inputs: None }
    }

    /// From the start to the end of the processes. Cancels `exited` when no more output is to be waited for.
    pub(crate) async fn follow(&self, main: &Main, exited: &CancellationToken) -> Ending {
        let containment = &main.containment;
        let mut forced = tokio::select! {
            biased;
            () = self.promote(main) => None,
            () = main.end.reached() => None,
            stop = self.stop(main.started) => Some(stop),
        };
        // it ended by itself before anything was done to it, and the runtime has not reported that yet
        if forced.is_some() && main.end.status().is_ok() {
            forced = None;
        }
        // by itself, by the keeper, or by an agent that did not live to see it
        if forced.is_none() && main.end.status().is_ok_and(|ended| self.was_in_time(main, &ended) == Some(false)) {
            forced = Some((ExitCause::TimedOut, Duration::ZERO));
        }
        // how it ended says whether that was the cause; its other processes are ended in any case
        if forced.is_none() && self.record.kill.is_cancelled() {
            forced = Some((ExitCause::Signaled, Duration::ZERO));
        }
        if let Some((cause, _)) = forced {
            let _ = self.forced.set(cause);
        }
        let mut ended_at = None;
        let left = {
            let main_ends = async {
                main.end.reached().await;
                // a keeper knows it also from while there was no agent
                let known = main.end.status().ok().and_then(|ended| ended.at);
                ended_at = Some(known.map_or_else(Instant::now, instant));
                std::future::pending().await
            };
            let end = async {
                match forced {
                    Some((_, grace)) => Some(self.end(containment, grace).await),
                    None if self.command.descendants() == Descendants::Kill => {
                        Some(containment.end(self.grace(), self.hurry()).await)
                    }
                    None => None,
                }
            };
            tokio::select! {
                biased;
                never = main_ends => never,
                left = end => left,
            }
        };
        // a main process that this one may not signal runs on
        let wall_time = ended_at.unwrap_or_else(Instant::now).saturating_duration_since(main.started);
        exited.cancel();
        let survivors = match left {
            Some(refused) => refused,
            None => containment.survivors().await,
        };
        self.ending(main, wall_time, survivors).await
    }

    /// Ends all of its processes; returns how many this process may not signal.
    async fn end(&self, containment: &KillOnDrop, grace: Duration) -> u32 {
        if grace.is_zero() || self.command.terminal().is_none() {
            return containment.end(grace, self.hurry()).await;
        }
        // interactive shells ignore SIGTERM
        containment.signal(Signal::HUP).await;
        tokio::select! {
            left = containment.end(grace, self.hurry()) => left,
            never = hang_up_again(containment) => never,
        }
    }

    /// Lets it go to the background when its time has come. Never returns.
    async fn promote(&self, main: &Main) {
        let time = self.command.yield_after().and_then(|time| main.started.checked_add(time));
        // the timer and the journal may be late
        time.into_iter().for_each(|time| self.record.release_at(time));
        until(time).await;
        main.containment.outlive_call(&self.shared.journal, self.record.identity()).await;
        self.record.transcript.promote();
        self.shared.registry.changed();
        std::future::pending().await
    }

    /// The deadline of its call, which does not matter to it in the background.
    async fn deadline(&self, grace: Duration) {
        until(self.command.deadline().and_then(|deadline| deadline.checked_add(grace))).await;
        if self.record.is_released() {
            std::future::pending().await
        }
    }

    /// Waits for the first reason to end it, and says how long it may take to end by itself.
    async fn stop(&self, started: Instant) -> (ExitCause, Duration) {
        let timeout = self.timeout().and_then(|timeout| started.checked_add(timeout));
        tokio::select! {
            () = self.record.kill.cancelled() => (ExitCause::Signaled, Duration::ZERO),
            () = until(timeout) => (ExitCause::TimedOut, self.grace()),
            () = self.deadline(Duration::ZERO) => (ExitCause::DeadlineExceeded, self.grace()),
            () = self.record.cancel.cancelled() => (ExitCause::Cancelled, self.grace()),
            () = self.shared.shutdown.cancelled() => (ExitCause::Shutdown, self.grace()),
            () = self.record.shutdown.cancelled() => (ExitCause::Shutdown, self.grace()),
            () = self.observers.kill() => (ExitCause::Cancelled, Duration::ZERO),
        }
    }

    fn timeout(&self) -> Option<Duration> {
        self.shared.timeout(&self.command, &self.allowance)
    }

    pub(crate) fn grace(&self) -> Duration {
        self.shared.kill_grace(&self.command)
    }

    /// A reason to cut a grace short.
    async fn hurry(&self) {
        tokio::select! {
            () = self.record.kill.cancelled() => {}
            () = self.shared.hurry.cancelled() => {}
            () = self.observers.kill() => {}
        }
    }

    fn report_failure(&mut self, error: &ExecutorError) {
        match error {
            // without the program's name: that is a piece of the command
            ExecutorError::Spawn(error) => {
                info!(stage = error.stage.as_str(), errno = error.errno_name().as_ref(), "not started");
            }
            error => info!(error = error.to_string(), "not started"),
        }
        self.observers.not_started(error);
    }

    /// Carries output until `exited`, and what is left after it.
    pub(crate) async fn carry_output(
        &self,
        stdout: Source,
        stderr: Option<Source>,
        exited: &CancellationToken,
    ) -> Vec<Source> {
        let max_output_bytes = self.shared.max_output_bytes(&self.command, &self.allowance);
        let (transcript, abandoned) = (&*self.record.transcript, &self.abandoned);
        let (observers, totals) = (&self.observers, &self.totals);
        // what is internal reaches no caller as it is
        let is_paced = !self.record.is_internal();
        let turn = tokio::sync::Mutex::new(false);
        let pump = Pump { transcript, observers, max_output_bytes, is_paced, exited, abandoned, totals, turn };
        let output = async {
            let rests = pump.run_both(stdout, stderr).await;
            transcript.complete();
            // a command that has closed its output may still read its input
            exited.cancelled().await;
            rests
        };
        tokio::join!(output, transcript.keep(&self.shared.registry)).0
    }

    /// Carries both; returns what is left of the output. `writing`: locked while input is on its way.
    pub(crate) async fn carry(
        &self,
        output: impl Future<Output = Vec<Source>>,
        input: impl Future<Output = ()>,
        writing: &tokio::sync::Mutex<()>,
    ) -> Vec<Source> {
        let mut input = pin!(async {
            input.await;
            std::future::pending().await
        });
        let delivery_timeout = async {
            self.deadline(DELIVERY_TIMEOUT).await;
            self.abandoned.cancel();
            std::future::pending().await
        };
        let rests = tokio::select! {
            rests = output => rests,
            never = &mut input => never,
            never = delivery_timeout => never,
        };
        // who has written what the command has got is told so
        let written = tokio::time::timeout(WRITE_TIMEOUT, writing.lock());
        tokio::select! {
            biased;
            never = input => never,
            _ = written => rests,
        }
    }

    /// Reports the end, and follows what was left running.
    pub(crate) async fn finish(mut self, mut main: Main, concluded: Concluded) {
        if self.shared.hands_over.is_cancelled() {
            // the keeper tells the next agent
            return std::future::pending().await;
        }
        let Concluded { ending, rests, inputs } = concluded;
        let lingers = ending.survivors > 0;
        let grace = self.grace();
        let retained_for = self.shared.disconnect_grace(self.command.on_disconnect(), self.command.disconnect_grace());
        // what is left behind gets no more time than the command
        let limit = self.allowance.timeout.and_then(|most| main.started.checked_add(most));
        let working_directory = match main.report.take() {
            Some(report) => report.read(self.record.identity()).await,
            None => None,
        };
        let mut exited = self.exit_record(ending, working_directory, main.containment.usage());
        let [stdout_dropped, stderr_dropped] = self.record.transcript.seal();
        exited.stdout.dropped_bytes += stdout_dropped;
        exited.stderr.dropped_bytes += stderr_dropped;
        exited.receipt = self.observers.receipt(&exited);
        self.observers.ended(&exited);
        let (Self { shared, record, tracked, permit, .. }, containment) = (self, &main.containment);
        shared.registry.ended(&record, exited.clone(), lingers);
        // before anyone has the end: the next agent is to tell the same
        if let Some(checkpoint) = record.transcript.checkpoint() {
            checkpoint.set_lingers(lingers);
            if let Err(error) = save_end(&record, &checkpoint) {
                warn!(%error, "the end of the command would not be known after a crash of the agent");
            }
        }
        // only now: a writer that gets the end may ask for the state
        drop(inputs);
        // the permit is free before the end is reported; survivors hold it, and stay even if this task is dropped
        let _permit = permit.filter(|_| lingers);
        if lingers {
            containment.leave_alone();
        }
        record.transcript.finish(exited.clone());
        record.release_retained_after(retained_for);
        // the answer goes out first
        tokio::task::yield_now().await;
        match record.is_internal() {
            true => debug!(cause = exited.cause.as_str(), exit_code = exited.exit_code(), "ended"),
            false => log_end(&exited),
        }
        drop(tracked);
        if !lingers {
            containment.release();
            return;
        }
        linger(&shared, &record, &main.containment, rests, (limit, grace)).await;
    }
}

fn no_receipts() -> ExecutorError {
    let reason = "cannot be given here: this executor signs none; nothing ran";
    ExecutorError::Unsupported { field: "receipt".into(), reason: reason.into() }
}

fn number(pid: Pid) -> u32 {
    u32::try_from(pid.as_raw_nonzero().get()).unwrap_or(0)
}

/// A shell that is about to wait for keys misses a SIGHUP now and then.
async fn hang_up_again(containment: &KillOnDrop) -> u32 {
    let mut pause = 5 * RETRY_DELAY;
    loop {
        tokio::time::sleep(pause).await;
        containment.signal(Signal::HUP).await;
        pause = (2 * pause).min(Duration::from_secs(1));
    }
}

fn log_end(exited: &Exited) {
    info!(
        cause = exited.cause.as_str(),
        exit_code = exited.exit_code(),
        signal = exited.signal.map_or(0, Signal::number),
        wall_ms = u64::try_from(exited.wall_time.as_millis()).unwrap_or(u64::MAX),
        stdout_bytes = exited.stdout.bytes,
        stderr_bytes = exited.stderr.bytes,
        survivors = exited.surviving_processes,
        "ended"
    );
}
