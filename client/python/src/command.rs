//! Commands, as Python describes them.

use std::time::Duration;

use bytes::Bytes;
use pyo3::prelude::*;
use telexec_executor::{self as executor, CommandBuilder, Descendants, OnDisconnect, TerminalSize};

use crate::arguments::{Limits, Texts, Words};
use crate::failure::Failure;

/// More input than this does not go with the request, but after it.
const MAX_INPUT_IN_REQUEST: usize = 256 * 1024;

/// A command that was checked.
#[pyclass(frozen, module = "telexec._telexec")]
#[derive(Clone)]
pub(crate) struct Command {
    builder: CommandBuilder,
    /// Written once it runs, and then the end of input.
    pub(crate) input: Bytes,
}

impl Command {
    /// With the user for commands that name none.
    pub(crate) fn to_run(&self, user: Option<&str>) -> Result<executor::Command, Failure> {
        let builder = self.builder.clone();
        Ok(user.into_iter().fold(builder, CommandBuilder::default_user).build()?)
    }
}

#[pymethods]
impl Command {
    #[new]
    #[pyo3(signature = (command, *, input=None, interactive=false, timeout=None, env=None, clear_env=false, cwd=None,
        user=None, limits=None, detach=false, merge=false, shell=None, login=false, terminal=None, kill_grace=None,
        kill_descendants=false, no_new_privileges=false, receipt=false, max_output=None, labels=None, reason=None, id=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        command: Words,
        input: Option<Vec<u8>>,
        interactive: bool,
        timeout: Option<f64>,
        env: Option<Texts>,
        clear_env: bool,
        cwd: Option<String>,
        user: Option<String>,
        limits: Option<Limits>,
        detach: bool,
        merge: bool,
        shell: Option<String>,
        login: bool,
        terminal: Option<(u16, u16)>,
        kill_grace: Option<f64>,
        kill_descendants: bool,
        no_new_privileges: bool,
        receipt: bool,
        max_output: Option<u64>,
        labels: Option<Texts>,
        reason: Option<String>,
        id: Option<String>,
    ) -> PyResult<Self> {
        let mut builder = match command {
            Words::One(text) => executor::Command::shell(text),
            Words::Several(argv) => executor::Command::argv(argv),
        };
        let (at_once, input) = split(input.unwrap_or_default().into());
        builder = builder
            .stdin(at_once)
            .accepts_input(interactive || !input.is_empty())
            .envs(env.map(|env| env.0).unwrap_or_default())
            .clear_environment(clear_env)
            .login(login)
            .merge_output(merge)
            .no_new_privileges(no_new_privileges)
            .receipt(receipt)
            .labels(labels.map(|labels| labels.0).unwrap_or_default())
            .reason(reason.unwrap_or_default())
            .max_output_bytes(max_output.unwrap_or_default())
            .on_disconnect(if detach { OnDisconnect::Detach } else { OnDisconnect::Kill })
            .descendants(if kill_descendants { Descendants::Kill } else { Descendants::Keep });
        if let Some(timeout) = timeout {
            builder = builder.timeout(seconds("timeout", timeout)?);
        }
        if let Some(grace) = kill_grace {
            builder = builder.kill_grace(seconds("kill_grace", grace)?);
        }
        if let Some(cwd) = cwd {
            builder = builder.working_directory(cwd);
        }
        if let Some(user) = user {
            builder = builder.user(user);
        }
        if let Some(shell) = shell {
            builder = builder.shell(shell);
        }
        if let Some(limits) = limits {
            builder = builder.limits(limits.0);
        }
        if let Some((columns, rows)) = terminal {
            builder = builder.terminal(TerminalSize::new(columns.into(), rows.into()).map_err(Failure::from)?);
        }
        if let Some(id) = id {
            builder = builder.execution_id(id.parse().map_err(Failure::from)?);
        }
        builder.clone().build().map_err(Failure::from)?;
        Ok(Self { builder, input })
    }
}

/// What goes with the request, and what goes after it.
fn split(input: Bytes) -> (Bytes, Bytes) {
    if input.len() > MAX_INPUT_IN_REQUEST { (Bytes::new(), input) } else { (input, Bytes::new()) }
}

pub(crate) fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Failure::new("Invalid", format!("{name}: {seconds:?} is not a number of seconds")).into())
}
