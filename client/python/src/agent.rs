//! Agents: what is asked of a machine.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use telexec_client::{ConnectError, Forwards, LookupError, Resume, Resuming};
use telexec_config::{Config, Destination, Overrides, ResolvedTarget, Route};
use telexec_executor::{Attach, ExecutionId, ExecutionInfo, Executor, ListQuery, OnDisconnect};

use crate::call::Call;
use crate::command::{Command, seconds};
use crate::execution::Execution;
use crate::failure::Failure;
use crate::files::Files;
use crate::forward::{Connection, Forward, dialled, dialled_as, listened};
use crate::gather::{Gathered, Settling, run};
use crate::owned::Owned;
use crate::process::Process;
use crate::values::{Exit, Info};

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
#[pyo3(signature = (target, *, cert=None, key=None, ca=None, server_name=None, connect_timeout=None))]
pub(crate) fn connect(
    py: Python<'_>,
    target: &str,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    ca: Option<PathBuf>,
    server_name: Option<String>,
    connect_timeout: Option<f64>,
) -> PyResult<Call> {
    let resolved = resolve(target, Keywords { cert, key, ca, server_name, connect_timeout })?;
    let (process, target) = (Process::current(py)?, target.to_owned());
    Call::new(py, async move { open(process, target, resolved).await })
}

/// Connects to a target, and runs a command there to its end.
#[pyfunction]
#[pyo3(signature = (target, command, *, cert=None, key=None, ca=None, connect_timeout=None))]
pub(crate) fn run_on(
    py: Python<'_>,
    target: &str,
    command: PyRef<'_, Command>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    ca: Option<PathBuf>,
    connect_timeout: Option<f64>,
) -> PyResult<Call> {
    let resolved = resolve(target, Keywords { cert, key, ca, server_name: None, connect_timeout })?;
    let (process, target) = (Process::current(py)?, target.to_owned());
    let (to_run, input) = (command.to_run(resolved.user.as_deref())?, command.input.clone());
    let work = async move {
        let executor = connected(&target, &resolved).await?.executor().resuming(Resume::default());
        run(process, executor, to_run, input).await
    };
    Call::with(py, work, ended_to_python)
}

struct Keywords {
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    ca: Option<PathBuf>,
    server_name: Option<String>,
    connect_timeout: Option<f64>,
}

fn resolve(target: &str, keywords: Keywords) -> PyResult<ResolvedTarget> {
    let Keywords { cert, key, ca, server_name, connect_timeout } = keywords;
    let environment = Overrides::from_environment();
    let overrides = Overrides {
        cert: cert.or(environment.cert),
        key: key.or(environment.key),
        ca: ca.or(environment.ca),
        server_name: server_name.or(environment.server_name),
        connect_timeout: connect_timeout.map(|time| seconds("connect_timeout", time)).transpose()?,
        ..environment
    };
    let destination: Destination = target.parse().map_err(Failure::from)?;
    let config = Config::load().map_err(Failure::from)?;
    Ok(config.resolve(&destination, overrides).map_err(Failure::from)?)
}

async fn open(process: &'static Process, target: String, resolved: ResolvedTarget) -> Result<Agent, Failure> {
    let agent = connected(&target, &resolved).await?;
    let executor = agent.executor().resuming(Resume::default());
    let forwards = agent.forwards();
    let connected = Owned::new(Connected { agent, executor, forwards, user: resolved.user });
    Ok(Agent { connected, process, target })
}

async fn connected(target: &str, resolved: &ResolvedTarget) -> Result<telexec_client::Agent, Failure> {
    let Route::Direct(address) = &resolved.route else {
        return Err(Failure::new("Invalid", format!("{target}: that is for the program `telexec` only")));
    };
    let agent = telexec_client::Agent::connect(address, resolved.options.clone()).await;
    agent.map_err(|error| unreachable(error, resolved))
}

/// A name that is neither a target nor a host may be mistyped.
fn unreachable(error: ConnectError, resolved: &ResolvedTarget) -> Failure {
    let ConnectError::Unreachable { source, .. } = &error else { return error.into() };
    let mut causes = std::iter::successors(Some(source as &(dyn std::error::Error + 'static)), |error| error.source());
    match &resolved.unconfigured {
        Some(unknown) if causes.any(|cause| cause.is::<LookupError>()) => {
            let similar = match unknown.similar.join(", ") {
                names if names.is_empty() => names,
                names => format!("; similar targets: {names}"),
            };
            let what = "in the configuration, and no host of that name was found";
            Failure::new("Unreachable", format!("no target named {:?} {what}{similar}", unknown.name))
        }
        _ => error.into(),
    }
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
    fn dial(&self, py: Python<'_>, to: &str, user: Option<&str>) -> PyResult<Call> {
        let (process, forwards) = (self.process, self.connected.get()?.forwards.clone());
        let to = dialled("address", to)?;
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
        let (process, forwards) = (self.process, self.connected.get()?.forwards.clone());
        let (to, listen) = (dialled("to", to)?, listened(listen)?);
        Call::new(py, async move { Forward::there(process, forwards, listen, to).await })
    }

    fn get(&self, py: Python<'_>, id: &str) -> PyResult<Call> {
        let executor = self.connected.get()?.executor.clone();
        let id: ExecutionId = id.parse().map_err(Failure::from)?;
        Call::with(py, async move { Ok(executor.get(&id).await?) }, |py, info| {
            Ok(Info::new(py, info)?.into_pyobject(py)?.into_any().unbind())
        })
    }

    fn list(&self, py: Python<'_>, include_exited: bool, labels: BTreeMap<String, String>) -> PyResult<Call> {
        let executor = self.connected.get()?.executor.clone();
        let query = ListQuery { include_exited, labels, ..ListQuery::default() };
        Call::with(py, list(executor, query), |py, executions| {
            let list: PyResult<Vec<_>> = executions.into_iter().map(|info| Info::new(py, info)).collect();
            Ok(list?.into_pyobject(py)?.unbind())
        })
    }
}

fn ended_to_python(py: Python<'_>, ended: Gathered) -> PyResult<Py<PyAny>> {
    let exit = Exit::new(ended.id.to_string(), &ended.exited);
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
