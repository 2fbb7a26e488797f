//! A file system that does not answer.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Agent, AgentBuilder};

/// Lies over a directory as an agent sees it, until it is lifted: a process that looks into the directory waits.
pub struct Silent {
    agent: i32,
    directory: PathBuf,
    /// Its requests are never read. Once this is closed, they fail.
    device: File,
}

impl Silent {
    /// An agent whose mounts are its own. `None`: that cannot be had here, which is printed.
    pub fn try_start(agent: AgentBuilder) -> Option<Agent> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let found = device.map_err(|error| error.to_string()).and_then(|_| {
            let started = agent.through(["unshare", "--mount"]).try_start();
            started.map_err(|refused| refused.to_string())
        });
        found.inspect_err(|error| eprintln!("skipped: no file system can be mounted here: {error}")).ok()
    }

    /// Covers a directory.
    ///
    /// # Panics
    /// It cannot be mounted.
    pub fn over(agent: &Agent, directory: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let this = Self { agent: agent.pid(), directory: directory.to_owned(), device };
        let options = "fd=0,rootmode=40000,user_id=0,group_id=0";
        let stdin = this.device.try_clone().unwrap().into();
        this.enter(["mount", "-i", "-t", "fuse", "-o", options, "none"], stdin);
        this
    }

    /// What is below is there again.
    ///
    /// # Panics
    /// It cannot be unmounted.
    pub fn lift(mut self) {
        self.device = File::open("/dev/null").unwrap();
        self.enter(["umount", "-i", "-l"], Stdio::null());
    }

    fn enter<const N: usize>(&self, argv: [&str; N], stdin: Stdio) {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.agent.to_string(), "--"]).args(argv).arg(&self.directory);
        assert!(command.stdin(stdin).status().unwrap().success(), "{command:?}");
    }
}
