//! -s: the only subsystem is sftp.

use futures_util::{StreamExt, stream};
use telexec_client::{Agent, SftpAnswer};
use telexec_executor::{ExecutorError, OutputStream};

use super::line::Settings;
use crate::args::ExecArgs;
use crate::connect::{call_failure, with_agent};
use crate::output::{Failure, OutputWriter, exit, print_message_async, printable};
use crate::terminal;

/// Whether there is such a subsystem: its name, or the path of sftp-server, which old clients send.
pub(super) fn is_known(name: Option<&str>) -> bool {
    name.is_some_and(|name| name == "sftp" || name.ends_with("/sftp-server"))
}

/// Carries an SFTP session between standard input and output, and the agent.
pub(super) async fn sftp(settings: &Settings, args: ExecArgs) -> Result<u8, Failure> {
    let target = args.agent.target.clone();
    let failed = |error: ExecutorError| call_failure(exit::LOST, &target, &error);
    let work = async |agent: &Agent| {
        let input = match settings.no_stdin {
            true => stream::empty().left_stream(),
            false => {
                let chunks = terminal::stdin::read().map_err(|error| Failure::new(exit::LOST, &error))?;
                // what cannot be read ends the session, as an end does
                stream::unfold(chunks, async |mut chunks| Some((chunks.recv().await?.ok()?, chunks))).right_stream()
            }
        };
        let mut answers = agent.files().sftp(args.user.clone(), input).await.map_err(failed)?;
        let mut output = OutputWriter::start()?;
        while let Some(answer) = answers.next().await {
            match answer.map_err(failed)? {
                SftpAnswer::Data(data) => output.write(OutputStream::Stdout, data).await?,
                SftpAnswer::Notice(text) => print_message_async(format!("{target}: {}", printable(&text))).await,
            }
        }
        output.finish().await.map(|()| 0)
    };
    with_agent(&target, &args.connect, work).await
}
