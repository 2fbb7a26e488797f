//! `telexec-keeper`: see the library. `telexecd --keeper on` becomes it.

use std::process::ExitCode;

use telexec_keeper::users::Users;
use telexec_keeper::{USERS, log};

/// EX_USAGE of sysexits.h.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let command: Vec<_> = std::env::args_os().skip(1).collect();
    let users = match &command[..] {
        [flag, users, ..] if flag == USERS => match users.to_str().and_then(Users::read) {
            Some(users) => Some(users),
            None => return usage(),
        },
        _ => None,
    };
    let command = if users.is_some() { command.get(2..).unwrap_or_default() } else { &command };
    if command.is_empty() {
        return usage();
    }
    match telexec_keeper::keep(command, users) {
        Ok(code) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    }
}

fn usage() -> ExitCode {
    log::line("is started by telexecd --keeper on, and takes the command line of its agent");
    ExitCode::from(USAGE)
}
