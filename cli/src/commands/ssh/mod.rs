//! `telexec ssh` and `telexec-ssh`: ssh(1)'s command line, as other programs give it.
//!
//! `parse` reads it, `keys` reads its `-o KEY=VALUE`, `host` whom it names. `answers` is what needs no agent, `background`
//! is -f, `subsystem` is -s, `run` the rest.

mod answers;
mod background;
mod host;
mod keys;
mod line;
mod parse;
mod run;
mod subsystem;

use std::ffi::OsString;
use std::fs::OpenOptions;

use self::line::{Line, LogLevel, Request};
use crate::output::{Failure, exit, send_messages_to};

/// Runs the line, with the exit codes of ssh: 255 for all that is not the command's own.
pub(crate) fn run(words: Vec<OsString>) -> Result<u8, Failure> {
    let line = parse::line(words.clone())?;
    log(&line)?;
    let done = match &line.request {
        Request::Run if line.settings.background && !background::is_here() => {
            run::refuse(&line.settings).and_then(|()| background::start(&words))
        }
        Request::Run => run::command(&line),
        Request::Settings => answers::settings(&line),
        Request::Version => answers::version(),
        Request::Query(what) => Err(answers::query(what)),
        Request::Control(what) => Err(answers::control(what)),
    };
    done.map_err(|mut failure| {
        if failure.code == exit::USAGE {
            failure.code = exit::LOST;
        }
        failure
    })
}

/// Sends messages to where -q and -E say.
fn log(line: &Line) -> Result<(), Failure> {
    let settings = &line.settings;
    if settings.log_level == Some(LogLevel::Quiet) {
        send_messages_to(None);
    } else if let Some(path) = &settings.log_file {
        let file = OpenOptions::new().append(true).create(true).open(path);
        send_messages_to(Some(file.map_err(|error| Failure::new(exit::LOST, &error).context(path))?));
    }
    Ok(())
}
