//! A process whose memory does not answer those who read it.

use std::process::{Child, Command, Stdio};

use crate::Agent;

/// A process of nobody's execution that is stuck for one agent. Dropping it ends the process.
pub struct StuckProcess(Child);

impl StuckProcess {
    /// Whoever reads its environment in the mount namespace of the agent, which must have its own, opens a pipe to which
    /// nobody writes; others, such as the tests beside this one, are spared.
    ///
    /// # Panics
    /// It cannot be made: that takes root.
    pub fn new(agent: &Agent) -> Self {
        let process = Self(Command::new("sleep").arg("300").stdin(Stdio::null()).spawn().unwrap());
        let pipe = agent.directory().join(format!("pipe-{}", process.id()));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut mount = Command::new("nsenter");
        mount.args(["--target", &agent.pid().to_string(), "--mount", "mount", "--bind"]);
        assert!(mount.arg(&pipe).arg(format!("/proc/{}/environ", process.id())).status().unwrap().success());
        process
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for StuckProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
