//! Which interpreter of the process this is.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// # Errors
/// `ImportError`: it is a subinterpreter. The types and the runtime are those of the process, and would end with it.
pub(crate) fn must_be_main(py: Python<'_>) -> PyResult<()> {
    let name = if py.version_info() >= (3, 13) { "_interpreters" } else { "_xxsubinterpreters" };
    // a Python without that module has no others
    let Ok(interpreters) = py.import(name) else { return Ok(()) };
    if interpreters.call_method0("get_current")?.eq(interpreters.call_method0("get_main")?)? {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "telexec works in the main interpreter only, and this is a subinterpreter: use threads, asyncio or processes",
    ))
}
