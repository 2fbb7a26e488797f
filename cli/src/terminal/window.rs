//! The terminal that this process was started in: its size, and raw mode.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use telexec_executor::{InvalidCommand, TerminalSize};

use crate::output::{Failure, exit};

/// Where there is no window: the classic terminal.
const COLUMNS: u32 = 80;
const ROWS: u32 = 24;

/// The window's size.
pub(crate) fn size() -> Result<TerminalSize, InvalidCommand> {
    let window = window(&io::stdout()).or_else(|| window(&io::stdin())).or_else(|| window(&io::stderr()));
    window.map_or_else(|| TerminalSize::new(COLUMNS, ROWS), Ok)
}

/// How wide a line of standard output may be; `None`: that is no terminal.
pub(crate) fn output_width() -> Option<usize> {
    window(&io::stdout()).map(|size| size.columns().into())
}

/// `None` also if its size is 0, which means that nobody has told it.
fn window(stream: &(impl AsFd + IsTerminal)) -> Option<TerminalSize> {
    let size = tcgetwinsize(stream).ok().filter(|_| stream.is_terminal())?;
    TerminalSize::new(size.ws_col.into(), size.ws_row.into()).ok()
}

/// Raw mode of the terminal that is standard input: every key goes to the command. It ends when this is dropped.
pub(crate) struct RawMode {
    terminal: OwnedFd,
    before: Termios,
}

impl RawMode {
    pub(crate) fn enter() -> Result<Self, Failure> {
        Self::set().map_err(|error| Failure::new(exit::LOST, &error).during("cannot put the terminal into raw mode"))
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
        // at once: to wait for the output would be to wait for a terminal that may have stopped it
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}
