//! An SFTP session in the frames of the pipes: data both ways, with the questions and reports of its gate between.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};

use prost::Message;

use crate::frame::{self, Kind, MAX_BYTES};
use crate::message::{Access, Question, Report};
use crate::session::malformed;
use crate::sftp::{self, ClosedFile, Gate};

/// Data that came while a verdict was due. A pipe has less, so it is never reached.
const MAX_QUEUED_BYTES: usize = 8 * 1024 * 1024;

/// Answers SFTP requests until their end.
///
/// # Errors
/// As of [`sftp::serve`].
pub(crate) fn serve(input: &mut impl Read, output: &mut impl Write, asks: bool, asks_below: bool) -> io::Result<()> {
    let pipes = RefCell::new(Pipes { input, output, queued: VecDeque::new(), is_over: false });
    sftp::serve(Input(&pipes), Output(&pipes), &mut Asking { pipes: &pipes, asks, asks_below })
}

struct Pipes<'a, I, O> {
    input: &'a mut I,
    output: &'a mut O,
    /// Data that is not read yet.
    queued: VecDeque<u8>,
    /// No more comes.
    is_over: bool,
}

impl<I: Read, O: Write> Pipes<'_, I, O> {
    /// The next frame; its data is queued. `None`: the agent is gone.
    fn next(&mut self, data: &mut Vec<u8>) -> io::Result<Option<Kind>> {
        let kind = frame::read(self.input, data)?;
        let Some(known) = kind else {
            self.is_over = true;
            return Ok(None);
        };
        match known {
            Kind::Data if self.queued.len() + data.len() > MAX_QUEUED_BYTES => return Err(malformed("too much data")),
            Kind::Data => self.queued.extend(data.iter()),
            Kind::End => self.is_over = true,
            _ => {}
        }
        Ok(kind)
    }

    fn send(&mut self, kind: Kind, data: &[u8]) -> io::Result<()> {
        frame::write(self.output, kind, data)?;
        self.output.flush()
    }
}

struct Input<'p, 'a, I, O>(&'p RefCell<Pipes<'a, I, O>>);

impl<I: Read, O: Write> Read for Input<'_, '_, I, O> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut pipes = self.0.borrow_mut();
        let mut data = Vec::new();
        while pipes.queued.is_empty() && !pipes.is_over {
            match pipes.next(&mut data)? {
                Some(Kind::Data | Kind::End) | None => {}
                Some(_) => return Err(malformed("a frame where data was due")),
            }
        }
        pipes.queued.read(buffer)
    }
}

struct Output<'p, 'a, I, O>(&'p RefCell<Pipes<'a, I, O>>);

impl<I: Read, O: Write> Write for Output<'_, '_, I, O> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let piece = data.get(..data.len().min(MAX_BYTES)).unwrap_or_default();
        self.0.borrow_mut().send(Kind::Data, piece)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().output.flush()
    }
}

/// Asks the agent.
struct Asking<'p, 'a, I, O> {
    pipes: &'p RefCell<Pipes<'a, I, O>>,
    asks: bool,
    asks_below: bool,
}

impl<I: Read, O: Write> Asking<'_, '_, I, O> {
    fn ask(&mut self, access: Access, real_path: &[u8], is_part: bool) -> io::Result<bool> {
        let mut pipes = self.pipes.borrow_mut();
        let question = Question { access: access.into(), path: real_path.to_vec(), is_part };
        pipes.send(Kind::Question, &question.encode_to_vec())?;
        let mut data = Vec::new();
        loop {
            match pipes.next(&mut data)? {
                Some(Kind::Verdict) => return Ok(data == [1]),
                // the end of the requests, which are answered all the same
                Some(Kind::Data | Kind::End) => {}
                Some(_) => return Err(malformed("a frame where a verdict was due")),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

impl<I: Read, O: Write> Gate for Asking<'_, '_, I, O> {
    fn permit(&mut self, access: Access, real_path: &[u8]) -> io::Result<bool> {
        if self.asks { self.ask(access, real_path, false) } else { Ok(true) }
    }

    fn permit_part(&mut self, access: Access, real_path: &[u8]) -> io::Result<bool> {
        self.ask(access, real_path, true)
    }

    fn judges_parts(&self) -> bool {
        self.asks_below
    }

    fn closed(&mut self, file: ClosedFile) -> io::Result<()> {
        let ClosedFile { path, bytes_read, bytes_written } = file;
        self.pipes.borrow_mut().send(Kind::Report, &Report { path, bytes_read, bytes_written }.encode_to_vec())
    }
}
