//! What Python gets: the classes of `telexec._values`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes};
use telexec_executor::{
    Event, ExecutionInfo, ExecutionState, Exited, FileChange, FileInfo, FilePath, MatchedLine, OutputStream, Program,
    SearchSummary, Usage, Watched,
};

/// Of the years 1 to 9999, but for their first and last second.
const MIN_SECONDS: i64 = -62_135_596_799;
const MAX_SECONDS: i64 = 253_402_300_798;

type Field<'py> = (&'static str, Bound<'py, PyAny>);

/// Makes a value of a class, which has these fields.
fn made<'py, const N: usize>(py: Python<'py>, class: &str, fields: [Field<'py>; N]) -> PyResult<Py<PyAny>> {
    let class = py.import("telexec._values")?.getattr(class)?;
    Ok(class.call((), Some(&fields.into_py_dict(py)?))?.unbind())
}

pub(crate) fn event(py: Python<'_>, event: &Event) -> PyResult<Py<PyAny>> {
    let (stream, data, position) = match event {
        Event::Output(output) => {
            let stream = match output.stream {
                OutputStream::Stdout => "stdout",
                OutputStream::Stderr => "stderr",
            };
            (stream, &output.data[..], output.position)
        }
        Event::Gap(position) => ("gap", &[][..], *position),
        _ => ("gap", &[][..], 0),
    };
    let fields = [
        ("stream", stream.into_bound_py_any(py)?),
        ("data", PyBytes::new(py, data).into_any()),
        ("position", position.into_bound_py_any(py)?),
    ];
    made(py, "Event", fields)
}

fn usage(py: Python<'_>, usage: &Usage) -> PyResult<Py<PyAny>> {
    let fields = [
        ("user_time", usage.user_time.map(|time| time.as_secs_f64()).into_bound_py_any(py)?),
        ("system_time", usage.system_time.map(|time| time.as_secs_f64()).into_bound_py_any(py)?),
        ("peak_memory", usage.peak_memory_bytes.into_bound_py_any(py)?),
        ("read_bytes", usage.read_bytes.into_bound_py_any(py)?),
        ("written_bytes", usage.written_bytes.into_bound_py_any(py)?),
        ("peak_processes", usage.peak_processes.into_bound_py_any(py)?),
    ];
    made(py, "Usage", fields)
}

pub(crate) fn exit(py: Python<'_>, id: &str, exited: &Exited) -> PyResult<Py<PyAny>> {
    let seconds = |time: Duration| time.as_secs_f64().into_bound_py_any(py);
    let fields = [
        ("id", id.into_bound_py_any(py)?),
        ("exit_code", exited.exit_code().into_bound_py_any(py)?),
        ("cause", exited.cause.as_str().into_bound_py_any(py)?),
        ("signal", exited.signal.map(|signal| signal.to_string()).into_bound_py_any(py)?),
        ("core_dumped", exited.core_dumped.into_bound_py_any(py)?),
        ("wall_time", seconds(exited.wall_time)?),
        ("user_time", seconds(exited.user_time)?),
        ("system_time", seconds(exited.system_time)?),
        ("max_rss", exited.max_rss_bytes.into_bound_py_any(py)?),
        ("dropped_bytes", (exited.stdout.dropped_bytes + exited.stderr.dropped_bytes).into_bound_py_any(py)?),
        ("surviving_processes", exited.surviving_processes.into_bound_py_any(py)?),
        ("usage", usage(py, &exited.usage)?.into_bound(py)),
        ("receipt", exited.receipt.as_ref().map(|receipt| receipt.as_str()).into_bound_py_any(py)?),
    ];
    made(py, "Exit", fields)
}

pub(crate) fn info(py: Python<'_>, info: ExecutionInfo) -> PyResult<Py<PyAny>> {
    let (command, argv) = match info.program {
        Program::Shell { text, .. } => (text, None),
        Program::Argv(argv) => (argv.join(" "), Some(argv)),
    };
    let state = match info.state {
        ExecutionState::Running => "running",
        ExecutionState::Lingering => "lingering",
        ExecutionState::Exited => "exited",
    };
    let id = info.id.to_string();
    let exit = info.exited.map(|exited| exit(py, &id, &exited)).transpose()?;
    let fields = [
        ("id", id.into_bound_py_any(py)?),
        ("command", command.into_bound_py_any(py)?),
        ("argv", argv.into_bound_py_any(py)?),
        ("cwd", info.working_directory.into_bound_py_any(py)?),
        ("user", info.user.into_bound_py_any(py)?),
        ("identity", info.identity.into_bound_py_any(py)?),
        ("terminal", info.terminal.into_bound_py_any(py)?),
        ("labels", info.labels.into_bound_py_any(py)?),
        ("state", state.into_bound_py_any(py)?),
        ("pid", info.pid.into_bound_py_any(py)?),
        ("start_time", time_to_python(py, info.start_time)?),
        ("position", info.position.into_bound_py_any(py)?),
        ("processes", info.processes.into_bound_py_any(py)?),
        ("usage", usage(py, &info.usage)?.into_bound(py)),
        ("exit", exit.into_bound_py_any(py)?),
    ];
    made(py, "Info", fields)
}

pub(crate) fn file_info(py: Python<'_>, info: FileInfo) -> PyResult<Py<PyAny>> {
    let kind = info.kind.as_str();
    let link_target = info.link_target.map(|path| path_to_python(py, &path)).transpose()?;
    let fields = [
        ("path", path_to_python(py, &info.path)?),
        ("kind", kind.into_bound_py_any(py)?),
        ("size", info.size.into_bound_py_any(py)?),
        ("mode", info.mode.into_bound_py_any(py)?),
        ("owner", info.owner.into_bound_py_any(py)?),
        ("group", info.group.into_bound_py_any(py)?),
        ("modify_time", time_to_python(py, info.modify_time)?),
        ("link_target", link_target.into_bound_py_any(py)?),
    ];
    made(py, "FileInfo", fields)
}

pub(crate) fn file_change(py: Python<'_>, watched: &Watched) -> PyResult<Py<PyAny>> {
    let (change, path) = match watched {
        Watched::Event(event) => {
            let change = match event.change {
                FileChange::Created => "created",
                FileChange::Written => "written",
                FileChange::Removed => "removed",
                FileChange::Renamed => "renamed",
                FileChange::AttributesChanged => "attributes_changed",
            };
            (change, Some(path_to_python(py, &event.path)?))
        }
        // whoever watches has to list it again
        Watched::Lost => ("lost", None),
    };
    made(py, "FileChange", [("change", change.into_bound_py_any(py)?), ("path", path.into_bound_py_any(py)?)])
}

pub(crate) fn line(py: Python<'_>, path: &FilePath, line: &MatchedLine) -> PyResult<Py<PyAny>> {
    let fields = [
        ("path", path_to_python(py, path)?),
        ("number", line.number.into_bound_py_any(py)?),
        ("text", PyBytes::new(py, &line.text).into_any()),
        ("is_context", line.is_context.into_bound_py_any(py)?),
        ("is_cut", line.is_cut.into_bound_py_any(py)?),
    ];
    made(py, "Line", fields)
}

pub(crate) fn found(py: Python<'_>, matches: Vec<Py<PyAny>>, summary: &SearchSummary) -> PyResult<Py<PyAny>> {
    let fields = [
        ("matches", matches.into_bound_py_any(py)?),
        ("limit_reached", summary.limit_reached.into_bound_py_any(py)?),
        ("files_searched", summary.files_searched.into_bound_py_any(py)?),
        ("skipped_binary", summary.skipped_binary.into_bound_py_any(py)?),
        ("skipped_too_large", summary.skipped_too_large.into_bound_py_any(py)?),
        ("skipped_unreadable", summary.skipped_unreadable.into_bound_py_any(py)?),
        ("skipped_denied", summary.skipped_denied.into_bound_py_any(py)?),
    ];
    made(py, "Found", fields)
}

/// As `os.fsdecode` makes it.
pub(crate) fn path_to_python<'py>(py: Python<'py>, path: &FilePath) -> PyResult<Bound<'py, PyAny>> {
    OsStr::from_bytes(path.as_bytes()).into_bound_py_any(py)
}

/// A `datetime` in UTC; the first or the last there is for a time beyond. pyo3's own conversion panics before 1970.
fn time_to_python(py: Python<'_>, time: SystemTime) -> PyResult<Bound<'_, PyAny>> {
    let (sign, since) = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (1, since),
        Err(before) => (-1, before.duration()),
    };
    let seconds = sign * i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    let datetime = py.import("datetime")?;
    let utc = datetime.getattr("timezone")?.getattr("utc")?;
    let epoch = datetime.getattr("datetime")?.call_method1("fromtimestamp", (0, &utc))?;
    let seconds = seconds.clamp(MIN_SECONDS, MAX_SECONDS);
    let delta = datetime.getattr("timedelta")?.call1((0, seconds, sign * i64::from(since.subsec_micros())))?;
    epoch.add(delta)
}
