//! The extension module `telexec._telexec`: telexec's client for Python.
//!
//! It has few methods. Each returns a [`call::Call`], for which Python waits blocking or in asyncio; the modules in
//! `telexec/` make the API for users of that.

mod agent;
mod arguments;
mod call;
mod command;
mod connecting;
mod deliver;
mod execution;
mod failure;
mod files;
mod fleet;
mod forward;
mod gather;
mod input;
mod owned;
mod process;
mod race;
mod search;
mod values;
mod words;

use pyo3::prelude::*;

#[pymodule]
mod _telexec {
    use pyo3::prelude::*;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// Every thread of this module ends before the interpreter does.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.py().import("atexit")?.call_method1("register", (module.getattr("shut_down")?,)).map(drop)
    }

    #[pymodule_export]
    use crate::agent::{Agent, connect};
    #[pymodule_export]
    use crate::call::Call;
    #[cfg(debug_assertions)]
    #[pymodule_export]
    use crate::call::panicking;
    #[pymodule_export]
    use crate::command::Command;
    #[pymodule_export]
    use crate::execution::Execution;
    #[pymodule_export]
    use crate::files::{Files, Watch};
    #[pymodule_export]
    use crate::fleet::Targets;
    #[pymodule_export]
    use crate::forward::{Connection, Forward};
    #[pymodule_export]
    use crate::process::shut_down;
    #[pymodule_export]
    use crate::race::Race;
}
