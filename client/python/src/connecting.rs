//! From a target and the keywords of `connect` to a connection.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use telexec_client::{ConnectError, LookupError, Resume};
use telexec_config::{Config, Destination, Overrides, ResolvedTarget, Route};

use crate::command::seconds;
use crate::failure::Failure;
use crate::words;

/// Longer than anybody waits, and no clock overflows.
const MAX_RECONNECT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What Python says of a connection.
pub(crate) struct Keywords {
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) access_token_file: Option<PathBuf>,
    pub(crate) spiffe_socket: Option<String>,
    pub(crate) spiffe_id: Option<String>,
    pub(crate) server_name: Option<String>,
    pub(crate) connect_timeout: Option<f64>,
}

impl Keywords {
    /// What goes before the environment and the configuration.
    pub(crate) fn overrides(self) -> PyResult<Overrides> {
        let Self { cert, key, ca, access_token_file, spiffe_socket, spiffe_id, server_name, connect_timeout } = self;
        let connect_timeout = connect_timeout.map(|time| seconds("connect_timeout", time)).transpose()?;
        let files = Overrides { cert, key, ca, access_token_file, ..Overrides::default() };
        Ok(Overrides { spiffe_socket, spiffe_id, server_name, connect_timeout, ..files })
    }
}

/// Reads the configuration, which may be on a disk that is slow.
pub(crate) fn load(py: Python<'_>) -> PyResult<Config> {
    Ok(py.detach(Config::load).map_err(Failure::from)?)
}

/// How long a lost connection is made up for.
pub(crate) fn resume(reconnect: f64) -> PyResult<Resume> {
    Ok(Resume { give_up_after: seconds("reconnect", reconnect)?.min(MAX_RECONNECT), ..Resume::default() })
}

pub(crate) fn resolve(config: &Config, target: &str, overrides: Overrides) -> Result<ResolvedTarget, Failure> {
    if let Some(text) = words::elsewhere(target, config) {
        return Err(Failure::new("Invalid", text));
    }
    let destination: Destination = target.parse()?;
    Ok(config.resolve(&destination, overrides)?)
}

pub(crate) async fn connected(target: &str, resolved: &ResolvedTarget) -> Result<telexec_client::Agent, Failure> {
    let Route::Direct(address) = &resolved.route else {
        return Err(Failure::new("Invalid", format!("{target}: not the address of an agent")));
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
