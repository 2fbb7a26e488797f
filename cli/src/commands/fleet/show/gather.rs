//! Output of all hosts at the end, identical output once under the names of its hosts.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use similar::TextDiff;
use telexec_executor::OutputStream;

use super::lines::MAX_LINE_BYTES;
use super::live::Live;
use super::{Show, neutral};
use crate::args::OutputArgs;
use crate::commands::fleet::event::Event;
use crate::commands::fleet::held_output::{Fingerprint, HeldOutput};
use crate::commands::fleet::hosts::Host;
use crate::commands::fleet::screen::Screen;
use crate::syntax::fold;

const HEADING: Style = AnsiColor::Cyan.on_default();
const REMOVED: Style = AnsiColor::Red.on_default();
const ADDED: Style = AnsiColor::Green.on_default();
/// Longer outputs are not compared.
const MAX_DIFF_BYTES: u64 = 4 * 1024 * 1024;
/// A diff that takes longer is approximated.
const DIFF_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Gather {
    /// For standard error that is not gathered.
    live: Live,
    stderr_too: bool,
    diff: bool,
    by_line: bool,
    headings: bool,
    keep: u64,
    held: Vec<Option<HeldOutput>>,
}

impl Gather {
    pub(crate) fn new(args: &OutputArgs, hosts: usize, live: Live) -> Self {
        Self {
            live,
            stderr_too: args.gather_all,
            diff: args.diff,
            by_line: args.in_order,
            headings: !args.no_prefix,
            keep: args.keep,
            held: (0..hosts).map(|_| None).collect(),
        }
    }

    /// Hosts grouped by identical output, largest group first, without those that wrote nothing.
    fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: HashMap<Fingerprint, Vec<usize>> = HashMap::new();
        for (number, held) in self.held.iter().enumerate() {
            if let Some(held) = held.as_ref().filter(|held| held.has_output()) {
                groups.entry(held.fingerprint()).or_default().push(number);
            }
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.len()), group.first().copied()));
        groups
    }

    /// The output of a group, from its first host.
    fn held(&mut self, group: &[usize]) -> Option<&mut HeldOutput> {
        self.held.get_mut(*group.first()?)?.as_mut()
    }

    fn block(&mut self, group: &[usize], hosts: &[Host], screen: &mut Screen) -> io::Result<()> {
        if self.headings {
            let rule = "-".repeat(15);
            let names = folded_names(group, hosts);
            let count = if group.len() > 1 { format!(" ({})", group.len()) } else { String::new() };
            for line in [&rule, &format!("{names}{count}"), &rule] {
                let line = screen.styled(OutputStream::Stdout, HEADING, line);
                screen.buffer(OutputStream::Stdout)?.extend_from_slice(format!("{line}\n").as_bytes());
            }
        }
        let Some(held) = self.held(group) else { return Ok(()) };
        let dropped = held.dropped();
        let last = copy(held.reader()?, screen)?;
        if last.is_some_and(|byte| byte != b'\n') {
            screen.buffer(OutputStream::Stdout)?.push(b'\n');
        }
        match dropped {
            0 => Ok(()),
            bytes => {
                let names = folded_names(group, hosts);
                screen.message(&format!("{names}: {bytes} more bytes were dropped; increase --keep"))
            }
        }
    }

    /// Prints the diff of a group to the first one.
    fn difference(&mut self, first: &[usize], group: &[usize], hosts: &[Host], screen: &mut Screen) -> io::Result<()> {
        let names = [folded_names(first, hosts), folded_names(group, hosts)];
        let (Some(old), Some(new)) = (self.text(first)?, self.text(group)?) else {
            return screen.message(&format!("{} differs from {}, and is too long to compare", names[1], names[0]));
        };
        let diff = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(old.as_slice(), new.as_slice());
        let mut text = Vec::new();
        diff.unified_diff().context_radius(3).header(&names[0], &names[1]).to_writer(&mut text)?;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let style = match line.first() {
                Some(b'-') => Some(REMOVED),
                Some(b'+') => Some(ADDED),
                Some(b'@') => Some(HEADING),
                _ => None,
            };
            let (before, after) = match style {
                Some(style) => {
                    let mark = screen.styled(OutputStream::Stdout, style, "\n");
                    mark.split_once('\n').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap_or_default()
                }
                None => Default::default(),
            };
            let is_terminal = screen.is_terminal(OutputStream::Stdout);
            let buffer = screen.buffer(OutputStream::Stdout)?;
            buffer.extend_from_slice(before.as_bytes());
            neutral::push(buffer, line.strip_suffix(b"\n").unwrap_or(line), is_terminal);
            buffer.extend_from_slice(after.as_bytes());
            buffer.push(b'\n');
        }
        Ok(())
    }

    fn text(&mut self, group: &[usize]) -> io::Result<Option<Vec<u8>>> {
        let Some(held) = self.held(group) else { return Ok(None) };
        let mut text = Vec::new();
        held.reader()?.take(MAX_DIFF_BYTES + 1).read_to_end(&mut text)?;
        Ok((text.len() as u64 <= MAX_DIFF_BYTES).then_some(text))
    }

    /// Prints the first line of all hosts, then the second, and so on, identical lines once.
    fn lines(&mut self, hosts: &[Host], screen: &mut Screen) -> io::Result<()> {
        let mut readers = Vec::new();
        for (number, held) in self.held.iter_mut().enumerate() {
            if let Some(held) = held {
                readers.push((number, BufReader::new(held.reader()?)));
            }
        }
        while !readers.is_empty() {
            let mut lines: Vec<(Vec<u8>, Vec<usize>)> = Vec::new();
            let mut known = HashMap::new();
            let mut left = Vec::with_capacity(readers.len());
            for (number, mut reader) in readers {
                let mut line = Vec::new();
                if reader.by_ref().take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line)? == 0 {
                    continue;
                }
                let index = *known.entry(line.clone()).or_insert(lines.len());
                match lines.get_mut(index) {
                    Some((_, numbers)) => numbers.push(number),
                    None => lines.push((line, vec![number])),
                }
                left.push((number, reader));
            }
            readers = left;
            for (line, numbers) in lines {
                let prefix =
                    screen.styled(OutputStream::Stdout, HEADING, &format!("{}: ", folded_names(&numbers, hosts)));
                let is_terminal = screen.is_terminal(OutputStream::Stdout);
                let buffer = screen.buffer(OutputStream::Stdout)?;
                if self.headings {
                    buffer.extend_from_slice(prefix.as_bytes());
                }
                neutral::push(buffer, line.strip_suffix(b"\n").unwrap_or(&line), is_terminal);
                buffer.push(b'\n');
            }
        }
        Ok(())
    }
}

impl Show for Gather {
    fn event(&mut self, number: usize, host: &Host, event: &Event, screen: &mut Screen) -> io::Result<()> {
        match event {
            Event::Output(output) if output.stream == OutputStream::Stdout || self.stderr_too => {
                let keep = self.keep;
                let Some(held) = self.held.get_mut(number) else { return Ok(()) };
                held.get_or_insert_with(|| HeldOutput::new(keep)).write(&output.data)
            }
            event => self.live.event(number, host, event, screen),
        }
    }

    fn finish(&mut self, hosts: &[Host], screen: &mut Screen) -> io::Result<()> {
        if self.by_line && !self.diff {
            return self.lines(hosts, screen);
        }
        let groups = self.groups();
        let (Some(first), true) = (groups.first(), self.diff) else {
            return groups.iter().try_for_each(|group| self.block(group, hosts, screen));
        };
        self.block(first, hosts, screen)?;
        groups.iter().skip(1).try_for_each(|group| self.difference(first, group, hosts, screen))
    }
}

fn folded_names(numbers: &[usize], hosts: &[Host]) -> String {
    fold(numbers.iter().filter_map(|number| hosts.get(*number)).map(|host| host.name.as_str()))
}

/// Copies everything to standard output; returns the last byte.
fn copy(reader: impl Read, screen: &mut Screen) -> io::Result<Option<u8>> {
    let is_terminal = screen.is_terminal(OutputStream::Stdout);
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    let mut last = None;
    while reader.by_ref().take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line)? > 0 {
        last = line.last().copied();
        let buffer = screen.buffer(OutputStream::Stdout)?;
        match line.strip_suffix(b"\n") {
            Some(text) => {
                neutral::push(buffer, text, is_terminal);
                buffer.push(b'\n');
            }
            None => neutral::push(buffer, &line, is_terminal),
        }
        line.clear();
    }
    Ok(last)
}
