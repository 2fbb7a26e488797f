//! Errors as the exceptions of `telexec._errors`.

use std::any::Any;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use telexec_client::{ConnectError, ForwardError, ForwardFailure};
use telexec_config::{ConfigError, InvalidDestination};
use telexec_executor::text::error_chain;
use telexec_executor::{ExecutorError, FilePath, InvalidCommand, SpawnStage};

use crate::values::path_to_python;
use crate::words;

/// Why a call failed: an exception that is yet to be raised.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Its class in `telexec._errors`.
    class: &'static str,
    message: String,
    /// Of a file: the error number, and the path.
    file: Option<(i32, FilePath)>,
    /// Of a command that could not be started: the step, and the error number.
    spawn: Option<(SpawnStage, i32)>,
    /// Of a connection: what the system says.
    forward: Option<Box<ForwardFailure>>,
    /// Of a command that another identity has to approve.
    approval_id: Option<String>,
}

impl Failure {
    pub(crate) fn new(class: &'static str, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), file: None, spawn: None, forward: None, approval_id: None }
    }

    pub(crate) fn forked(pid: u32) -> Self {
        let text =
            format!("this was made by process {pid}, of which this one is a fork: call telexec.connect() again here");
        Self::new("Error", text)
    }

    pub(crate) fn exiting() -> Self {
        Self::new("Error", "the interpreter is exiting: nothing can be asked any more")
    }

    /// The system starts no thread.
    pub(crate) fn threads() -> Self {
        let text = "no thread can be started: raise the limit on processes (ulimit -u; in a container its pids limit)";
        Self::new("Error", text)
    }

    /// Of a panic, which is a bug.
    pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> Self {
        let text = match payload.downcast::<String>() {
            Ok(text) => *text,
            Err(payload) => payload.downcast_ref::<&str>().copied().unwrap_or("a panic").to_owned(),
        };
        Self::new("Error", format!("internal error in telexec: {text}; what it was doing is given up"))
    }

    /// Output of a command is missing.
    pub(crate) fn gap(position: u64) -> Self {
        Self::new("Lost", format!("output before position {position} is not kept by the agent any more"))
    }
}

impl From<ExecutorError> for Failure {
    fn from(error: ExecutorError) -> Self {
        use ExecutorError as E;
        let class = match &error {
            E::Invalid(invalid) => return invalid.clone().into(),
            E::Unsupported { field, reason } => {
                return Self::new("NotStarted", format!("{}: {reason}", words::keyword(field)));
            }
            E::FailedPrecondition { reason } => return Self::new("Error", words::state(reason)),
            E::File(file) => {
                let file = Some((file.errno, file.path.clone()));
                return Self { file, ..Self::new("FileError", error.to_string()) };
            }
            E::Spawn(spawn) => {
                let spawn = Some((spawn.stage, spawn.errno));
                return Self { spawn, ..Self::new("NotStarted", error.to_string()) };
            }
            E::ApprovalRequired { approval_id, reason, .. } => {
                return Self { approval_id: Some(approval_id.clone()), ..Self::new("Refused", reason) };
            }
            E::Unauthenticated { .. } | E::Denied { .. } => "Refused",
            E::Exhausted { .. } | E::AlreadyExists(_) | E::AlreadyRunning(_) | E::ShuttingDown => "NotStarted",
            E::NotFound(_) => "NotFound",
            E::Unreachable { .. } | E::Untrusted { .. } => "Unreachable",
            E::Lost { .. } => "Lost",
            E::Corrupted { .. }
            | E::NoUpload(_)
            | E::NoApproval(_)
            | E::OutOfRange { .. }
            | E::DeadlineExceeded
            | E::Internal(_) => "Error",
        };
        Self::new(class, error_chain(&error))
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let text = error_chain(&error);
        match error {
            ConnectError::TlsRequired { .. } => Self::new("Unreachable", format!("{text}; give cert, key and ca")),
            ConnectError::Credentials { .. }
            | ConnectError::ServerName { .. }
            | ConnectError::WorkloadApi { is_temporary: false, .. }
            | ConnectError::AccessToken { .. } => Self::new("Invalid", text),
            _ => Self::new("Unreachable", text),
        }
    }
}

impl From<ForwardError> for Failure {
    fn from(error: ForwardError) -> Self {
        let text = error_chain(&error);
        match error {
            ForwardError::Failed(failure) => {
                Self { forward: Some(Box::new(failure)), ..Self::new("ForwardError", text) }
            }
            ForwardError::Call(ExecutorError::Unsupported { .. }) => Self::new("Refused", text),
            ForwardError::Call(error) => error.into(),
            _ => Self::new("Error", text),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new("Invalid", words::of_config(error))
    }
}

impl From<InvalidCommand> for Failure {
    fn from(InvalidCommand { field, reason }: InvalidCommand) -> Self {
        Self::new("Invalid", format!("{}: {}", words::keyword(&field), words::reason(&reason)))
    }
}

impl From<InvalidDestination> for Failure {
    fn from(error: InvalidDestination) -> Self {
        Self::new("Invalid", words::of_destination(&error))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Python::attach(|py| failure.raised(py).unwrap_or_else(|error| error))
    }
}

impl Failure {
    fn raised(self, py: Python<'_>) -> PyResult<PyErr> {
        let errors = py.import("telexec._errors")?;
        let class = errors.getattr(self.class)?;
        if let Some((errno, path)) = self.file {
            let arguments = PyDict::new(py);
            arguments.set_item("errno", errno)?;
            arguments.set_item("path", path_to_python(py, &path)?)?;
            let error = errors.getattr("_file_error")?.call((self.message,), Some(&arguments))?;
            return Ok(PyErr::from_value(error));
        }
        if let Some(failure) = self.forward {
            let arguments = PyDict::new(py);
            arguments.set_item("errno", failure.errno)?;
            arguments.set_item("address", failure.address)?;
            let error = errors.getattr("_forward_error")?.call((self.message,), Some(&arguments))?;
            return Ok(PyErr::from_value(error));
        }
        let error = class.call1((self.message,))?;
        if let Some(approval_id) = self.approval_id {
            error.setattr("approval_id", approval_id)?;
        }
        if let Some((stage, errno)) = self.spawn {
            error.setattr("stage", stage.as_str())?;
            error.setattr("errno", errno)?;
        }
        Ok(PyErr::from_value(error))
    }
}

/// What a bug would look like.
pub(crate) fn poisoned<T>(_: T) -> PyErr {
    PyRuntimeError::new_err("an earlier call into telexec panicked")
}
