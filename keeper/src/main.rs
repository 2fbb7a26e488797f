//! `telexec-keeper`: see the library. `telexecd --keeper on` becomes it.

use std::process::ExitCode;

/// EX_USAGE of sysexits.h.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let command: Vec<_> = std::env::args_os().skip(1).collect();
    if command.is_empty() {
        eprintln!("telexec-keeper: is started by telexecd --keeper on, and takes the command line of its agent");
        return ExitCode::from(USAGE);
    }
    match telexec_keeper::keep(&command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("telexec-keeper: {error}");
            ExitCode::FAILURE
        }
    }
}
