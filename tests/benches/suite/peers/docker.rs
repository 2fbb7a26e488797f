//! `docker exec` in a running container.

use std::fs;
use std::path::Path;
use std::process::{Child, Command as Program, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::processes::{Processes, version};
use crate::Result;
use crate::process::spawned;

/// Of the container, and of its image.
const NAME: &str = "bench";
/// All that is in it; a static one.
const BUSYBOX: &str = "/bin/busybox";
/// Until the daemon serves.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// With a daemon and a container of its own.
pub(super) fn start() -> Result<Processes<'static>> {
    let docker = Docker::start()?;
    let directory = docker.directory.path().to_owned();
    let exec = move || client(&directory, &["exec", NAME, BUSYBOX]);
    Ok(Processes::new("docker exec", version("docker", "--version")?, exec).with(docker))
}

/// To the daemon of this directory.
fn client(directory: &Path, arguments: &[&str]) -> Program {
    let mut command = Program::new("docker");
    command.arg("--host").arg(format!("unix://{}/socket", directory.display())).args(arguments);
    command
}

/// A Docker daemon in a directory of its own, without networks, and one container. Dropping it ends both.
struct Docker {
    directory: TempDir,
    daemon: Child,
}

impl Docker {
    fn start() -> Result<Self> {
        if !Path::new(BUSYBOX).exists() {
            return Err("busybox-static is not installed".into());
        }
        // the names of sockets are short
        let directory = tempfile::Builder::new().prefix("tb-").tempdir_in("/tmp")?;
        let mut dockerd = Program::new("dockerd");
        for (flag, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
            dockerd.arg(flag).arg(directory.path().join(name));
        }
        dockerd.arg("--host").arg(format!("unix://{}/socket", directory.path().display()));
        dockerd.args(["--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs"]);
        let log = fs::File::create(directory.path().join("log"))?;
        dockerd.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let daemon = dockerd.spawn().map_err(|error| format!("cannot start dockerd: {error}"))?;
        let docker = Self { directory, daemon };
        docker.serves()?;
        docker.run_container()?;
        Ok(docker)
    }

    fn serves(&self) -> Result<()> {
        let begin = Instant::now();
        while let Err(error) = spawned(self.client(&["version"])) {
            if begin.elapsed() > START_TIMEOUT {
                let log = fs::read_to_string(self.directory.path().join("log"))?;
                return Err(format!("{error}; dockerd's log: {log}").into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn run_container(&self) -> Result<()> {
        let image = self.directory.path().join("image.tar");
        let mut tar = Program::new("tar");
        tar.args(["--create", "--dereference", "--directory", "/", "--file"]).arg(&image);
        tar.arg(BUSYBOX.trim_start_matches('/'));
        spawned(tar)?;
        spawned(self.client(&["import", image.to_str().ok_or("the directory's name is no text")?, NAME]))?;
        spawned(self.client(&["run", "--detach", "--network=none", "--name", NAME, NAME, BUSYBOX, "sleep", "86400"]))?;
        Ok(())
    }

    fn client(&self, arguments: &[&str]) -> Program {
        client(self.directory.path(), arguments)
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let _ = spawned(self.client(&["rm", "--force", NAME]));
        // it ends what it has started
        let pid = i32::try_from(self.daemon.id()).ok().and_then(Pid::from_raw);
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        let _ = self.daemon.wait();
    }
}
