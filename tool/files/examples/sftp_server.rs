//! Serves SFTP on standard input and output, and permits everything: `sftp -D target/debug/examples/sftp_server`.
//!
//! What was done with files is written to standard error if `SFTP_SERVER_LOG` is set.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use telexec_files::sftp::{Access, ClosedFile, Gate, serve};

/// What may come while the client does not read. OpenSSH's own takes as much.
const MAX_AHEAD_BYTES: usize = 128 * 1024 * 1024;

/// Standard input and output, which may be one socket. Some clients write many requests before they read an answer: while
/// no answer can be written, requests are read.
struct Streams {
    input: File,
    output: File,
    ahead: VecDeque<u8>,
    is_over: bool,
}

impl Streams {
    fn new() -> io::Result<Self> {
        // without the buffers of the standard library
        let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        for file in [&input, &output] {
            fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?;
        }
        Ok(Self { input, output, ahead: VecDeque::new(), is_over: false })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.ahead.is_empty() && !self.is_over {
            match self.input.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.input, PollFlags::IN)], None)?;
                }
                read => return read,
            }
        }
        self.ahead.read(buffer)
    }

    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        loop {
            match self.output.write(data) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait()?,
                written => return written,
            }
        }
    }

    /// Until more can be written; reads what comes meanwhile.
    fn wait(&mut self) -> io::Result<()> {
        let mut both = [PollFd::new(&self.output, PollFlags::OUT), PollFd::new(&self.input, PollFlags::IN)];
        let reads = !self.is_over && self.ahead.len() < MAX_AHEAD_BYTES;
        let polled = if reads { &mut both[..] } else { &mut both[..1] };
        poll(polled, None)?;
        if reads && !both[1].revents().is_empty() {
            let mut piece = [0; 64 * 1024];
            match self.input.read(&mut piece) {
                Ok(0) => self.is_over = true,
                Ok(read) => self.ahead.extend(piece.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

struct Input<'a>(&'a RefCell<Streams>);

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().read(buffer)
    }
}

struct Output<'a>(&'a RefCell<Streams>);

impl Write for Output<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Open {
    logs: bool,
}

impl Gate for Open {
    fn permit(&mut self, access: Access, real_path: &[u8]) -> io::Result<bool> {
        if self.logs {
            eprintln!("{access:?} {}", real_path.escape_ascii());
        }
        Ok(true)
    }

    fn closed(&mut self, file: ClosedFile) -> io::Result<()> {
        if self.logs {
            let ClosedFile { path, bytes_read, bytes_written } = file;
            eprintln!("closed {}: {bytes_read} read, {bytes_written} written", path.escape_ascii());
        }
        Ok(())
    }
}

fn main() -> io::Result<()> {
    let streams = RefCell::new(Streams::new()?);
    let mut gate = Open { logs: std::env::var_os("SFTP_SERVER_LOG").is_some() };
    serve(Input(&streams), Output(&streams), &mut gate)
}
