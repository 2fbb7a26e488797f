//! Clients that start one process per command.

use std::any::Any;
use std::ffi::OsStr;
use std::process::{Command as Program, Stdio};

use futures_util::future::LocalBoxFuture;
use telexec_tests::Sshd;

use super::Peer;
use crate::Result;
use crate::relay::read_all;

pub(super) type Start<'a> = Box<dyn Fn() -> Program + 'a>;

/// A client program; the remote command is appended to its arguments.
pub(super) struct Processes<'a> {
    name: &'static str,
    /// Over a connection that is open, if it can.
    warm: Start<'a>,
    anew: Start<'a>,
    version: String,
    /// Keeps the server, if this peer has started it.
    _server: Box<dyn Any>,
}

impl<'a> Processes<'a> {
    /// A client that connects each time.
    pub(super) fn new(name: &'static str, version: String, client: impl Fn() -> Program + Clone + 'a) -> Self {
        Self::multiplexed(name, version, [Box::new(client.clone()), Box::new(client)])
    }

    /// One that can keep a connection.
    pub(super) fn multiplexed(name: &'static str, version: String, [warm, anew]: [Start<'a>; 2]) -> Self {
        Self { name, warm, anew, version, _server: Box::new(()) }
    }

    /// Ends the server with this.
    pub(super) fn with(self, server: impl Any) -> Self {
        Self { _server: Box::new(server), ..self }
    }
}

impl Peer for Processes<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn run<'a>(&'a self, argv: &'a [&'a str]) -> LocalBoxFuture<'a, Result<u64>> {
        Box::pin(output_of((self.warm)(), argv))
    }

    fn run_anew<'a>(&'a self, argv: &'a [&'a str]) -> LocalBoxFuture<'a, Result<u64>> {
        Box::pin(output_of((self.anew)(), argv))
    }
}

/// `ssh` to an OpenSSH server.
pub(super) fn openssh(sshd: &Sshd) -> Result<Processes<'_>> {
    let ssh = |multiplexed| -> Start<'_> { Box::new(move || sshd.ssh(1, multiplexed)) };
    Ok(Processes::multiplexed("ssh, OpenSSH", version("ssh", "-V")?, [ssh(true), ssh(false)]))
}

/// The first line that a program prints when it is asked for its version.
pub(super) fn version(program: impl AsRef<OsStr>, flag: &str) -> Result<String> {
    let output = Program::new(program).arg(flag).stdin(Stdio::null()).output()?;
    let text = String::from_utf8([output.stdout, output.stderr].concat())?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// How many bytes it printed.
async fn output_of(mut client: Program, argv: &[&str]) -> Result<u64> {
    client.args(argv).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // a thread reads as fast as the machine can; this one has other clients to start
    let run = move || {
        let mut child = client.spawn()?;
        let bytes = child.stdout.take().map(read_all).transpose();
        let status = child.wait()?;
        let bytes = bytes.map_err(|error| error.to_string()).map_err(std::io::Error::other)?;
        if status.success() { Ok(bytes.unwrap_or(0)) } else { Err(std::io::Error::other(status.to_string())) }
    };
    Ok(tokio::task::spawn_blocking(run).await??)
}
