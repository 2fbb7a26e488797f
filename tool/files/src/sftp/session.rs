//! Requests, one after another.

use std::io::{self, Read, Write};

use rustix::io::Errno;
use telexec_executor::{FileError, FileOperation, FilePath};

use super::answers::{Answers, Packet};
use super::extensions::EXTENSIONS;
use super::handles::{Handles, Open};
use super::packets::Packets;
use super::wire::{Fields, Status, VERSION, answer, request};
use super::{Access, ClosedFile, Gate};
use crate::descend::paths_below;
use crate::names::Names;
use crate::place::Place;
use crate::search::below;
use crate::session::{failure, malformed};

/// Why a request has no result.
pub(crate) enum Refusal {
    /// The session is of no more use.
    Io(io::Error),
    /// The system refused.
    Failed(FileError),
    /// The gate's verdict was no.
    Denied(Access, Vec<u8>),
    /// Another reason, or none: an end.
    Status(Status, &'static str),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Self {
        Self::Failed(error)
    }
}

/// What is known beside the input.
pub(crate) struct Session<'gate, O, G> {
    pub(crate) answers: Answers<O>,
    pub(crate) handles: Handles,
    pub(crate) names: Names,
    gate: &'gate mut G,
    has_begun: bool,
}

impl<'gate, O: Write, G: Gate> Session<'gate, O, G> {
    pub(crate) fn new(output: O, gate: &'gate mut G) -> Self {
        let (answers, handles) = (Answers::new(output), Handles::new());
        Self { answers, handles, names: Names::default(), gate, has_begun: false }
    }

    /// Answers all requests, and tells the gate what was left open.
    pub(crate) fn run<I: Read>(mut self, packets: Packets<I>) -> io::Result<()> {
        let ended = self.answer_all(packets);
        let flushed = self.answers.flush();
        let mut told = Ok(());
        while let Some(open) = self.handles.take() {
            told = told.and(self.tell(&open));
        }
        ended.and(flushed).and(told)
    }

    fn answer_all<I: Read>(&mut self, mut packets: Packets<I>) -> io::Result<()> {
        loop {
            while let Some(packet) = packets.next()? {
                self.packet(packet)?;
            }
            self.answers.flush()?;
            if !packets.fill()? {
                return Ok(());
            }
        }
    }

    fn packet(&mut self, packet: &[u8]) -> io::Result<()> {
        let mut fields = Fields::of(packet);
        let kind = fields.u8()?;
        // of the first packet the version
        let id = fields.u32()?;
        if kind == request::INIT {
            self.has_begun = true;
            return self.introduce();
        }
        if !self.has_begun {
            return Err(malformed("an SFTP request before the version of the client"));
        }
        match self.request(kind, id, fields) {
            Ok(()) => Ok(()),
            Err(Refusal::Io(error)) => Err(error),
            Err(Refusal::Status(status, text)) => self.answers.status(id, status, text),
            Err(Refusal::Failed(error)) => {
                self.answers.status(id, Errno::from_raw_os_error(error.errno).into(), &error.to_string())
            }
            Err(Refusal::Denied(access, path)) => {
                let what = match access {
                    Access::Read => "read",
                    Access::Write => "write",
                    Access::List => "list",
                    Access::Watch => "watch",
                };
                let text = format!("the policy denied to {what} {}", FilePath::new(path));
                self.answers.status(id, Status::PermissionDenied, &text)
            }
        }
    }

    fn introduce(&mut self) -> io::Result<()> {
        let packet = Packet::new(answer::VERSION, VERSION);
        let add =
            |packet: Packet, (name, version): &(&str, &str)| packet.string(name.as_bytes()).string(version.as_bytes());
        self.answers.send(EXTENSIONS.iter().fold(packet, add))
    }

    fn request(&mut self, kind: u8, id: u32, fields: Fields<'_>) -> Result<(), Refusal> {
        match kind {
            request::OPEN => self.open(id, fields),
            request::CLOSE => self.close(id, fields),
            request::READ => self.read(id, fields),
            request::WRITE => self.write(id, fields),
            request::FSTAT => self.stat_open(id, fields),
            request::FSETSTAT => self.change_open(id, fields),
            request::OPENDIR => self.open_directory(id, fields),
            request::READDIR => self.read_directory(id, fields),
            request::LSTAT => self.stat(id, fields, crate::place::Links::Keep),
            request::STAT => self.stat(id, fields, crate::place::Links::Follow),
            request::SETSTAT => self.change(id, fields),
            request::REMOVE => self.remove(id, fields),
            request::MKDIR => self.make_directory(id, fields),
            request::RMDIR => self.remove_directory(id, fields),
            request::REALPATH => self.real_path(id, fields),
            request::RENAME => self.rename(id, fields),
            request::READLINK => self.read_link(id, fields),
            request::SYMLINK => self.make_link(id, fields),
            request::EXTENDED => self.extended(id, fields),
            _ => Err(Refusal::Status(Status::Unsupported, "a request that SFTP version 3 does not have")),
        }
    }

    /// Whether the gate permits this with what is there.
    pub(crate) fn permitted(&mut self, access: Access, place: &Place) -> Result<(), Refusal> {
        self.permitted_path(access, place.real())
    }

    pub(crate) fn permitted_path(&mut self, access: Access, path: Vec<u8>) -> Result<(), Refusal> {
        match self.gate.permit(access, &path)? {
            true => Ok(()),
            false => Err(Refusal::Denied(access, path)),
        }
    }

    /// Whether the gate permits a move with all that moves: under its new path other rules are for it.
    pub(crate) fn permitted_move(&mut self, from: &Place, to: &Place) -> Result<(), Refusal> {
        if !self.gate.judges_parts() {
            return Ok(());
        }
        let (source, destination) = (from.real(), to.real());
        let paths = paths_below(from).map_err(failure(FileOperation::Open, &source))?;
        for (access, base) in [(Access::Read, &source), (Access::Write, &source), (Access::Write, &destination)] {
            for path in std::iter::once(base.clone()).chain(paths.iter().map(|path| below(base, path))) {
                if !self.gate.permit_part(access, &path)? {
                    return Err(Refusal::Denied(access, path));
                }
            }
        }
        Ok(())
    }

    /// Tells the gate what was done with a file.
    pub(crate) fn tell(&mut self, open: &Open) -> io::Result<()> {
        match open {
            Open::Directory(_) => Ok(()),
            Open::File(file) => self.gate.closed(ClosedFile {
                path: file.path.clone(),
                bytes_read: file.read,
                bytes_written: file.written,
            }),
        }
    }
}
