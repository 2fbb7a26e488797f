//! `host: line`, as lines arrive.

use std::io;

use anstyle::{AnsiColor, Style};
use telexec_executor::OutputStream;

use super::lines::Lines;
use super::{Show, neutral};
use crate::commands::fleet::event::Event;
use crate::commands::fleet::hosts::Host;
use crate::commands::fleet::screen::Screen;

const STDOUT: Style = AnsiColor::Cyan.on_default();
const STDERR: Style = AnsiColor::Yellow.on_default();

/// Incomplete lines of each host and stream.
pub(crate) struct Live {
    prefix: bool,
    hosts: Vec<[Lines; 2]>,
}

impl Live {
    pub(crate) fn new(hosts: usize, prefix: bool) -> Self {
        Self { prefix, hosts: (0..hosts).map(|_| Default::default()).collect() }
    }

    /// Prints output of a host.
    pub(crate) fn write(
        &mut self,
        number: usize,
        host: &Host,
        stream: OutputStream,
        data: &[u8],
        screen: &mut Screen,
    ) -> io::Result<()> {
        let prefix = self.prefix_of(host, stream, screen);
        let is_terminal = screen.is_terminal(stream);
        let Some(lines) = self.lines(number, stream) else { return Ok(()) };
        let buffer = screen.buffer(stream)?;
        lines.push(data, |line| push_line(buffer, &prefix, line, is_terminal));
        Ok(())
    }

    /// Prints incomplete last lines.
    pub(crate) fn end(&mut self, number: usize, host: &Host, screen: &mut Screen) -> io::Result<()> {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let prefix = self.prefix_of(host, stream, screen);
            let is_terminal = screen.is_terminal(stream);
            let Some(lines) = self.lines(number, stream) else { continue };
            let buffer = screen.buffer(stream)?;
            lines.end(|line| push_line(buffer, &prefix, line, is_terminal));
        }
        Ok(())
    }

    fn lines(&mut self, number: usize, stream: OutputStream) -> Option<&mut Lines> {
        let [stdout, stderr] = self.hosts.get_mut(number)?;
        Some(if stream == OutputStream::Stdout { stdout } else { stderr })
    }

    fn prefix_of(&self, host: &Host, stream: OutputStream, screen: &Screen) -> String {
        let style = if stream == OutputStream::Stdout { STDOUT } else { STDERR };
        match self.prefix {
            true => screen.styled(stream, style, &format!("{}: ", host.name)),
            false => String::new(),
        }
    }
}

fn push_line(buffer: &mut Vec<u8>, prefix: &str, line: &[u8], is_terminal: bool) {
    buffer.extend_from_slice(prefix.as_bytes());
    neutral::push(buffer, line, is_terminal);
    buffer.push(b'\n');
}

impl Show for Live {
    fn event(&mut self, number: usize, host: &Host, event: &Event, screen: &mut Screen) -> io::Result<()> {
        match event {
            Event::Output(output) => self.write(number, host, output.stream, &output.data, screen),
            Event::Finished(_) => self.end(number, host, screen),
            Event::Gap(position) => gap(host, *position, screen),
            Event::Connecting | Event::Started(_) => Ok(()),
        }
    }
}

pub(super) fn gap(host: &Host, position: u64, screen: &mut Screen) -> io::Result<()> {
    screen.message(&format!("{}: output is missing here: it is available from position {position} on", host.name))
}
