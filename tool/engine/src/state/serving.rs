//! The agents that serve on a state directory.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::directory::DIRECTORY_PREFIX;
use super::engine_file::{EngineFile, EngineProcess, FILE, boot_id};

/// An agent that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingAgent(EngineProcess);

impl ServingAgent {
    /// Its process.
    pub fn pid(&self) -> i32 {
        self.0.pid
    }

    /// The process of the keeper that has started it; `None`: there is none, and so no other agent takes its place.
    pub fn keeper(&self) -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.pid)).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
        let name = fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
        (name.trim_end() == "telexec-keeper").then(|| parent.parse().ok()).flatten()
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
        agents.extend(process.filter(|process| process.is_comparable() && !process.has_ended()).map(ServingAgent));
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
    if agent.0.has_ended() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(pidfd_send_signal(pidfd, Signal::USR2)?)
}
