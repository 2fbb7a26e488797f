//! The size of a terminal.

use crate::InvalidCommand;

/// The size of a terminal, in characters: 1 to 65,535 each, as the kernel counts them (see TIOCSWINSZ, ioctl_tty(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminalSize {
    columns: u16,
    rows: u16,
}

impl TerminalSize {
    /// A size.
    ///
    /// # Errors
    /// A number is out of range; the error names the field as one of `terminal`.
    pub fn new(columns: u32, rows: u32) -> Result<Self, InvalidCommand> {
        let check = |number: u32, field| match u16::try_from(number) {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(InvalidCommand::new(field, "is not from 1 to 65535")),
        };
        Ok(Self { columns: check(columns, "terminal.columns")?, rows: check(rows, "terminal.rows")? })
    }

    /// How many characters fit into a line.
    pub fn columns(self) -> u16 {
        self.columns
    }

    /// How many lines there are.
    pub fn rows(self) -> u16 {
        self.rows
    }
}
