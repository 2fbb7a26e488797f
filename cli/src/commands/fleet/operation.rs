//! Runs one job on all hosts: workers as scheduled, printer, and Ctrl-C.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{mpsc, watch};

use super::hosts::Host;
use super::printer::{Message, Printer};
use super::results::Results;
use super::schedule::Schedule;
use super::worker::{self, Job, Reporter, Stop};
use crate::args::{OutputArgs, ScheduleArgs};
use crate::config::Config;
use crate::output::{Failure, exit};
use crate::syntax::HostCount;
use crate::terminal::Signals;

/// Default number of hosts in parallel.
const FANOUT: usize = 64;
/// Two interrupts within this time stop the run.
const DOUBLE_INTERRUPT: Duration = Duration::from_secs(1);

/// Runs the job on all hosts and prints the events.
///
/// # Errors
/// The output was closed, or a signal ended the run.
pub(crate) async fn operate(
    hosts: Arc<[Host]>,
    job: Job,
    schedule: &ScheduleArgs,
    output: &OutputArgs,
    config: &Config,
) -> Result<Results, Failure> {
    raise_file_limit();
    let mut signals = Signals::listen()?;
    let printer = Printer::start(&hosts, output)?;
    let (stop, stopping) = watch::channel(false);
    let stop_code = {
        let context = WorkerContext {
            hosts: Arc::clone(&hosts),
            job: Arc::new(job),
            messages: printer.messages.clone(),
            stop: Arc::new(stop),
            stopping: Stop(stopping),
            fail_fast: schedule.fail_fast,
        };
        context.work(&schedule.schedule(config), &mut signals).await?
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
    fail_fast: bool,
}

impl WorkerContext {
    /// Runs all workers; returns the exit code of a signal that stopped them.
    async fn work(self, schedule: &Schedule, signals: &mut Signals) -> Result<Option<u8>, Failure> {
        let mut working =
            pin!(schedule.run(self.hosts.len(), |number| self.spawn_worker(number), || !self.stopping.is_requested()));
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
                        None if once => self.report_running(),
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
    fn spawn_worker(&self, number: usize) -> impl Future<Output = bool> + use<> {
        let (hosts, job, stopping) = (Arc::clone(&self.hosts), Arc::clone(&self.job), self.stopping.clone());
        let reporter = Reporter { host: number, messages: self.messages.clone() };
        let stop = self.fail_fast.then(|| Arc::clone(&self.stop));
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
        let detaches = matches!(*self.job, Job::Attach(_));
        let messages = self.messages.clone();
        tokio::spawn(async move { messages.send(Message::StillRunning { detaches }).await });
    }
}

impl ScheduleArgs {
    fn schedule(&self, config: &Config) -> Schedule {
        Schedule {
            fanout: self.fanout.or(config.defaults.fanout).unwrap_or(FANOUT),
            batch: self.batch,
            max_failures: if self.fail_fast { Some(HostCount::Count(0)) } else { self.max_failures },
        }
    }
}

/// Each host needs a connection and possibly files. On failure, the affected hosts report it.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
