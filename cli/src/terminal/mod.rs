//! The environment of this process: terminal, standard input, signals.

mod detach;
mod escape;
mod modes;
mod signals;
pub(crate) mod stdin;
mod window;

pub(crate) use self::detach::{DetachFilter, DetachKeys};
pub(crate) use self::escape::EscapeFilter;
pub(crate) use self::modes::ScreenModes;
pub(crate) use self::signals::Signals;
pub(crate) use self::window::{RawMode, output_width, size, stderr_width};
