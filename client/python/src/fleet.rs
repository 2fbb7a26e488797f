//! Many targets.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use telexec_config::{Config, Destination, Overrides, nodeset};

use crate::agent::ended_to_python;
use crate::arguments::Words;
use crate::call::Call;
use crate::command::Command;
use crate::connecting::{Keywords, connected, load, resolve, resume};
use crate::failure::Failure;
use crate::gather::run;
use crate::process::Process;
use crate::words;

/// The targets of some sets, and the configuration that they are in: it is read once.
#[pyclass(frozen, module = "telexec._telexec")]
pub(crate) struct Targets {
    /// Each once, in the order of the sets.
    #[pyo3(get)]
    names: Vec<String>,
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    overrides: Overrides,
}

#[pymethods]
impl Targets {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    #[pyo3(signature = (targets, *, cert=None, key=None, ca=None, access_token_file=None, spiffe_socket=None, spiffe_id=None, connect_timeout=None))]
    fn new(
        py: Python<'_>,
        targets: Words,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
        ca: Option<PathBuf>,
        access_token_file: Option<PathBuf>,
        spiffe_socket: Option<String>,
        spiffe_id: Option<String>,
        connect_timeout: Option<f64>,
    ) -> PyResult<Self> {
        let server_name = None;
        let keywords =
            Keywords { cert, key, ca, access_token_file, spiffe_socket, spiffe_id, server_name, connect_timeout };
        let overrides = keywords.overrides()?;
        let config = load(py)?;
        let sets = match targets {
            Words::One(set) => vec![set],
            Words::Several(sets) => sets,
        };
        let names = py.detach(|| expand(&sets, &config))?;
        Ok(Self { names, shared: Arc::new(Shared { config, overrides }) })
    }

    /// Connects to one of them, and runs a command there to its end.
    fn run(&self, py: Python<'_>, target: String, command: PyRef<'_, Command>, reconnect: f64) -> PyResult<Call> {
        let (process, shared, resume) = (Process::current(py)?, Arc::clone(&self.shared), resume(reconnect)?);
        let command = command.clone();
        let work = async move {
            let resolved = resolve(&shared.config, &target, shared.overrides.clone())?;
            let to_run = command.to_run(resolved.user.as_deref())?;
            let executor = connected(&target, &resolved).await?.executor().resuming(resume);
            run(process, executor, to_run, command.input).await
        };
        Call::with(py, work, ended_to_python)
    }
}

fn expand(sets: &[String], config: &Config) -> Result<Vec<String>, Failure> {
    let (mut targets, mut seen) = (Vec::new(), HashSet::new());
    for set in sets {
        // no set of hosts, but what others take for a target
        if let Some(text) = words::elsewhere(set, &Config::default()) {
            return Err(Failure::new("Invalid", text));
        }
        let found = nodeset::expand(set, config);
        for target in found.map_err(|error| Failure::new("Invalid", format!("targets: {error}")))? {
            target.parse::<Destination>()?;
            if seen.insert(target.clone()) {
                targets.push(target);
            }
        }
    }
    Ok(targets)
}
