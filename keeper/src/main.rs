//! `telexec-keeper`: see the library. `telexecd` becomes it, unless it is to have no keeper.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::process::ExitCode;

use telexec_keeper::agent_user::AgentUser;
use telexec_keeper::users::{self, Users};
use telexec_keeper::{AGENT_USER, FORMATS, NO_NEW_PRIVILEGES, STATE, SYSLOG, Terms, USERS, formats, log};

const HELP: &str =
    "The keeper of a telexec agent: starts it, restarts it if it crashes, and is the parent of its commands

It is started by telexecd; see its option --keeper, and docs/OPERATING.md.";

/// EX_USAGE of sysexits.h.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.first().and_then(|first| first.to_str()) {
        Some("-V" | "--version") => {
            println!("telexec-keeper {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Some("-h" | "--help") => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some(FORMATS) => {
            println!("{}", formats());
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let Some(Arguments { command, terms, agent_user, state }) = read(&arguments) else { return usage() };
    match telexec_keeper::keep(command, terms, agent_user, state) {
        Ok(code) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    }
}

struct Arguments<'a> {
    /// The agent's command line.
    command: &'a [OsString],
    terms: Terms,
    agent_user: Option<AgentUser>,
    /// What this process had before it ran this program.
    state: Option<RawFd>,
}

fn read(mut arguments: &[OsString]) -> Option<Arguments<'_>> {
    let (mut terms, mut agent_user, mut state) = (Terms::default(), None, None);
    loop {
        match arguments {
            [flag, text, rest @ ..] if flag == USERS => {
                terms.users = Some(Users::read(text.to_str()?)?);
                arguments = rest;
            }
            [flag, rest @ ..] if flag == NO_NEW_PRIVILEGES => {
                terms.no_new_privileges = true;
                arguments = rest;
            }
            [flag, socket, rest @ ..] if flag == SYSLOG => {
                terms.syslog = Some(socket.clone());
                arguments = rest;
            }
            [flag, user, cgroups, rest @ ..] if flag == AGENT_USER => {
                agent_user = Some(AgentUser::new(users::read_one(user.to_str()?)?, cgroups.into()));
                arguments = rest;
            }
            [flag, number, rest @ ..] if flag == STATE => {
                state = Some(number.to_str()?.parse().ok()?);
                arguments = rest;
            }
            [] => return None,
            command => return Some(Arguments { command, terms, agent_user, state }),
        }
    }
}

fn usage() -> ExitCode {
    log::line("is started by telexecd (see its option --keeper), and takes the command line of its agent");
    ExitCode::from(USAGE)
}
