//! `telexec ssh` in the help: its command line is ssh's, which `commands::ssh` reads.

use std::ffi::OsString;
use std::path::Path;

use clap::Args;

use super::complete;

/// The names by which the program is `telexec ssh`; the second one is for programs that know no other.
const PROGRAMS: [&str; 2] = ["telexec-ssh", "ssh"];

#[derive(Debug, Args)]
#[command(
    override_usage = "telexec ssh [FLAGS] [USER@]HOST [WORD]...\n       \
                      telexec-ssh [FLAGS] [USER@]HOST [WORD]...",
    after_long_help = "\
HOST is a TARGET (see telexec -h); names and credentials are those of telexec's configuration and environment. \
The words are joined by spaces and run by the login shell of the user's account, in its home. Without any, the user's \
login shell runs.

Flags, as with ssh(1), before and after HOST:
  -l USER            run, and connect to Unix sockets, as this user; without one, as configured
  -p PORT            the agent's port; 22, ssh's default, is telexec's default
  -t, -tt, -T        a terminal if standard input is one, always, never
  -n, -f             standard input is /dev/null; and go to the background once connected
  -N                 no command: until a signal, or the agent is gone
  -W HOST:PORT|/PATH standard input and output are a connection from the agent's machine
  -L, -R, -D         forwards and a SOCKS proxy, as with telexec forward
  -s sftp            an SFTP session with the machine's files
  -q, -E FILE        no messages of telexec's own; messages to this file
  -G, -V             print the settings of HOST; the version
  -o KEY=VALUE       User, Port, HostName, ConnectTimeout, RequestTTY, RemoteCommand, SessionType,
                     StdinNull, SetEnv, SendEnv, LogLevel, LocalForward, RemoteForward,
                     DynamicForward and ExitOnForwardFailure have their meaning; others are ignored
  -O check|exit|stop 255, as without a master connection, since none is needed
  -1246AaCgKkMvXxYy and -BbceFIimPS with a value are ignored
  -w and -J, with their keys and ProxyCommand, are refused

After a lost connection telexec reconnects for up to 30s, or TELEXEC_RECONNECT (0: not at all).

Exit codes:
  the command's own, or
  124 to 127, 128+n  as with telexec exec
  255                invalid command line or configuration, or the agent is unreachable or lost",
    after_help = "\
Examples:
  telexec ssh web1 uptime
  GIT_SSH_COMMAND='telexec ssh' git clone deploy@web1:app.git
  rsync -a -e 'telexec ssh' site/ web1:/srv/site/"
)]
pub(crate) struct SshArgs {
    /// What ssh takes
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true, add = complete::targets())]
    pub(crate) words: Vec<OsString>,
}

/// The words for ssh, if the line has any. Where it asks for help, it becomes one of `telexec`.
pub(super) fn words(line: &mut Vec<OsString>) -> Option<Vec<OsString>> {
    let name = line.first().and_then(|name| Path::new(name).file_name());
    let is_name = name.is_some_and(|name| PROGRAMS.iter().any(|program| name == *program));
    if is_name {
        line.splice(..1, ["telexec".into(), "ssh".into()]);
    }
    let is_ssh = line.get(1).is_some_and(|word| word == "ssh");
    let asks_for_help = line.get(2).is_some_and(|word| word == "--help" || word == "-h");
    (is_ssh && !asks_for_help).then(|| line.split_off(2))
}
