//! Puts it together: hosts, pace, workers, printer and signals.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{mpsc, watch};

use super::command::Recipe;
use super::hosts::{self, Host};
use super::input::SharedInput;
use super::pace::{Pace, Share};
use super::printer::{Message, Printer};
use super::summary::Board;
use super::worker::{self, Job, Stop, Teller};
use super::{background, event::Kind};
use crate::args::{FleetArgs, PaceArgs, ShowArgs};
use crate::config::Config;
use crate::failure::Failure;
use crate::signals::Signals;
use crate::{exit, output};

/// Hosts at once, unless something says otherwise.
const FANOUT: usize = 64;
/// Two interrupts within this mean it.
const TWICE: Duration = Duration::from_secs(1);

pub(crate) async fn run(mut args: FleetArgs) -> Result<u8, Failure> {
    args.pace.settle(&mut args.connect);
    if args.what.stdin && args.hosts.takes_stdin() {
        return Err(Failure::text(exit::USAGE, "standard input is either for the hosts' names or for the command")
            .advice(Some("give --hosts-file a file, or leave out -i")));
    }
    let config = Config::load()?;
    let hosts: Arc<[Host]> = hosts::find(&args.hosts, &args.connect, &config).await?.into();
    if args.list_hosts {
        return hosts::list(&hosts, args.show.gather).map(|()| 0);
    }
    if args.what.detach {
        return background::start(args, hosts, &config).await;
    }
    let (dry_run, stdin) = (args.what.dry_run, args.what.stdin);
    let recipe = Recipe::new(args.what, None)?;
    if dry_run {
        args.show.quiet = true;
        let board = operate(hosts, Job::Check(recipe), &args.pace, &args.show, &config).await?;
        return answer(&board, &args.show);
    }
    let input = stdin.then(SharedInput::start).transpose();
    let input = input.map_err(|error| Failure::new(exit::LOST, &error).during("cannot read standard input"))?;
    let board = operate(hosts, Job::Run(recipe, input), &args.pace, &args.show, &config).await?;
    Ok(board.exit_code(args.show.max_code))
}

/// What a dry run found.
fn answer(board: &Board, show: &ShowArgs) -> Result<u8, Failure> {
    if !show.json {
        let words = |words: String| if words == Kind::Ok.words() { "would run it".to_owned() } else { words };
        let lines = board.by_end(|_| true).into_iter().map(|(end, hosts)| format!("{hosts}: {}\n", words(end)));
        output::print(lines.collect::<String>().as_bytes())?;
    }
    Ok(board.exit_code(show.max_code))
}

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
