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
mod interpreter;
mod owned;
mod process;
mod race;
mod runtime;
mod search;
mod values;
mod words;

use pyo3::prelude::*;

#[pymodule]
fn _telexec(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // before there is any type, which the first interpreter makes for all
    interpreter::must_be_main(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<agent::Agent>()?;
    module.add_class::<call::Call>()?;
    module.add_class::<command::Command>()?;
    module.add_class::<execution::Execution>()?;
    module.add_class::<files::Files>()?;
    module.add_class::<files::Watch>()?;
    module.add_class::<fleet::Targets>()?;
    module.add_class::<forward::Connection>()?;
    module.add_class::<forward::Forward>()?;
    module.add_class::<race::Race>()?;
    module.add_function(wrap_pyfunction!(agent::connect, module)?)?;
    #[cfg(debug_assertions)]
    module.add_function(wrap_pyfunction!(call::panicking, module)?)?;
    let shut_down = wrap_pyfunction!(process::shut_down, module)?;
    module.add_function(shut_down.clone())?;
    // every thread of this module ends before the interpreter does
    module.py().import("atexit")?.call_method1("register", (shut_down,)).map(drop)
}
