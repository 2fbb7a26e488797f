//! `host: line` in the order of the hosts: the first that has not ended is shown live, the others wait for their turn.

use std::io::{self, Read};

use telexec_executor::OutputStream;

use super::Show;
use super::live::Live;
use crate::commands::fleet::event::Event;
use crate::commands::fleet::hosts::Host;
use crate::commands::fleet::memory::Kept;
use crate::commands::fleet::screen::Screen;

pub(crate) struct InOrder {
    live: Live,
    /// Whose turn it is.
    turn: usize,
    waiting: Vec<Waiting>,
    keep: u64,
}

/// One whose turn has not come.
#[derive(Default)]
struct Waiting {
    kept: Option<[Kept; 2]>,
    ended: bool,
}

impl InOrder {
    pub(crate) fn new(live: Live, hosts: usize, keep: u64) -> Self {
        Self { live, turn: 0, waiting: (0..hosts).map(|_| Waiting::default()).collect(), keep }
    }

    fn keep(&mut self, number: usize, stream: OutputStream, data: &[u8]) -> io::Result<()> {
        let keep = self.keep;
        let Some(waiting) = self.waiting.get_mut(number) else { return Ok(()) };
        let [stdout, stderr] = waiting.kept.get_or_insert_with(|| [Kept::new(keep), Kept::new(keep)]);
        if stream == OutputStream::Stdout { stdout } else { stderr }.write(data)
    }

    /// Shows those whose turn has come, which is kept no longer.
    fn advance(&mut self, hosts: &[Host], screen: &mut Screen) -> io::Result<()> {
        while let (Some(host), Some(waiting)) = (hosts.get(self.turn), self.waiting.get_mut(self.turn)) {
            let ended = waiting.ended;
            if let Some([stdout, stderr]) = waiting.kept.take() {
                for (stream, kept) in [(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)] {
                    self.dump(host, stream, kept, screen)?;
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

    fn dump(&mut self, host: &Host, stream: OutputStream, mut kept: Kept, screen: &mut Screen) -> io::Result<()> {
        let dropped = kept.dropped();
        let mut reader = kept.reader()?;
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
            bytes => screen.say(&format!("{}: {bytes} bytes of output are missing here; increase --keep", host.name)),
        }
    }
}

impl Show for InOrder {
    fn event(&mut self, number: usize, host: &Host, event: &Event, screen: &mut Screen) -> io::Result<()> {
        match event {
            Event::Ended(_) => {
                if let Some(waiting) = self.waiting.get_mut(number) {
                    waiting.ended = true;
                }
                Ok(())
            }
            event if number == self.turn => self.live.event(number, host, event, screen),
            Event::Output(output) => self.keep(number, output.stream, &output.data),
            _ => Ok(()),
        }
    }

    fn settle(&mut self, hosts: &[Host], screen: &mut Screen) -> io::Result<()> {
        self.advance(hosts, screen)
    }
}
