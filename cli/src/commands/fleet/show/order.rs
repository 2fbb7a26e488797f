//! `host: line` in the order of the hosts: the first unfinished one is printed live, the others are held.

use std::io::{self, Read};

use telexec_executor::OutputStream;

use super::Show;
use super::live::Live;
use crate::commands::fleet::event::Event;
use crate::commands::fleet::held_output::HeldOutput;
use crate::commands::fleet::hosts::Host;
use crate::commands::fleet::screen::Screen;

pub(crate) struct InOrder {
    live: Live,
    /// The host that is printed live.
    turn: usize,
    waiting: Vec<PendingHost>,
    keep: u64,
}

/// A host after that one.
#[derive(Default)]
struct PendingHost {
    held: Option<[HeldOutput; 2]>,
    ended: bool,
}

impl InOrder {
    pub(crate) fn new(live: Live, hosts: usize, keep: u64) -> Self {
        Self { live, turn: 0, waiting: (0..hosts).map(|_| PendingHost::default()).collect(), keep }
    }

    fn keep(&mut self, number: usize, stream: OutputStream, data: &[u8]) -> io::Result<()> {
        let keep = self.keep;
        let Some(waiting) = self.waiting.get_mut(number) else { return Ok(()) };
        let [stdout, stderr] = waiting.held.get_or_insert_with(|| [HeldOutput::new(keep), HeldOutput::new(keep)]);
        if stream == OutputStream::Stdout { stdout } else { stderr }.write(data)
    }

    /// Prints the held output of hosts whose turn has come.
    fn advance(&mut self, hosts: &[Host], screen: &mut Screen) -> io::Result<()> {
        while let (Some(host), Some(waiting)) = (hosts.get(self.turn), self.waiting.get_mut(self.turn)) {
            let ended = waiting.ended;
            if let Some([stdout, stderr]) = waiting.held.take() {
                for (stream, held) in [(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)] {
                    self.dump(host, stream, held, screen)?;
                }
            }
            if !ended {
                return Ok(());
            }
            self.live.end(self.turn, host, screen)?;
            self.turn += 1;
        }
        Ok(())
    }

    fn dump(&mut self, host: &Host, stream: OutputStream, mut held: HeldOutput, screen: &mut Screen) -> io::Result<()> {
        let dropped = held.dropped();
        let mut reader = held.reader()?;
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let length = reader.read(&mut buffer)?;
            if length == 0 {
                break;
            }
            self.live.write(self.turn, host, stream, buffer.get(..length).unwrap_or_default(), screen)?;
        }
        match dropped {
            0 => Ok(()),
            bytes => {
                screen.message(&format!("{}: {bytes} bytes of output are missing here; increase --keep", host.name))
            }
        }
    }
}

impl Show for InOrder {
    fn event(&mut self, number: usize, host: &Host, event: &Event, screen: &mut Screen) -> io::Result<()> {
        match event {
            Event::Finished(_) => {
                if let Some(waiting) = self.waiting.get_mut(number) {
                    waiting.ended = true;
                }
                Ok(())
            }
            event if number == self.turn => self.live.event(number, host, event, screen),
            Event::Output(output) => self.keep(number, output.stream, &output.data),
            Event::Connecting | Event::Started(_) | Event::Gap(_) => Ok(()),
        }
    }

    fn after_batch(&mut self, hosts: &[Host], screen: &mut Screen) -> io::Result<()> {
        self.advance(hosts, screen)
    }
}
