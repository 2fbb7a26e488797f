//! A process whose memory does not answer those who read it.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::Agent;

/// A process of nobody's execution that is stuck for one agent. Dropping it ends the process, and answers those who read.
pub struct StuckProcess {
    process: Child,
    pipe: PathBuf,
}

impl StuckProcess {
    /// Whoever reads its environment in the mount namespace of the agent, which must have its own, opens a pipe to which
    /// nobody writes; others, such as the tests beside this one, are spared.
    ///
    /// # Panics
    /// It cannot be made: that takes root.
    pub fn new(agent: &Agent) -> Self {
        let process = Command::new("sleep").arg("300").stdin(Stdio::null()).spawn().unwrap();
        let pipe = agent.directory().join(format!("pipe-{}", process.id()));
        let stuck = Self { process, pipe };
        assert!(Command::new("mkfifo").arg(&stuck.pipe).status().unwrap().success());
        let mut mount = Command::new("nsenter");
        mount.args(["--target", &agent.pid().to_string(), "--mount", "mount", "--bind"]);
        assert!(mount.arg(&stuck.pipe).arg(format!("/proc/{}/environ", stuck.id())).status().unwrap().success());
        stuck
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for StuckProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // whoever waits for a writer meets one, and the end
        let _ = OpenOptions::new().read(true).write(true).open(&self.pipe);
        let _ = std::fs::remove_file(&self.pipe);
    }
}
