//! The command lines of `telexec forward` and `telexec connect`.

use clap::{ArgGroup, Args};
use telexec_client::Endpoint;

use super::agent::AnyAgentArg;
use crate::config::ConnectArgs;
use crate::connect::ReconnectArgs;
use crate::syntax::{Forwarding, parse_endpoint, parse_listen};

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("forwards").required(true).multiple(true),
    after_long_help = "\
Each flag may be repeated. Forwards until Ctrl-C or SIGTERM. Prints a line for each socket once it listens, such as \
-L 127.0.0.1:8080 -> db:5432; PORT 0 to listen on is one that is free. Names are looked up where the connection is made.

BIND is the address to listen on: localhost unless given; * is every address. For another one with -R the agent's \
policy has to permit it, or its configuration (allow_remote_bind). Either side may be a Unix socket: \
8080:/run/app.sock or /tmp/db.sock:db:5432. -L connects to a Unix socket on the agent's machine as the default user of \
commands, or as --user: then what listens there sees that user. -R listens as the agent's own.

The agent's policy decides about each connection of -L and -D, so they listen also if it denies all of them. A connection that \
fails is closed and reported on standard error; the others continue. With -R, telexec reconnects to \
the agent and listens again (--reconnect).

Exit codes: 1 an address cannot be listened on, here or on the agent's machine, 2 invalid command line or \
configuration, 125 refused by the agent, 130 after Ctrl-C, 255 the agent is unreachable or the connection was lost.",
    after_help = "\
Examples:
  telexec forward web1 -L 5432:db.internal:5432
  telexec forward web1 -R 9000:localhost:3000
  telexec forward web1 --user postgres -L 5432:/run/postgresql/.s.PGSQL.5432
  telexec forward web1 -D 1080 & curl --socks5-hostname localhost:1080 http://intranet/"
)]
pub(crate) struct ForwardArgs {
    #[command(flatten)]
    pub(crate) agent: AnyAgentArg,
    /// Listen here, connect from the agent's machine
    #[arg(short = 'L', long, group = "forwards", value_name = "[BIND:]PORT:HOST:PORT")]
    pub(crate) local: Vec<Forwarding>,
    /// Listen on the agent's machine, connect from here
    #[arg(short = 'R', long, group = "forwards", value_name = "[BIND:]PORT:HOST:PORT")]
    pub(crate) remote: Vec<Forwarding>,
    /// Listen here as a SOCKS proxy (4a, 5), connect from the agent's machine
    #[arg(short = 'D', long, group = "forwards", value_name = "[BIND:]PORT", value_parser = parse_listen)]
    pub(crate) dynamic: Vec<Endpoint>,
    /// Connect to Unix sockets of the agent's machine as this user [default: the agent's default user]
    #[arg(short = 'l', short_alias = 'u', long, value_name = "USER")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) reconnect: ReconnectArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
Connects from the agent's machine, and ends when both directions are closed: standard input at its end, standard \
output when the other side closes it.

Exit codes: 0 both directions were closed, 1 it could not connect, or the connection was reset, 2 invalid command line \
or configuration, 125 refused by the agent, 130 after Ctrl-C, 255 the agent is unreachable or the connection was lost.",
    after_help = "\
Examples:
  ssh -o ProxyCommand='telexec connect web1 %h:%p' db.internal
  printf 'PING\\r\\n' | telexec connect web1 localhost:6379"
)]
pub(crate) struct ConnectToArgs {
    #[command(flatten)]
    pub(crate) agent: AnyAgentArg,
    /// Where to connect to: HOST:PORT, or the path of a Unix socket
    #[arg(value_name = "HOST:PORT|/PATH", value_parser = parse_endpoint)]
    pub(crate) to: Endpoint,
    /// Connect to the Unix socket as this user [default: the agent's default user]
    #[arg(short = 'l', short_alias = 'u', long, value_name = "USER")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}
