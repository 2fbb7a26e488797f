//! One job on all hosts: the workers at their pace, the printer, and Ctrl-C.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{mpsc, watch};

use super::hosts::Host;
use super::pace::Pace;
use super::printer::{Message, Printer};
use super::summary::Board;
use super::worker::{self, Job, Stop, Teller};
use crate::args::{PaceArgs, ShowArgs};
use crate::config::Config;
use crate::output::{Failure, exit};
use crate::syntax::Share;
use crate::terminal::Signals;

/// Hosts at once, unless something says otherwise.
const FANOUT: usize = 64;
/// Two interrupts within this mean it.
const TWICE: Duration = Duration::from_secs(1);

/// Does the job on all hosts, and shows it.
///
/// # Errors
/// Nobody reads the output any more, or a signal ended it.
pub(crate) async fn operate(
    hosts: Arc<[Host]>,
    job: Job,
    pace: &PaceArgs,
    show: &ShowArgs,
    config: &Config,
) -> Result<Board, Failure> {
    raise_file_limit();
    let mut signals = Signals::listen()?;
    let printer = Printer::start(&hosts, show)?;
    let (stop, stopping) = watch::channel(false);
    let ended_by = {
        let crew = Crew {
            hosts: Arc::clone(&hosts),
            job: Arc::new(job),
            messages: printer.messages.clone(),
            stop: Arc::new(stop),
            stopping: Stop(stopping),
            fail_fast: pace.fail_fast,
        };
        crew.work(&pace.pace(config), &mut signals).await?
    };
    let board = printer.finish().await?;
    match ended_by {
        Some(code) => Err(Failure::silent(code)),
        None => Ok(board),
    }
}

/// What all workers share.
struct Crew {
    hosts: Arc<[Host]>,
    job: Arc<Job>,
    messages: mpsc::Sender<Message>,
    stop: Arc<watch::Sender<bool>>,
    stopping: Stop,
    fail_fast: bool,
}

impl Crew {
    /// Works to the end; returns the exit code of the signal that was it, if one was.
    async fn work(self, pace: &Pace, signals: &mut Signals) -> Result<Option<u8>, Failure> {
        let mut working = pin!(pace.run(self.hosts.len(), |number| self.one(number), || !self.stopping.is_wanted()));
        let (mut last, mut ended_by) = (None::<Instant>, None);
        loop {
            tokio::select! {
                _ = &mut working => return Ok(ended_by),
                () = self.messages.closed(), if !self.stopping.is_wanted() => {
                    self.stop.send_replace(true);
                }
                code = signals.exit_code() => {
                    let once = code == exit::of_signal(2) && last.is_none_or(|last| last.elapsed() > TWICE);
                    match ended_by {
                        None if once => self.tell_still(),
                        None => {
                            ended_by = Some(code);
                            self.stop.send_replace(true);
                        }
                        // there is proof to wait for, but nobody has to
                        Some(_) if once => return Err(Failure::silent(code)),
                        Some(_) => {}
                    }
                    last = Some(Instant::now());
                }
            }
        }
    }

    /// Works on one host, in a task of its own: handshakes use all processors.
    fn one(&self, number: usize) -> impl Future<Output = bool> + use<> {
        let (hosts, job, stopping) = (Arc::clone(&self.hosts), Arc::clone(&self.job), self.stopping.clone());
        let teller = Teller { host: number, messages: self.messages.clone() };
        let stop = self.fail_fast.then(|| Arc::clone(&self.stop));
        let task = tokio::spawn(async move {
            match hosts.get(number) {
                Some(host) => worker::work(host, &job, &teller, stopping).await,
                None => false,
            }
        });
        async move {
            let went_well = task.await.unwrap_or(false);
            if let Some(stop) = stop.filter(|_| !went_well) {
                stop.send_replace(true);
            }
            went_well
        }
    }

    /// Has the printer say what still runs, when it can.
    fn tell_still(&self) {
        let leaves = matches!(*self.job, Job::Attach(_));
        let messages = self.messages.clone();
        tokio::spawn(async move { messages.send(Message::Still { leaves }).await });
    }
}

impl PaceArgs {
    fn pace(&self, config: &Config) -> Pace {
        Pace {
            fanout: self.fanout.or(config.defaults.fanout).unwrap_or(FANOUT),
            batch: self.batch,
            max_failures: if self.fail_fast { Some(Share::Count(0)) } else { self.max_failures },
        }
    }
}

/// Each host takes a connection, and may take files. Where this does not work, the hosts that it hits say so.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
