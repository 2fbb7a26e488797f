//! What is answered without an agent: -G, -V, -Q and -O.

use std::fmt::Write;

use telexec_client::Target;

use super::line::{Line, Tty};
use super::run;
use crate::config::{Config, Route};
use crate::output::{self, Failure, exit};

/// -G: the settings in the words of ssh_config(5). git asks only whether this works.
pub(super) fn settings(line: &Line) -> Result<u8, Failure> {
    let args = run::connection(line)?;
    let resolved = Config::load()?.resolve(&args.agent.target, &args.connect)?;
    let mut text = format!("host {}\n", line.host);
    let mut key = |name: &str, value: &str| _ = writeln!(text, "{name} {value}");
    if let Some(user) = args.user.or(resolved.user) {
        key("user", &user);
    }
    match &resolved.route {
        Route::Direct(Target::Tcp { host, port }) => {
            key("hostname", host);
            key("port", &port.to_string());
        }
        Route::Direct(other) => key("hostname", &other.to_string()),
        Route::Nats(other, _) => key("hostname", &other.to_string()),
        Route::Local => key("hostname", "local"),
    }
    key("connecttimeout", &resolved.options.connect_timeout.as_secs().to_string());
    let tty = match line.settings.tty {
        Some(Tty::Never) => "false",
        Some(Tty::Wanted) => "true",
        Some(Tty::Always) => "force",
        Some(Tty::Auto) | None => "auto",
    };
    key("requesttty", tty);
    output::print(text.as_bytes()).map(|()| 0)
}

/// -V, on standard error as ssh has it.
pub(super) fn version() -> Result<u8, Failure> {
    eprintln!("telexec {}, with the command line of ssh", env!("CARGO_PKG_VERSION"));
    Ok(0)
}

/// -Q: ssh's ciphers, keys and the like.
pub(super) fn query(what: &str) -> Failure {
    Failure::message(exit::LOST, format!("-Q {what} is not supported: telexec uses TLS, not the SSH protocol"))
}

/// -O: the answer of ssh where no master runs, on which Ansible has nothing to reset.
pub(super) fn control(what: &str) -> Failure {
    Failure::message(exit::LOST, format!("-O {what}: there is no master connection: telexec needs none"))
}
