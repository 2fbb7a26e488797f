//! Pseudo-terminals: see pty(7).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rustix::fs::{Mode, Uid, fchmod, fchown};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, SpecialCodeIndex, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetwinsize};
use telexec_executor::{OutputStream, TerminalSize};
use telexec_spawn::Credentials;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::end::StreamEnd;
use super::source::Relay;
use crate::lock::lock;
use crate::process::control;
use crate::state::checkpoint::Checkpoint;

/// Both ends of a new terminal: this side's, and the command's.
///
/// # Errors
/// There are no more, or no descriptors.
pub(crate) fn open(size: TerminalSize) -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let this_side = openpt(flags)?;
    grantpt(&this_side)?;
    unlockpt(&this_side)?;
    let other_side = ioctl_tiocgptpeer(&this_side, flags)?;
    tcsetwinsize(&this_side, winsize(size))?;
    Ok((this_side, other_side))
}

/// Gives the command's end to a user, as far as this process may.
pub(crate) fn give(end: &OwnedFd, user: &Credentials) {
    let _ = fchown(end, Some(Uid::from_raw(user.uid)), None);
    let _ = fchmod(end, Mode::RUSR | Mode::WUSR);
}

fn winsize(size: TerminalSize) -> Winsize {
    Winsize { ws_col: size.columns(), ws_row: size.rows(), ws_xpixel: 0, ws_ypixel: 0 }
}

/// This side of a command's terminal. Dropping the last owner of it hangs the terminal up.
pub(crate) struct Terminal {
    file: AsyncFd<StreamEnd>,
    /// The command's side, held open too: a command may close its terminal and open `/dev/tty` later, and without this
    /// the moment in between would look like the end of its output.
    peer: Mutex<Option<Peer>>,
}

/// The command's side of a terminal.
pub(crate) struct Peer {
    pub(super) file: OwnedFd,
    /// The keeper has it too, by this number.
    pub(super) kept: Option<(Arc<Checkpoint>, u8)>,
}

impl Terminal {
    /// # Errors
    /// The runtime cannot watch another descriptor.
    pub(crate) fn new(file: StreamEnd, peer: Option<Peer>) -> io::Result<Self> {
        let file = control::watch_for(file, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self { file, peer: Mutex::new(peer) })
    }

    /// From now on the output ends when the last process has closed its side. For when no process can open it again.
    pub(crate) fn close_peer(&self) {
        let Some(Peer { file, kept }) = lock(&self.peer).take() else { return };
        drop(file);
        kept.into_iter().for_each(|(checkpoint, number)| checkpoint.close(number));
    }

    /// Sets its size; its foreground processes get SIGWINCH.
    ///
    /// # Errors
    /// None are known.
    pub(crate) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        Ok(tcsetwinsize(self.file.get_ref(), winsize(size))?)
    }

    /// Its size; `None`: it has none.
    pub(crate) fn size(&self) -> Option<TerminalSize> {
        let size = tcgetwinsize(self.file.get_ref()).ok()?;
        TerminalSize::new(size.ws_col.into(), size.ws_row.into()).ok()
    }

    /// Whether it reads a line without an echo, as programs that ask for a password have it.
    pub(crate) async fn hides_input(self: &Arc<Self>) -> bool {
        let modes = self.attributes().await.map(|attributes| attributes.local_modes);
        modes.is_ok_and(|modes| modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO))
    }

    /// Waits until something was written to it, or no process has it open.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.file.readable().await.map(|mut ready| ready.retain_ready())
    }

    /// Adds what was written to `bytes`, as much as there is room; nothing: no process has it open.
    ///
    /// # Errors
    /// `WouldBlock`: nothing was written.
    pub(crate) fn try_read(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let read = self
            .file
            .try_io(Interest::READABLE, |file| Ok(rustix::io::read(file, rustix::buffer::spare_capacity(bytes))?));
        match read {
            // the last one has closed it
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(0),
            read => read,
        }
    }

    /// The same by a pipe, and kept for the next agent.
    ///
    /// # Errors
    /// `WouldBlock`: nothing was written.
    pub(crate) fn try_relay(&self, relay: &Relay, most: usize) -> io::Result<Vec<Bytes>> {
        let Relay { read, write, checkpoint, .. } = relay;
        if !relay.has_left() {
            let relayed = self
                .file
                .try_io(Interest::READABLE, |file| Ok(splice(file, None, write, None, most, SpliceFlags::NONBLOCK)?));
            match relayed {
                Ok(0) => return Ok(Vec::new()),
                // before Linux 5.11
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    let mut bytes = Vec::with_capacity(most);
                    return match self.try_read(&mut bytes)? {
                        0 => Ok(Vec::new()),
                        _ => checkpoint.read(checkpoint.add(OutputStream::Stdout, &bytes)?, most),
                    };
                }
                // the last one has closed it
                Err(error) if error.raw_os_error() == Some(libc::EIO) => return Ok(Vec::new()),
                relayed => relayed?,
            };
        }
        checkpoint.read(checkpoint.take(OutputStream::Stdout, read.as_fd(), most)?, most)
    }

    /// Types some of these bytes; returns how many. `typed` gets how many, before they are typed and if those were fewer.
    ///
    /// # Errors
    /// It is broken, or was hung up while it is full.
    pub(crate) async fn write(&self, bytes: &[u8], typed: impl Fn(usize)) -> io::Result<usize> {
        loop {
            let mut ready = self.file.writable().await?;
            typed(bytes.len());
            let written = rustix::io::write(self.file.get_ref(), bytes);
            typed(written.unwrap_or(0));
            match written {
                // a terminal whose session has ended stays ready and full: waiting would never end
                Err(Errno::WOULDBLOCK) if ready.ready().is_write_closed() => {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                Err(Errno::WOULDBLOCK) => ready.clear_ready(),
                written => return Ok(written?),
            }
        }
    }

    /// What its user types to end the input: usually Ctrl-D.
    pub(crate) async fn end_of_file(self: &Arc<Self>) -> u8 {
        /// Ctrl-D.
        const EOT: u8 = 4;
        self.attributes().await.map_or(EOT, |settings| settings.special_codes[SpecialCodeIndex::VEOF])
    }

    async fn attributes(self: &Arc<Self>) -> io::Result<Termios> {
        let terminal = Arc::clone(self);
        self.file.get_ref().run(move || Ok(tcgetattr(terminal.file.get_ref())?)).await
    }
}
