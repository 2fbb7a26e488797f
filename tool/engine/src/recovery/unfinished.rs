//! An execution that has not ended, as its agent describes it for the next one: in JSON, in the [`Checkpoint`].

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use telexec_executor::{Command, Descendants, ExecutionId, Fingerprint, OnDisconnect, TerminalSize};

use super::handover::format::{self, Asked, Main, Time, fingerprint};
use crate::boot_time::{instant, since_boot};
use crate::cgroup::LeafRecord;
use crate::grant::Allowance;
use crate::observer::{MainProcess, ObserverStates};
use crate::registry::{self, Record};
use crate::spawn::working_directory::ReportFiles;
use crate::state::checkpoint::{self, Checkpoint};
use crate::streams::{HeldFile, HeldFiles};

/// Goes up with any change that an older or a newer engine would take for something else.
const VERSION: u32 = 1;

/// The versions of all that an agent must be able to read to take the place of one with this engine, as a text: they are the
/// same, or it cannot.
pub fn handover_formats() -> String {
    let (keeper, checkpoint, ended) = (telexec_keeper::formats(), checkpoint::VERSION, format::VERSION);
    format!("keeper {keeper}, checkpoint {checkpoint}, execution {VERSION}, ended execution {ended}")
}

/// What describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unfinished {
    version: u32,
    id: String,
    fingerprint: Option<String>,
    asked: Asked,
    labels: BTreeMap<String, String>,
    attributes: Attributes,
    max_timeout: Option<Time>,
    most_output_bytes: Option<u64>,
    /// What the keeper holds, in its order.
    files: Vec<HeldFile>,
    /// In base64.
    observers: BTreeMap<String, String>,
    #[serde(flatten)]
    start: Option<Start>,
}

/// What is known once it is about to be started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// What its processes carry in their environment.
    pub(crate) key: String,
    main_process: Main,
    /// Since the machine was booted.
    started: Time,
    leaf: Option<LeafRecord>,
    report: Option<ReportFiles>,
}

/// Of its command, what matters after the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Attributes {
    timeout: Option<Time>,
    /// Since the machine was booted.
    deadline: Option<Time>,
    kill_grace: Option<Time>,
    yield_after: Option<Time>,
    detach: bool,
    disconnect_grace: Time,
    kill_descendants: bool,
    max_output_bytes: u64,
    accepts_input: bool,
    /// Bytes that its input starts with.
    stdin: u64,
}

impl Unfinished {
    /// Of an execution that is to be started, whose observers have these states. `limits`: its timeout, which the keeper holds it to
    /// whatever the next agent's settings are, and its grace.
    pub(crate) fn new(
        record: &Record,
        command: &Command,
        (timeout, kill_grace): (Option<Duration>, Duration),
        allowance: &Allowance,
        held: &HeldFiles,
        states: ObserverStates,
    ) -> Self {
        Self {
            version: VERSION,
            id: record.id.to_string(),
            fingerprint: record.fingerprint().map(|fingerprint| STANDARD.encode(fingerprint.as_bytes())),
            asked: record.asked().into(),
            labels: record.labels().clone(),
            attributes: Attributes {
                timeout: timeout.map(Time::from),
                deadline: command.deadline().map(|deadline| since_boot(deadline).into()),
                kill_grace: Some(kill_grace.into()),
                yield_after: command.yield_after().map(Time::from),
                detach: command.on_disconnect() == OnDisconnect::Detach,
                disconnect_grace: command.disconnect_grace().into(),
                kill_descendants: command.descendants() == Descendants::Kill,
                max_output_bytes: command.max_output_bytes(),
                accepts_input: command.accepts_input(),
                stdin: command.stdin().len() as u64,
            },
            max_timeout: allowance.timeout.map(Time::from),
            most_output_bytes: allowance.output_bytes,
            files: held.iter().map(|(file, _)| *file).collect(),
            observers: states.into_iter().map(|(name, state)| (name.to_owned(), STANDARD.encode(state))).collect(),
            start: None,
        }
    }

    /// Saves it, before it is started.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn save(mut self, start: Start, checkpoint: &Checkpoint) -> io::Result<()> {
        self.start = Some(start);
        checkpoint.set_execution(&serde_json::to_vec(&self)?)
    }

    /// # Errors
    /// It is not whole, or of another version.
    pub(crate) fn read(checkpoint: &Checkpoint) -> io::Result<Self> {
        let this: Self = serde_json::from_slice(&checkpoint.execution()?)?;
        match this.version == VERSION {
            true => Ok(this),
            false => Err(io::Error::other(format!("it is of version {}, not {VERSION}", this.version))),
        }
    }

    /// # Errors
    /// There is no such execution.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.id()?;
        self.fingerprint()?;
        self.allowance()?;
        self.command()?;
        let start = self.start()?;
        start.started()?;
        start.main_process(0)?;
        Ok(())
    }

    /// # Errors
    /// There is no such id.
    pub(crate) fn id(&self) -> io::Result<ExecutionId> {
        self.id.parse().map_err(io::Error::other)
    }

    pub(crate) fn asked(&self) -> registry::Asked {
        self.asked.clone().into()
    }

    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        self.labels.clone()
    }

    /// # Errors
    /// It is none.
    pub(crate) fn fingerprint(&self) -> io::Result<Option<Fingerprint>> {
        self.fingerprint.as_deref().map(fingerprint).transpose()
    }

    /// # Errors
    /// It was not about to be started.
    pub(crate) fn start(&self) -> io::Result<&Start> {
        self.start.as_ref().ok_or_else(|| io::Error::other("it was not started"))
    }

    pub(crate) fn files(&self) -> &[HeldFile] {
        &self.files
    }

    pub(crate) fn accepts_input(&self) -> bool {
        self.attributes.accepts_input
    }

    /// Bytes that its input starts with.
    pub(crate) fn stdin(&self) -> u64 {
        self.attributes.stdin
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.attributes.detach
    }

    pub(crate) fn observers(&self) -> BTreeMap<String, Vec<u8>> {
        let decoded = self.observers.iter().map(|(name, state)| (name.clone(), STANDARD.decode(state)));
        decoded.filter_map(|(name, state)| Some((name, state.ok()?))).collect()
    }

    /// What may be used at most.
    ///
    /// # Errors
    /// A time is out of range.
    pub(crate) fn allowance(&self) -> io::Result<Allowance> {
        let timeout = self.max_timeout.map(Time::duration).transpose()?;
        Ok(Allowance { timeout, output_bytes: self.most_output_bytes, ..Allowance::default() })
    }

    /// A command with the same attributes, without what only its start needs.
    ///
    /// # Errors
    /// There is no such command.
    pub(crate) fn command(&self) -> io::Result<Command> {
        let Attributes { detach, kill_descendants, max_output_bytes, accepts_input, .. } = self.attributes;
        let mut command = Command::argv(["restored"])
            .on_disconnect(if detach { OnDisconnect::Detach } else { OnDisconnect::Kill })
            .descendants(if kill_descendants { Descendants::Kill } else { Descendants::Keep })
            .disconnect_grace(self.attributes.disconnect_grace.duration()?)
            .max_output_bytes(max_output_bytes)
            .accepts_input(accepts_input);
        if let Some(timeout) = self.attributes.timeout {
            command = command.timeout(timeout.duration()?);
        }
        if let Some(deadline) = self.attributes.deadline {
            command = command.deadline(instant(deadline.duration()?));
        }
        if let Some(grace) = self.attributes.kill_grace {
            command = command.kill_grace(grace.duration()?);
        }
        if let Some(delay) = self.attributes.yield_after {
            command = command.yield_after(delay.duration()?);
        }
        if self.files.contains(&HeldFile::Terminal) {
            // that it has one matters, and not its size
            command = command.terminal(TerminalSize::new(80, 24).map_err(io::Error::other)?);
        }
        let mut command = command.build().map_err(io::Error::other)?;
        drop(command.take_start());
        Ok(command)
    }
}

impl Start {
    pub(crate) fn new(
        key: String,
        main: &MainProcess,
        started: Instant,
        leaf: Option<LeafRecord>,
        report: Option<ReportFiles>,
    ) -> Self {
        Self { key, main_process: main.into(), started: since_boot(started).into(), leaf, report }
    }

    /// # Errors
    /// A time is out of range.
    pub(crate) fn main_process(&self, pid: u32) -> io::Result<MainProcess> {
        Ok(MainProcess { pid, ..self.main_process.clone().main()? })
    }

    /// # Errors
    /// A time is out of range.
    pub(crate) fn started(&self) -> io::Result<Instant> {
        Ok(instant(self.started.duration()?))
    }

    pub(crate) fn leaf(&self) -> Option<&LeafRecord> {
        self.leaf.as_ref()
    }

    pub(crate) fn cgroup(&self) -> Option<PathBuf> {
        self.leaf.as_ref()?.path().map(ToOwned::to_owned)
    }

    pub(crate) fn report(&self) -> Option<&ReportFiles> {
        self.report.as_ref()
    }
}

/// Saves how an execution has ended, which is that of this record.
///
/// # Errors
/// There is no memory.
pub(crate) fn save_end(record: &Record, checkpoint: &Checkpoint) -> io::Result<()> {
    let Some(mut ended) = record.to_leave() else { return Ok(()) };
    // that is in the checkpoint already
    ended.output.tail.clear();
    checkpoint.set_ended(&format::encode(&ended)?)
}
