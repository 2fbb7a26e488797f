//! Arguments whose errors say what is expected; `telexec/_arguments.py` adds which argument it is.

use std::collections::BTreeMap;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMapping, PySequence, PyString};
use telexec_executor::ResourceLimits;

/// A str or a sequence of them: a shell's text or an argv, one target or several.
pub(crate) enum Words {
    One(String),
    Several(Vec<String>),
}

impl<'py> FromPyObject<'_, 'py> for Words {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        const EXPECTED: &str = "expected str or a sequence of str";
        if value.is_instance_of::<PyString>() {
            return Ok(Self::One(value.extract()?));
        }
        let sequence = value.cast::<PySequence>().ok().filter(|_| !value.is_instance_of::<PyBytes>());
        let Some(sequence) = sequence else { return Err(wrong(&format!("{EXPECTED}, not"), &value)) };
        let words = sequence.try_iter()?.enumerate().map(|(at, word)| {
            let word = word?;
            text(&word, || format!("{EXPECTED}, but item {at} is"))
        });
        Ok(Self::Several(words.collect::<PyResult<_>>()?))
    }
}

/// A mapping of str to str, such as a dict or `os.environ`.
pub(crate) struct Texts(pub(crate) BTreeMap<String, String>);

impl<'py> FromPyObject<'_, 'py> for Texts {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        const EXPECTED: &str = "expected a mapping of str to str";
        let Ok(mapping) = value.cast::<PyMapping>() else { return Err(wrong(&format!("{EXPECTED}, not"), &value)) };
        let items = mapping.items()?;
        let texts = items.iter().map(|item| {
            let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let name = text(&name, || format!("{EXPECTED}, but a key is"))?;
            let value = text(&value, || format!("{EXPECTED}, but the value of {name:?} is"))?;
            Ok((name, value))
        });
        Ok(Self(texts.collect::<PyResult<_>>()?))
    }
}

/// `telexec.Limits`.
pub(crate) struct Limits(pub(crate) ResourceLimits);

impl<'py> FromPyObject<'_, 'py> for Limits {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let class = value.py().import("telexec._values")?.getattr("Limits")?;
        if !value.is_instance(&class)? {
            return Err(wrong("expected Limits, not", &value));
        }
        let (memory_bytes, max_processes) = (field(&value, "memory")?, field(&value, "processes")?);
        Ok(Self(ResourceLimits { memory_bytes, max_processes, cpus: field(&value, "cpus")? }))
    }
}

fn field<'py, T>(limits: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let found: PyResult<Option<T>> = limits.getattr(name)?.extract();
    let py = limits.py();
    found.map_err(|error| PyErr::from_type(error.get_type(py), format!("{name}: {}", error.value(py))))
}

fn text(value: &Bound<'_, PyAny>, expected: impl Fn() -> String) -> PyResult<String> {
    match value.is_instance_of::<PyString>() {
        true => value.extract(),
        false => Err(wrong(&expected(), value)),
    }
}

fn wrong(expected: &str, value: &Bound<'_, PyAny>) -> PyErr {
    match value.get_type().name() {
        Ok(name) => PyTypeError::new_err(format!("{expected} {name}")),
        Err(error) => error,
    }
}
