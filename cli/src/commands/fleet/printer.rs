//! The thread that prints the events of all hosts.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use telexec_executor::OutputStream;
use tokio::sync::{mpsc, oneshot};

use super::event::{Event, Outcome};
use super::hosts::Host;
use super::outdir::Outdir;
use super::results::Results;
use super::screen::Screen;
use super::show::{Show, show};
use crate::args::OutputArgs;
use crate::output::{Failure, write_failure};

/// Events waiting for the thread; when it is full, hosts are slowed down.
const QUEUE: usize = 64;

/// A message to the printer.
pub(crate) enum Message {
    /// An event of a host.
    Host(usize, Event),
    /// Print what is still running, and whether another Ctrl-C ends it or detaches from it.
    StillRunning { detaches: bool },
}

/// The printing thread.
pub(crate) struct Printer {
    pub(crate) messages: mpsc::Sender<Message>,
    done: oneshot::Receiver<io::Result<Results>>,
}

struct Thread {
    hosts: Arc<[Host]>,
    show: Box<dyn Show>,
    outdir: Option<Outdir>,
    screen: Screen,
    results: Results,
    quiet: bool,
    json: bool,
    began: Instant,
}

impl Printer {
    pub(crate) fn start(hosts: &Arc<[Host]>, args: &OutputArgs) -> Result<Self, Failure> {
        let (messages, queue) = mpsc::channel(QUEUE);
        let (finished, done) = oneshot::channel();
        let thread = Thread::new(hosts, args).map_err(|error| write_failure(&error))?;
        std::thread::spawn(move || finished.send(thread.run(queue)));
        Ok(Self { messages, done })
    }

    /// Waits until everything is printed.
    pub(crate) async fn finish(self) -> Result<Results, Failure> {
        drop(self.messages);
        let gone = || Err(io::Error::other("the output thread has failed"));
        self.done.await.unwrap_or_else(|_| gone()).map_err(|error| write_failure(&error))
    }
}

impl Thread {
    fn new(hosts: &Arc<[Host]>, args: &OutputArgs) -> io::Result<Self> {
        let progress = (!args.json && !args.quiet && hosts.len() > 1).then_some(hosts.len());
        let outdir = args.outdir.as_ref().map(|directory| {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
            Outdir::create(directory, hosts).map_err(named)
        });
        Ok(Self {
            hosts: Arc::clone(hosts),
            show: show(args, hosts.len()),
            outdir: outdir.transpose()?,
            screen: Screen::new(progress)?,
            results: Results::new(Arc::clone(hosts)),
            quiet: args.quiet,
            json: args.json,
            began: Instant::now(),
        })
    }

    fn run(mut self, mut messages: mpsc::Receiver<Message>) -> io::Result<Results> {
        while let Some(message) = messages.blocking_recv() {
            self.message(message)?;
            while let Ok(message) = messages.try_recv() {
                self.message(message)?;
            }
            self.show.after_batch(&self.hosts, &mut self.screen)?;
            self.screen.flush()?;
            self.screen.progress(self.results.done(), || self.results.progress());
        }
        for host in self.results.pending() {
            self.event(host, &Event::Finished(Box::new(Outcome::not_run())))?;
        }
        self.show.after_batch(&self.hosts, &mut self.screen)?;
        self.screen.end_progress();
        self.show.finish(&self.hosts, &mut self.screen)?;
        self.close()?;
        self.screen.flush()?;
        Ok(self.results)
    }

    fn message(&mut self, message: Message) -> io::Result<()> {
        match message {
            Message::Host(host, event) => self.event(host, &event),
            Message::StillRunning { detaches } => {
                let verb = if detaches { "detach from" } else { "end" };
                let still = self.results.still_running();
                self.screen.message(&format!("{still}; press Ctrl-C twice within a second to {verb} them"))
            }
        }
    }

    fn event(&mut self, number: usize, event: &Event) -> io::Result<()> {
        let Some(host) = self.hosts.get(number) else { return Ok(()) };
        self.results.event(number, event);
        if let Some(outdir) = &mut self.outdir {
            outdir.event(number, host, event)?;
        }
        self.show.event(number, host, event, &mut self.screen)
    }

    fn close(&mut self) -> io::Result<()> {
        let took = self.began.elapsed();
        if self.json {
            let line = self.results.as_json(took);
            self.screen.buffer(OutputStream::Stdout)?.extend_from_slice(line.as_bytes());
            return Ok(());
        }
        let lines = if self.quiet { Vec::new() } else { self.results.summary(took) };
        lines.iter().try_for_each(|line| self.screen.message(line))
    }
}
