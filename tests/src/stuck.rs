//! Processes whose memory does not answer those who read it.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::Agent;

/// The environment of a process that does not answer one agent. Dropping it answers those who read.
pub struct HeldEnvironment {
    agent: i32,
    process: u32,
    pipe: PathBuf,
}

impl HeldEnvironment {
    /// A process that reads it in the mount namespace of the agent, which must have its own, opens a pipe to which nothing writes;
    /// others, such as the tests beside this one, are spared.
    ///
    /// # Panics
    /// It cannot be mounted: that takes root.
    pub fn of(process: u32, agent: &Agent) -> Self {
        let pipe = agent.directory().join(format!("pipe-{process}"));
        let this = Self { agent: agent.pid(), process, pipe };
        assert!(Command::new("mkfifo").arg(&this.pipe).status().unwrap().success());
        this.enter(&["mount", "--bind", this.pipe.to_str().unwrap()]);
        this
    }

    /// It can be read from now on.
    ///
    /// # Panics
    /// It cannot be unmounted.
    pub fn release(self) {
        self.enter(&["umount", "-l"]);
    }

    fn enter(&self, argv: &[&str]) {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.agent.to_string(), "--mount"]).args(argv);
        assert!(command.arg(format!("/proc/{}/environ", self.process)).status().unwrap().success(), "{command:?}");
    }
}

impl Drop for HeldEnvironment {
    fn drop(&mut self) {
        // a process that waits for a writer meets one, and the end
        let _ = OpenOptions::new().read(true).write(true).open(&self.pipe);
        let _ = std::fs::remove_file(&self.pipe);
    }
}

/// A process of no execution that is stuck for one agent. Dropping it ends the process, and answers those who read.
pub struct StuckProcess {
    process: Child,
    _environment: HeldEnvironment,
}

impl StuckProcess {
    /// See [`HeldEnvironment::of`].
    ///
    /// # Panics
    /// It cannot be made: that takes root.
    pub fn new(agent: &Agent) -> Self {
        let process = Command::new("sleep").arg("300").stdin(Stdio::null()).spawn().unwrap();
        let environment = HeldEnvironment::of(process.id(), agent);
        Self { process, _environment: environment }
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
    }
}
