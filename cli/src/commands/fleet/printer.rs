//! The thread that prints the events of all hosts.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use telexec_executor::OutputStream;
use tokio::sync::{mpsc, oneshot};

use super::event::{Event, Outcome};
use super::hosts::Host;
use super::outdir::Outdir;
use super::results::Results;
use super::schedule::Batch;
use super::screen::Screen;
use super::show::{Show, show};
use crate::args::OutputArgs;
use crate::output::{Failure, exit, write_failure};

/// Events waiting for the thread; when it is full, hosts are slowed down.
const QUEUE: usize = 64;
/// Between updates of the live line, which shows the time elapsed.
const TICK: Duration = Duration::from_millis(250);
/// A failure is named when the others run for this long after it: otherwise the summary, which has it too, is there soon.
const SUMMARY_SOON: Duration = Duration::from_secs(1);
/// How long the thread may take to remove the live line when it must not wait for the hosts.
const ABANDON_TIMEOUT: Duration = Duration::from_millis(200);

/// What is printed, and how.
pub(crate) struct Printing {
    pub(crate) show: Box<dyn Show>,
    pub(crate) outdir: Option<PathBuf>,
    pub(crate) reports: Reports,
    /// The summary is a JSON line on standard output.
    pub(crate) json_summary: bool,
}

/// What is printed on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reports {
    Nothing,
    /// What is missing from the output.
    Gaps,
    /// Also the live line, each failure, and the summary.
    All,
}

/// A message to the printer.
pub(crate) enum Message {
    /// An event of a host.
    Host(usize, Event),
    Stage(Stage),
    /// Print what is still running, and that another Ctrl-C ends it.
    StillRunning,
    /// Update the live line.
    Tick,
    /// Print nothing more.
    Abandon,
}

/// Where the schedule is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Running(Batch),
    /// Before this batch.
    Waiting(Batch, Instant),
}

/// The printing thread.
pub(crate) struct Printer {
    pub(crate) messages: mpsc::Sender<Message>,
    done: oneshot::Receiver<io::Result<Results>>,
}

struct Thread {
    hosts: Arc<[Host]>,
    printing: Printing,
    outdir: Option<Outdir>,
    screen: Screen,
    results: Results,
    stage: Option<Stage>,
    /// Failures that are not named yet, and when they came.
    unnamed: VecDeque<(Instant, String)>,
    began: Instant,
}

impl Printing {
    pub(crate) fn new(args: &OutputArgs, hosts: usize) -> Self {
        let reports = match (args.json, args.quiet) {
            (true, _) => Reports::Nothing,
            (false, true) => Reports::Gaps,
            (false, false) => Reports::All,
        };
        Self { show: show(args, hosts), outdir: args.outdir.clone(), reports, json_summary: args.json }
    }
}

impl Printer {
    pub(crate) fn start(hosts: &Arc<[Host]>, printing: Printing) -> Result<Self, Failure> {
        let (messages, queue) = mpsc::channel(QUEUE);
        let (finished, done) = oneshot::channel();
        let thread = Thread::new(hosts, printing).map_err(|error| write_failure(&error))?;
        if thread.printing.reports == Reports::All {
            tokio::spawn(tick(messages.downgrade()));
        }
        std::thread::spawn(move || finished.send(thread.run(queue)));
        Ok(Self { messages, done })
    }

    /// Waits until everything is printed.
    pub(crate) async fn finish(self) -> Result<Results, Failure> {
        drop(self.messages);
        let gone = || Err(io::Error::other("the output thread has failed"));
        self.done.await.unwrap_or_else(|_| gone()).map_err(|error| write_failure(&error))
    }

    /// Leaves the terminal without a live line, if the thread is not held up.
    pub(crate) async fn abandon(self) {
        let _ = self.messages.try_send(Message::Abandon);
        let _ = tokio::time::timeout(ABANDON_TIMEOUT, self.done).await;
    }
}

/// Makes the thread update its live line, and name failures, until it has all messages.
async fn tick(messages: mpsc::WeakSender<Message>) {
    loop {
        tokio::time::sleep(TICK).await;
        match messages.upgrade().map(|messages| messages.try_send(Message::Tick)) {
            None | Some(Err(mpsc::error::TrySendError::Closed(_))) => return,
            Some(Ok(()) | Err(mpsc::error::TrySendError::Full(_))) => {}
        }
    }
}

impl Thread {
    fn new(hosts: &Arc<[Host]>, printing: Printing) -> io::Result<Self> {
        let outdir = printing.outdir.as_ref().map(|directory| {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
            Outdir::create(directory, hosts).map_err(named)
        });
        Ok(Self {
            hosts: Arc::clone(hosts),
            outdir: outdir.transpose()?,
            screen: Screen::new(printing.reports == Reports::All && hosts.len() > 1)?,
            results: Results::new(Arc::clone(hosts)),
            printing,
            stage: None,
            unnamed: VecDeque::new(),
            began: Instant::now(),
        })
    }

    fn run(mut self, mut messages: mpsc::Receiver<Message>) -> io::Result<Results> {
        while let Some(message) = messages.blocking_recv() {
            let mut next = Some(message);
            while let Some(message) = next {
                if matches!(message, Message::Abandon) {
                    self.screen.end_live_line()?;
                    return Ok(self.results);
                }
                self.message(message)?;
                next = messages.try_recv().ok();
            }
            self.printing.show.after_batch(&self.hosts, &mut self.screen)?;
            self.name_failures(SUMMARY_SOON)?;
            self.screen.update(|| self.results.progress(self.began.elapsed(), self.stage))?;
        }
        for host in self.results.pending() {
            self.event(host, &Event::Finished(Box::new(Outcome::not_run())))?;
        }
        self.printing.show.after_batch(&self.hosts, &mut self.screen)?;
        self.screen.end_live_line()?;
        self.printing.show.finish(&self.hosts, &mut self.screen)?;
        self.close()?;
        self.screen.flush()?;
        Ok(self.results)
    }

    fn message(&mut self, message: Message) -> io::Result<()> {
        match message {
            Message::Host(host, event) => self.event(host, &event),
            Message::Stage(stage) => {
                self.stage = Some(stage);
                Ok(())
            }
            Message::StillRunning => {
                let still = self.results.still_running();
                self.screen.message(&format!("{still}; press Ctrl-C twice within a second to end them"))
            }
            Message::Tick | Message::Abandon => Ok(()),
        }
    }

    fn event(&mut self, number: usize, event: &Event) -> io::Result<()> {
        let Some(host) = self.hosts.get(number) else { return Ok(()) };
        self.results.event(number, event);
        if let Some(outdir) = &mut self.outdir {
            outdir.event(number, host, event)?;
        }
        self.printing.show.event(number, host, event, &mut self.screen)?;
        let Event::Finished(outcome) = event else { return Ok(()) };
        let loss = outcome.exited.as_ref().and_then(exit::loss);
        if let Some(loss) = loss.filter(|_| self.printing.reports >= Reports::Gaps) {
            self.screen.message(&format!("{}: {loss}", host.name))?;
        }
        if outcome.is_failure() && self.printing.reports >= Reports::All {
            self.unnamed.push_back((Instant::now(), format!("{}: {}", host.name, outcome.description())));
        }
        Ok(())
    }

    /// Names the failures that came so long ago.
    fn name_failures(&mut self, ago: Duration) -> io::Result<()> {
        while let Some((_, line)) = self.unnamed.pop_front_if(|(came, _)| came.elapsed() >= ago) {
            self.screen.message(&line)?;
        }
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        let took = self.began.elapsed();
        if self.printing.json_summary {
            let line = self.results.as_json(took);
            self.screen.buffer(OutputStream::Stdout)?.extend_from_slice(line.as_bytes());
        }
        if !self.results.fit_summary() {
            self.name_failures(Duration::ZERO)?;
        }
        let lines = if self.printing.reports == Reports::All { self.results.summary(took) } else { Vec::new() };
        lines.iter().try_for_each(|line| self.screen.message(line))
    }
}
