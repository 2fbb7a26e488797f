//! The terminal of this process: its size, and raw mode.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use telexec_executor::{InvalidCommand, TerminalSize};

use crate::output::{Failure, exit};

/// The size when there is no terminal.
const COLUMNS: u32 = 80;
const ROWS: u32 = 24;

/// The size of the terminal.
pub(crate) fn size() -> Result<TerminalSize, InvalidCommand> {
    let window = window(&io::stdout()).or_else(|| window(&io::stdin())).or_else(|| window(&io::stderr()));
    window.map_or_else(|| TerminalSize::new(COLUMNS, ROWS), Ok)
}

/// Width of the terminal on standard output; `None` if it is not a terminal.
pub(crate) fn output_width() -> Option<usize> {
    window(&io::stdout()).map(|size| size.columns().into())
}

/// Width of the terminal on standard error.
pub(crate) fn stderr_width() -> Option<usize> {
    window(&io::stderr()).map(|size| size.columns().into())
}

/// Also `None` if the size is 0, which means that it was never set.
fn window(stream: &(impl AsFd + IsTerminal)) -> Option<TerminalSize> {
    let size = tcgetwinsize(stream).ok().filter(|_| stream.is_terminal())?;
    TerminalSize::new(size.ws_col.into(), size.ws_row.into()).ok()
}

/// Raw mode on standard input, so that all keys go to the command. Restored on drop.
pub(crate) struct RawMode {
    terminal: OwnedFd,
    before: Termios,
}

impl RawMode {
    pub(crate) fn enter() -> Result<Self, Failure> {
        Self::set().map_err(|error| Failure::new(exit::LOST, &error).context("cannot put the terminal into raw mode"))
    }

    fn set() -> io::Result<Self> {
        let terminal = io::stdin().as_fd().try_clone_to_owned()?;
        let before = tcgetattr(&terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // not TCSADRAIN: the terminal may have stopped output
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}
