//! Runs one job on all hosts: workers as scheduled, printer, and Ctrl-C.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{mpsc, watch};

use super::hosts::Host;
use super::printer::{Message, Printer, Printing, Stage};
use super::results::Results;
use super::schedule::{Batch, Schedule};
use super::worker::{self, Job, Reporter, Stop};
use crate::args::{ParallelArgs, ScheduleArgs};
use crate::config::Config;
use crate::output::{Failure, exit};
use crate::syntax::HostCount;
use crate::terminal::Signals;

/// Two interrupts within this time stop the run.
const DOUBLE_INTERRUPT: Duration = Duration::from_secs(1);

/// Runs the job on all hosts and prints the events.
///
/// # Errors
/// The output was closed, or a signal ended the run.
pub(crate) async fn operate(
    hosts: Arc<[Host]>,
    job: Job,
    schedule: &Schedule,
    printing: Printing,
) -> Result<Results, Failure> {
    raise_file_limit();
    let mut signals = Signals::listen()?;
    let printer = Printer::start(&hosts, printing)?;
    let (stop, stopping) = watch::channel(false);
    let stop_code = {
        let context = WorkerContext {
            hosts: Arc::clone(&hosts),
            job: Arc::new(job),
            messages: printer.messages.clone(),
            stop: Arc::new(stop),
            stopping: Stop(stopping),
        };
        context.work(schedule, &mut signals).await
    };
    let stop_code = match stop_code {
        Ok(stop_code) => stop_code,
        Err(failure) => {
            printer.abandon().await;
            return Err(failure);
        }
    };
    let results = printer.finish().await?;
    match stop_code {
        Some(code) => Err(Failure::silent(code)),
        None => Ok(results),
    }
}

/// What the workers share.
struct WorkerContext {
    hosts: Arc<[Host]>,
    job: Arc<Job>,
    messages: mpsc::Sender<Message>,
    stop: Arc<watch::Sender<bool>>,
    stopping: Stop,
}

impl WorkerContext {
    /// Runs all workers; returns the exit code of a signal that stopped them.
    async fn work(self, schedule: &Schedule, signals: &mut Signals) -> Result<Option<u8>, Failure> {
        let mut working = pin!(schedule.run(
            self.hosts.len(),
            async |batch| self.begin_batch(batch, schedule.batch_wait).await,
            |number| self.spawn_worker(number, schedule.fail_fast),
            || !self.stopping.is_requested(),
        ));
        let (mut last, mut stop_code) = (None::<Instant>, None);
        loop {
            tokio::select! {
                _ = &mut working => return Ok(stop_code),
                () = self.messages.closed(), if !self.stopping.is_requested() => {
                    self.stop.send_replace(true);
                }
                code = signals.exit_code() => {
                    let once = code == exit::of_signal(2) && last.is_none_or(|last| last.elapsed() > DOUBLE_INTERRUPT);
                    match stop_code {
                        None if once && self.job.runs_commands() => self.report_running(),
                        None => {
                            stop_code = Some(code);
                            self.stop.send_replace(true);
                        }
                        // the workers wait for proof that commands ended; another Ctrl-C skips that
                        Some(_) if once => return Err(Failure::silent(code)),
                        Some(_) => {}
                    }
                    last = Some(Instant::now());
                }
            }
        }
    }

    /// Works on one host, in its own task, so that TLS handshakes use all CPUs.
    fn spawn_worker(&self, number: usize, fail_fast: bool) -> impl Future<Output = bool> + use<> {
        let (hosts, job, stopping) = (Arc::clone(&self.hosts), Arc::clone(&self.job), self.stopping.clone());
        let reporter = Reporter { host: number, messages: self.messages.clone() };
        let stop = fail_fast.then(|| Arc::clone(&self.stop));
        let task = tokio::spawn(async move {
            match hosts.get(number) {
                Some(host) => worker::work(host, &job, &reporter, stopping).await,
                None => false,
            }
        });
        async move {
            let succeeded = task.await.unwrap_or(false);
            if let Some(stop) = stop.filter(|_| !succeeded) {
                stop.send_replace(true);
            }
            succeeded
        }
    }

    /// Makes the printer list the hosts that are still running.
    fn report_running(&self) {
        let messages = self.messages.clone();
        tokio::spawn(async move { messages.send(Message::StillRunning).await });
    }

    /// Waits before every batch but the first, unless the run is stopped.
    async fn begin_batch(&self, batch: Batch, wait: Duration) {
        if batch.number > 1 && !wait.is_zero() {
            let _ = self.messages.send(Message::Stage(Stage::Waiting(batch, Instant::now() + wait))).await;
            let mut stopping = self.stopping.clone();
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stopping.requested() => return,
            }
        }
        let _ = self.messages.send(Message::Stage(Stage::Running(batch))).await;
    }
}

impl ParallelArgs {
    /// All hosts in one batch, whatever fails.
    pub(crate) fn schedule(&self, config: &Config) -> Schedule {
        let fanout = self.fanout.unwrap_or(config.default_fanout());
        Schedule { fanout, batch: None, batch_wait: Duration::ZERO, max_failures: None, fail_fast: false }
    }
}

impl ScheduleArgs {
    pub(crate) fn schedule(&self, config: &Config) -> Schedule {
        Schedule {
            batch: self.batch,
            batch_wait: self.batch_wait.unwrap_or_default(),
            max_failures: if self.fail_fast { Some(HostCount::Count(0)) } else { self.max_failures },
            fail_fast: self.fail_fast,
            ..self.parallel.schedule(config)
        }
    }
}

/// Each host needs a connection and possibly files. On failure, the affected hosts report it.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
