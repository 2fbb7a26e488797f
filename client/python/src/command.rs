//! Commands, as Python describes them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use pyo3::prelude::*;
use telexec_executor::{self as executor, CommandBuilder, Descendants, OnDisconnect, ResourceLimits, TerminalSize};

use crate::failure::Failure;

/// More input than this does not go with the request, but after it.
const MAX_INPUT_IN_REQUEST: usize = 256 * 1024;

/// A shell's text, or a program and its arguments.
#[derive(FromPyObject)]
pub(crate) enum Program {
    Shell(String),
    Argv(Vec<String>),
}

/// The most that the processes of a command may use together.
#[pyclass(frozen, get_all, module = "telexec")]
pub(crate) struct Limits {
    memory: Option<u64>,
    processes: Option<u32>,
    cpus: Option<f64>,
}

#[pymethods]
impl Limits {
    #[new]
    #[pyo3(signature = (*, memory=None, processes=None, cpus=None))]
    fn new(memory: Option<u64>, processes: Option<u32>, cpus: Option<f64>) -> Self {
        Self { memory, processes, cpus }
    }
}

/// A command that was checked.
#[pyclass(frozen, module = "telexec._telexec")]
pub(crate) struct Command {
    builder: CommandBuilder,
    has_user: bool,
    /// Written once it runs, and then the end of input.
    pub(crate) input: Bytes,
}

impl Command {
    /// With the user for commands that name none.
    pub(crate) fn to_run(&self, user: Option<&str>) -> PyResult<executor::Command> {
        let builder = self.builder.clone();
        let builder = match user {
            Some(user) if !self.has_user => builder.user(user),
            _ => builder,
        };
        Ok(builder.build().map_err(Failure::from)?)
    }
}

#[pymethods]
impl Command {
    #[new]
    #[pyo3(signature = (program, *, input=None, interactive=false, timeout=None, env=None, clear_env=false, cwd=None,
        user=None, limits=None, detach=false, merge=false, shell=None, login=false, terminal=None, kill_grace=None,
        kill_descendants=false, max_output=None, labels=None, reason=None, id=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        program: Program,
        input: Option<Vec<u8>>,
        interactive: bool,
        timeout: Option<f64>,
        env: Option<BTreeMap<String, String>>,
        clear_env: bool,
        cwd: Option<String>,
        user: Option<String>,
        limits: Option<PyRef<'_, Limits>>,
        detach: bool,
        merge: bool,
        shell: Option<String>,
        login: bool,
        terminal: Option<(u16, u16)>,
        kill_grace: Option<f64>,
        kill_descendants: bool,
        max_output: Option<u64>,
        labels: Option<BTreeMap<String, String>>,
        reason: Option<String>,
        id: Option<String>,
    ) -> PyResult<Self> {
        let mut builder = match program {
            Program::Shell(text) => executor::Command::shell(text),
            Program::Argv(argv) => executor::Command::argv(argv),
        };
        let has_user = user.is_some();
        let (at_once, input) = split(input.unwrap_or_default().into());
        builder = builder
            .stdin(at_once)
            .accepts_input(interactive || !input.is_empty())
            .envs(env.unwrap_or_default())
            .clear_environment(clear_env)
            .login(login)
            .merge_output(merge)
            .labels(labels.unwrap_or_default())
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
            let Limits { memory, processes, cpus } = *limits;
            builder = builder.limits(ResourceLimits { memory_bytes: memory, max_processes: processes, cpus });
        }
        if let Some((columns, rows)) = terminal {
            builder = builder.terminal(TerminalSize::new(columns.into(), rows.into()).map_err(Failure::from)?);
        }
        if let Some(id) = id {
            builder = builder.execution_id(id.parse().map_err(Failure::from)?);
        }
        builder.clone().build().map_err(Failure::from)?;
        Ok(Self { builder, has_user, input })
    }
}

/// What goes with the request, and what goes after it.
fn split(input: Bytes) -> (Bytes, Bytes) {
    if input.len() > MAX_INPUT_IN_REQUEST { (Bytes::new(), input) } else { (input, Bytes::new()) }
}

pub(crate) fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Failure::new("Invalid", format!("{name}: {seconds} is not a number of seconds")).into())
}
