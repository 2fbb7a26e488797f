//! What telexec prints, and the code that it exits with.

mod execution;
pub(crate) mod exit;
mod failure;
pub(crate) mod json;
mod table;
mod writer;

pub(crate) use self::execution::{rough, state};
pub(crate) use self::failure::{Failure, say, say_meanwhile, with_causes};
pub(crate) use self::table::{fields, printable, table};
pub(crate) use self::writer::{Output, print, unbuffered, write_all, write_failure};
