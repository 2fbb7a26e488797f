//! What Python gets.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use telexec_executor::{self as executor, ExecutionState, Exited, FileType, OutputStream, Program};

/// Of the years 1 to 9999, but for their first and last second.
const MIN_SECONDS: i64 = -62_135_596_799;
const MAX_SECONDS: i64 = 253_402_300_798;

/// A piece of output.
#[pyclass(frozen, get_all, module = "telexec")]
pub(crate) struct Event {
    stream: &'static str,
    data: Py<PyBytes>,
    position: u64,
}

impl Event {
    pub(crate) fn new(py: Python<'_>, event: executor::Event) -> Self {
        let (stream, data, position) = match &event {
            executor::Event::Output(output) => {
                let stream = match output.stream {
                    OutputStream::Stdout => "stdout",
                    OutputStream::Stderr => "stderr",
                };
                (stream, &output.data[..], output.position)
            }
            executor::Event::Gap(position) => ("gap", &[][..], *position),
            _ => ("gap", &[][..], 0),
        };
        Self { stream, data: PyBytes::new(py, data).unbind(), position }
    }
}

#[pymethods]
impl Event {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let data = self.data.bind(py).repr()?;
        Ok(format!("Event(stream={:?}, data={data}, position={})", self.stream, self.position))
    }
}

/// What all processes of an execution together have used.
#[pyclass(frozen, get_all, module = "telexec")]
#[derive(Clone)]
pub(crate) struct Usage {
    user_time: Option<f64>,
    system_time: Option<f64>,
    peak_memory: Option<u64>,
    read_bytes: Option<u64>,
    written_bytes: Option<u64>,
    peak_processes: Option<u32>,
}

impl From<executor::Usage> for Usage {
    fn from(usage: executor::Usage) -> Self {
        Self {
            user_time: usage.user_time.map(|time| time.as_secs_f64()),
            system_time: usage.system_time.map(|time| time.as_secs_f64()),
            peak_memory: usage.peak_memory_bytes,
            read_bytes: usage.read_bytes,
            written_bytes: usage.written_bytes,
            peak_processes: usage.peak_processes,
        }
    }
}

#[pymethods]
impl Usage {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let fields: [(&str, Bound<'_, PyAny>); 6] = [
            ("user_time", self.user_time.into_pyobject(py)?),
            ("system_time", self.system_time.into_pyobject(py)?),
            ("peak_memory", self.peak_memory.into_pyobject(py)?),
            ("read_bytes", self.read_bytes.into_pyobject(py)?),
            ("written_bytes", self.written_bytes.into_pyobject(py)?),
            ("peak_processes", self.peak_processes.into_pyobject(py)?),
        ];
        Ok(format!("Usage({})", fields.map(|(name, value)| format!("{name}={value}")).join(", ")))
    }
}

/// How a command ended.
#[pyclass(frozen, get_all, module = "telexec")]
pub(crate) struct Exit {
    id: String,
    exit_code: i32,
    cause: &'static str,
    signal: Option<String>,
    core_dumped: bool,
    wall_time: f64,
    user_time: f64,
    system_time: f64,
    max_rss: u64,
    dropped_bytes: u64,
    surviving_processes: u32,
    usage: Usage,
}

impl Exit {
    pub(crate) fn new(id: String, exited: &Exited) -> Self {
        Self {
            id,
            exit_code: exited.exit_code(),
            cause: exited.cause.as_str(),
            signal: exited.signal.map(|signal| signal.to_string()),
            core_dumped: exited.core_dumped,
            wall_time: exited.wall_time.as_secs_f64(),
            user_time: exited.user_time.as_secs_f64(),
            system_time: exited.system_time.as_secs_f64(),
            max_rss: exited.max_rss_bytes,
            dropped_bytes: exited.stdout.dropped_bytes + exited.stderr.dropped_bytes,
            surviving_processes: exited.surviving_processes,
            usage: exited.usage.into(),
        }
    }
}

#[pymethods]
impl Exit {
    fn __repr__(&self) -> String {
        let Self { id, exit_code, cause, signal, .. } = self;
        let signal = signal.as_ref().map(|signal| format!(", signal={signal:?}")).unwrap_or_default();
        format!("Exit(id={id:?}, exit_code={exit_code}, cause={cause:?}{signal})")
    }
}

/// An execution that an agent knows.
#[pyclass(frozen, get_all, module = "telexec")]
pub(crate) struct Info {
    id: String,
    command: String,
    argv: Option<Vec<String>>,
    cwd: String,
    user: String,
    identity: String,
    terminal: bool,
    labels: BTreeMap<String, String>,
    state: &'static str,
    pid: u32,
    start_time: Py<PyAny>,
    position: u64,
    processes: u32,
    usage: Usage,
    exit: Option<Py<Exit>>,
}

impl Info {
    pub(crate) fn new(py: Python<'_>, info: executor::ExecutionInfo) -> PyResult<Self> {
        let (command, argv) = match info.program {
            Program::Shell { text, .. } => (text, None),
            Program::Argv(argv) => (argv.join(" "), Some(argv)),
        };
        let id = info.id.to_string();
        let exit = info.exited.map(|exited| Py::new(py, Exit::new(id.clone(), &exited))).transpose()?;
        let state = match info.state {
            ExecutionState::Running => "running",
            ExecutionState::Lingering => "lingering",
            ExecutionState::Exited => "exited",
        };
        Ok(Self {
            id,
            command,
            argv,
            cwd: info.working_directory,
            user: info.user,
            identity: info.identity,
            terminal: info.terminal,
            labels: info.labels,
            state,
            pid: info.pid,
            start_time: time_to_python(py, info.start_time)?,
            position: info.position,
            processes: info.processes,
            usage: info.usage.into(),
            exit,
        })
    }
}

#[pymethods]
impl Info {
    fn __repr__(&self) -> String {
        format!("Info(id={:?}, command={:?}, state={:?})", self.id, self.command, self.state)
    }
}

/// What is known of a file.
#[pyclass(frozen, get_all, module = "telexec")]
pub(crate) struct FileInfo {
    path: Py<PyAny>,
    kind: &'static str,
    size: u64,
    mode: u32,
    owner: String,
    group: String,
    modify_time: Py<PyAny>,
    link_target: Option<Py<PyAny>>,
}

impl FileInfo {
    pub(crate) fn new(py: Python<'_>, info: executor::FileInfo) -> PyResult<Self> {
        let kind = match info.kind {
            FileType::Regular => "file",
            FileType::Directory => "directory",
            FileType::Symlink => "symlink",
            FileType::Fifo => "fifo",
            FileType::Socket => "socket",
            FileType::CharacterDevice => "character_device",
            FileType::BlockDevice => "block_device",
        };
        Ok(Self {
            path: path_to_python(py, &info.path)?,
            kind,
            size: info.size,
            mode: info.mode,
            owner: info.owner,
            group: info.group,
            modify_time: time_to_python(py, info.modify_time)?,
            link_target: info.link_target.map(|path| path_to_python(py, &path)).transpose()?,
        })
    }
}

#[pymethods]
impl FileInfo {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let path = self.path.bind(py).repr()?;
        Ok(format!("FileInfo(path={path}, kind={:?}, size={}, mode={:#o})", self.kind, self.size, self.mode))
    }
}

/// A change of a file that is watched.
#[pyclass(frozen, get_all, module = "telexec")]
pub(crate) struct FileChange {
    change: &'static str,
    path: Py<PyAny>,
}

impl FileChange {
    pub(crate) fn new(py: Python<'_>, watched: &executor::Watched) -> PyResult<Self> {
        let (change, path) = match watched {
            executor::Watched::Event(event) => (event.change, &event.path),
            // whoever watches has to list it again
            executor::Watched::Lost => return Ok(Self { change: "lost", path: py.None() }),
        };
        let change = match change {
            executor::FileChange::Created => "created",
            executor::FileChange::Written => "written",
            executor::FileChange::Removed => "removed",
            executor::FileChange::Renamed => "renamed",
            executor::FileChange::AttributesChanged => "attributes_changed",
        };
        Ok(Self { change, path: path_to_python(py, path)? })
    }
}

#[pymethods]
impl FileChange {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("FileChange(change={:?}, path={})", self.change, self.path.bind(py).repr()?))
    }
}

/// As `os.fsdecode` makes it.
pub(crate) fn path_to_python(py: Python<'_>, path: &executor::FilePath) -> PyResult<Py<PyAny>> {
    Ok(OsStr::from_bytes(path.as_bytes()).into_pyobject(py)?.into_any().unbind())
}

/// A `datetime` in UTC; the first or the last there is for a time beyond. pyo3's own conversion panics before 1970.
fn time_to_python(py: Python<'_>, time: SystemTime) -> PyResult<Py<PyAny>> {
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
    Ok(epoch.add(delta)?.unbind())
}
