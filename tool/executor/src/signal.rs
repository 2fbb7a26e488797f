//! Signals by name and number, as Linux counts them.
//!
//! A client may run on another system than the agent, so the numbers are not taken from its own C library.

use std::fmt;
use std::str::FromStr;

use crate::InvalidCommand;

/// A signal, numbered as Linux does on most architectures (see signal(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal(u8);

impl Signal {
    /// SIGHUP: the terminal is gone.
    pub const HUP: Self = Self(1);
    /// Asks to end; can be caught.
    pub const TERM: Self = Self(15);
    /// Ends; cannot be caught.
    pub const KILL: Self = Self(9);
    /// Continues after a stop.
    pub const CONT: Self = Self(18);

    /// The signal with this number, if there is one (1 to 64).
    pub fn from_number(number: i32) -> Option<Self> {
        u8::try_from(number).ok().filter(|n| (1..=64).contains(n)).map(Self)
    }

    /// Its number, 1 to 64.
    pub fn number(self) -> i32 {
        i32::from(self.0)
    }
}

/// The standard signals in the order of their numbers, from 1.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];
/// As bash counts them: glibc keeps 32 and 33 for itself.
const RTMIN: u8 = 34;

impl FromStr for Signal {
    type Err = InvalidCommand;

    /// Reads `SIGTERM`, `TERM`, `15` or `RTMIN+1`, in capitals.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.strip_prefix("SIG").unwrap_or(text);
        let named = NAMES.iter().position(|known| *known == name).and_then(|at| i32::try_from(at + 1).ok());
        let realtime = || match name.strip_prefix("RTMIN")? {
            "" => Some(i32::from(RTMIN)),
            offset => offset.strip_prefix('+')?.parse::<u8>().ok().map(|n| i32::from(RTMIN) + i32::from(n)),
        };
        let number = || text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        named
            .or_else(realtime)
            .or_else(number)
            .and_then(Self::from_number)
            .ok_or_else(|| InvalidCommand::new("signal", "not a signal: expected one such as SIGTERM, TERM or 15"))
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get(usize::from(self.0) - 1) {
            Some(name) => write!(f, "SIG{name}"),
            None if self.0 == RTMIN => f.write_str("SIGRTMIN"),
            None if self.0 > RTMIN => write!(f, "SIGRTMIN+{}", self.0 - RTMIN),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_reads_back_from_its_name_and_number() {
        for number in 1..=64 {
            let signal = Signal::from_number(number).unwrap();
            assert_eq!(signal.to_string().parse(), Ok(signal));
            assert_eq!(number.to_string().parse(), Ok(signal));
        }
        assert_eq!("TERM".parse(), Ok(Signal::TERM));
        assert_eq!(Signal::TERM.to_string(), "SIGTERM");
    }

    #[test]
    fn what_is_no_signal_is_refused() {
        for text in ["", "0", "65", "-9", "+9", "SIG", "SIGNOPE", "term", "RTMIN+31", "RTMIN-1", "99999999999", "9 "] {
            assert!(text.parse::<Signal>().is_err(), "{text:?}");
        }
    }
}
