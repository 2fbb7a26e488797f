//! Agents: what is asked of a machine.

use std::path::PathBuf;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use telexec_client::{Forwards, Resume, Resuming};
use telexec_config::ResolvedTarget;
use telexec_executor::{Attach, ExecutionId, ExecutionInfo, Executor, ListQuery, OnDisconnect};

use crate::arguments::Texts;
use crate::call::Call;
use crate::command::Command;
use crate::connecting::{Keywords, connected, load, resolve, resume};
use crate::execution::Execution;
use crate::failure::Failure;
use crate::files::Files;
use crate::forward::{Connection, Forward, dialled, dialled_as, listened};
use crate::gather::{Gathered, Settling, run};
use crate::owned::Owned;
use crate::process::Process;
use crate::values;

/// A connection to an agent.
#[pyclass(frozen, module = "telexec._telexec")]
pub(crate) struct Agent {
    connected: Owned<Connected>,
    process: &'static Process,
    target: String,
}

struct Connected {
    agent: telexec_client::Agent,
    executor: Resuming,
    forwards: Forwards,
    /// Runs what names no user.
    user: Option<String>,
}

/// Connects to a target, with what the environment and the configuration say of it.
#[pyfunction]
#[pyo3(signature = (target, *, cert=None, key=None, ca=None, access_token_file=None, spiffe_socket=None, spiffe_id=None, server_name=None, connect_timeout=None, reconnect=30.0))]
#[expect(clippy::too_many_arguments, reason = "they are keywords")]
pub(crate) fn connect(
    py: Python<'_>,
    target: &str,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    ca: Option<PathBuf>,
    access_token_file: Option<PathBuf>,
    spiffe_socket: Option<String>,
    spiffe_id: Option<String>,
    server_name: Option<String>,
    connect_timeout: Option<f64>,
    reconnect: f64,
) -> PyResult<Call> {
    let overrides =
        Keywords { cert, key, ca, access_token_file, spiffe_socket, spiffe_id, server_name, connect_timeout }
            .overrides()?;
    let (resume, resolved) = (resume(reconnect)?, resolve(&load(py)?, target, overrides)?);
    let (process, target) = (Process::current(py)?, target.to_owned());
    Call::new(py, open(process, target, resolved, resume))
}

async fn open(
    process: &'static Process,
    target: String,
    resolved: ResolvedTarget,
    resume: Resume,
) -> Result<Agent, Failure> {
    let agent = connected(&target, &resolved).await?;
    let executor = agent.executor().resuming(resume);
    let forwards = agent.forwards();
    let connected = Owned::new(Connected { agent, executor, forwards, user: resolved.user });
    Ok(Agent { connected, process, target })
}

#[pymethods]
impl Agent {
    #[getter]
    fn target(&self) -> &str {
        &self.target
    }

    /// Runs a command to its end: the exit, standard output and standard error.
    fn run(&self, py: Python<'_>, command: PyRef<'_, Command>) -> PyResult<Call> {
        let connected = self.connected.get()?;
        let to_run = command.to_run(connected.user.as_deref())?;
        let work = run(self.process, connected.executor.clone(), to_run, command.input.clone());
        Call::with(py, work, ended_to_python)
    }

    /// Starts a command, which is bound to the answer.
    fn start(&self, py: Python<'_>, command: PyRef<'_, Command>) -> PyResult<Call> {
        let connected = self.connected.get()?;
        let to_run = command.to_run(connected.user.as_deref())?;
        let written = Some(to_run.stdin().len() as u64);
        let is_bound = to_run.on_disconnect() == OnDisconnect::Kill;
        let (process, executor, input) = (self.process, connected.executor.clone(), command.input.clone());
        Call::new(py, async move {
            let _settling = Settling { process, executor: executor.clone() };
            let execution = executor.execute(to_run).await?;
            Ok(Execution::follow(process, executor, execution, input, written, is_bound))
        })
    }

    /// Follows an execution from a position in its output; dropping that changes nothing.
    fn attach(&self, py: Python<'_>, id: &str, position: u64) -> PyResult<Call> {
        let (process, executor) = (self.process, self.connected.get()?.executor.clone());
        let id: ExecutionId = id.parse().map_err(Failure::from)?;
        Call::new(py, async move {
            let execution = executor.attach(&id, Attach::position(position)).await?;
            Ok(Execution::follow(process, executor, execution, Bytes::new(), None, false))
        })
    }

    fn files(&self) -> PyResult<Files> {
        let connected = self.connected.get()?;
        Ok(Files::new(connected.agent.files(), connected.user.clone()))
    }

    /// Connects from the agent's machine.
    fn dial(&self, py: Python<'_>, address: &str, user: Option<&str>) -> PyResult<Call> {
        let (process, forwards) = (self.process, self.connected.get()?.forwards.clone());
        let to = dialled("address", address)?;
        let dial = dialled_as(&to, user)?;
        Call::new(py, async move { Connection::open(process, forwards, to, dial).await })
    }

    /// Listens here, and connects from the agent's machine.
    fn forward(&self, py: Python<'_>, to: &str, listen: &str, user: Option<&str>) -> PyResult<Call> {
        let (process, forwards) = (self.process, self.connected.get()?.forwards.clone());
        let (to, listen) = (dialled_as(&dialled("to", to)?, user)?, listened(listen)?);
        Call::new(py, async move { Forward::here(process, forwards, listen, to).await })
    }

    /// Listens on the agent's machine, and connects from here.
    fn reverse(&self, py: Python<'_>, to: &str, listen: &str) -> PyResult<Call> {
        let (process, connected) = (self.process, self.connected.get()?);
        let (forwards, reconnect) = (connected.forwards.clone(), connected.executor.resume().give_up_after);
        let (to, listen) = (dialled("to", to)?, listened(listen)?);
        Call::new(py, Forward::there(process, forwards, listen, to, reconnect))
    }

    fn get(&self, py: Python<'_>, id: &str) -> PyResult<Call> {
        let executor = self.connected.get()?.executor.clone();
        let id: ExecutionId = id.parse().map_err(Failure::from)?;
        Call::with(py, async move { Ok(executor.get(&id).await?) }, values::info)
    }

    fn list(&self, py: Python<'_>, all: bool, labels: Option<Texts>) -> PyResult<Call> {
        let executor = self.connected.get()?.executor.clone();
        let (include_exited, labels) = (all, labels.map(|labels| labels.0).unwrap_or_default());
        let query = ListQuery { include_exited, labels, ..ListQuery::default() };
        Call::with(py, list(executor, query), |py, executions| {
            let list: PyResult<Vec<_>> = executions.into_iter().map(|info| values::info(py, info)).collect();
            Ok(list?.into_pyobject(py)?.unbind())
        })
    }
}

pub(crate) fn ended_to_python(py: Python<'_>, ended: Gathered) -> PyResult<Py<PyAny>> {
    let exit = values::exit(py, ended.id.as_str(), &ended.exited)?;
    let (stdout, stderr) = (PyBytes::new(py, &ended.stdout), PyBytes::new(py, &ended.stderr));
    Ok((exit, stdout, stderr).into_pyobject(py)?.into_any().unbind())
}

async fn list(executor: Resuming, mut query: ListQuery) -> Result<Vec<ExecutionInfo>, Failure> {
    let mut executions = Vec::new();
    loop {
        let page = executor.list(query.clone()).await?;
        executions.extend(page.executions);
        if page.next_page_token.is_empty() {
            return Ok(executions);
        }
        query.page_token = page.next_page_token;
    }
}
