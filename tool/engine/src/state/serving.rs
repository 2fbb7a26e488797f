//! The agents that serve on a state directory.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::directory::DIRECTORY_PREFIX;
use super::engine_file::{EngineFile, EngineProcess, FILE, boot_id};
use crate::boot_time::boot_time;

/// An agent that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingAgent {
    process: EngineProcess,
    /// Its own.
    directory: PathBuf,
}

/// In its directory: why it has not handed over.
const REFUSAL: &str = "refusal";
/// More is not read of it.
const MAX_REFUSAL_BYTES: u64 = 64 * 1024;

impl ServingAgent {
    /// Its process.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// When its process was started, by the clock of now.
    pub fn start_time(&self) -> SystemTime {
        let started = Duration::from_millis(self.process.start_ticks.saturating_mul(1000) / clock_ticks_per_second());
        let now = SystemTime::now();
        now.checked_sub(boot_time().saturating_sub(started)).unwrap_or(now)
    }

    /// The process of the keeper that has started it; `None`: there is none, and so no other agent takes its place.
    pub fn keeper(&self) -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid)).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
        let name = fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
        (name.trim_end() == "telexec-keeper").then(|| parent.parse().ok()).flatten()
    }

    /// Why it has not handed over, if it was asked to since [`forget_refusal`](Self::forget_refusal).
    pub fn refusal(&self) -> Option<String> {
        // its user may be another one
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file =
            File::options().read(true).custom_flags(flags.bits().cast_signed()).open(self.directory.join(REFUSAL));
        let file = file.ok().filter(|file| file.metadata().is_ok_and(|found| found.is_file()))?;
        let mut text = Vec::new();
        file.take(MAX_REFUSAL_BYTES).read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// It is to be asked again.
    pub fn forget_refusal(&self) {
        let _ = fs::remove_file(self.directory.join(REFUSAL));
    }

    /// Says why it does not hand over. The agent does so itself.
    pub fn refuse(&self, reason: &str) {
        let written = tempfile::NamedTempFile::new_in(&self.directory).and_then(|mut file| {
            file.write_all(reason.as_bytes())?;
            Ok(file.persist(self.directory.join(REFUSAL))?)
        });
        // it is in the log too
        drop(written);
    }
}

/// The agents that run with this state directory.
///
/// # Errors
/// It cannot be read.
pub fn serving_agents(state_dir: &Path) -> io::Result<Vec<ServingAgent>> {
    let mut agents = Vec::new();
    for entry in fs::read_dir(state_dir)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(DIRECTORY_PREFIX) {
            continue;
        }
        // one that has just gone has none
        let file = fs::read(entry.path().join(FILE)).unwrap_or_default();
        let engine = serde_json::from_slice::<EngineFile>(&file).ok().filter(|engine| engine.boot_id == boot_id());
        let process = engine.and_then(|engine| engine.process);
        let process = process.filter(|process| process.is_comparable() && !process.has_ended());
        agents.extend(process.map(|process| ServingAgent { process, directory: entry.path() }));
    }
    Ok(agents)
}

/// Asks an agent to hand over to the program on disk.
///
/// # Errors
/// It has ended, or this process may not signal it.
pub fn send_upgrade(agent: &ServingAgent) -> io::Result<()> {
    let pid = Pid::from_raw(agent.pid()).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    // the number may have been given out again before that
    if agent.process.has_ended() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(pidfd_send_signal(pidfd, Signal::USR2)?)
}
