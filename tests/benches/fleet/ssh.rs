//! The baseline: clush and pdsh over ssh, to an sshd of its own on as many loopback addresses.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{FANOUT, Result};

/// Whom the commands run as: somebody whose shell has nothing to read before it begins.
const USER: &str = "telexec-bench";
const PROGRAMS: [&str; 6] = ["/usr/sbin/sshd", "ssh", "ssh-keygen", "clush", "pdsh", "useradd"];
/// On two cores this takes clush half a minute; beyond it, sshd and the masters are thousands of processes.
const MOST: usize = 200;

/// A program that runs a command on many hosts by ssh.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tool {
    Clush,
    Pdsh,
}

/// An sshd that knows one user, with one key. Its files last as long as this.
pub(crate) struct Sshd {
    directory: TempDir,
    child: Child,
    hosts: usize,
}

/// Why there is nothing to compare with here, if so.
pub(crate) fn missing(hosts: usize) -> Option<String> {
    if !rustix::process::getuid().is_root() {
        return Some("only root can start an sshd that lets others in".to_owned());
    }
    if hosts > MOST {
        return Some(format!("more than {MOST} hosts are too many for one sshd"));
    }
    let there =
        |name: &&&str| Command::new("which").arg(name).stdout(Stdio::null()).status().is_ok_and(|is| is.success());
    let missing: Vec<_> = PROGRAMS.iter().filter(|name| !there(name)).copied().collect();
    (!missing.is_empty()).then(|| format!("not installed: {}", missing.join(" ")))
}

impl Sshd {
    pub(crate) fn start(hosts: usize) -> Result<Self> {
        // the names of control sockets are short
        let directory = tempfile::Builder::new().prefix("tb-").tempdir_in("/tmp")?;
        let path = |name: &str| directory.path().join(name);
        for key in ["host", "user"] {
            ran(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path(key)))?;
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (config, client) = (sshd_config(directory.path(), port), client_config(directory.path(), port));
        fs::write(path("sshd_config"), config)?;
        // the second is the same, but keeps a connection to each host
        let multiplexed = "ControlMaster auto\nControlPersist 600\n";
        let control = format!("{multiplexed}ControlPath {}/%C\n", directory.path().display());
        fs::write(path("multiplexed"), format!("{client}{control}"))?;
        fs::write(path("each"), client)?;
        fs::create_dir(path("skeleton"))?;
        fs::create_dir_all("/run/sshd")?;
        let mut useradd = Command::new("useradd");
        useradd.args(["--create-home", "--shell", "/bin/sh", "--password", "*", "--skel"]).arg(path("skeleton"));
        ran(useradd.arg("--home-dir").arg(path("home")).arg(USER))?;
        // the user goes to its home through here
        fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        let child = Command::new("/usr/sbin/sshd").args(["-D", "-f"]).arg(path("sshd_config")).spawn()?;
        Ok(Self { directory, child, hosts })
    }

    /// `true` everywhere, over connections of its own or those that are there.
    pub(crate) fn run(&self, tool: Tool, multiplexed: bool) -> Result<Duration> {
        let config = self.config(multiplexed);
        let hosts = format!("127.0.1.[1-{}]", self.hosts);
        let mut command = match tool {
            Tool::Clush => Command::new("clush"),
            Tool::Pdsh => Command::new("pdsh"),
        };
        match tool {
            Tool::Clush => command.args(["-q", "-o"]).arg(format!("-F {}", config.display())),
            Tool::Pdsh => command.args(["-R", "ssh"]).env("PDSH_SSH_ARGS", format!("-F {} %h", config.display())),
        };
        command.args(["-S", "-f", &FANOUT.to_string(), "-w", &hosts, "true"]).env("HOME", self.directory.path());
        let begin = Instant::now();
        ran(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
        Ok(begin.elapsed())
    }

    /// Waits until it answers, and opens the connections that stay.
    pub(crate) fn warm_up(&self) -> Result<()> {
        let begin = Instant::now();
        while ran(self.ssh(1).arg("true")).is_err() {
            if begin.elapsed() > Duration::from_secs(30) {
                return Err("sshd does not answer".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.run(Tool::Clush, true).map(|_| ())
    }

    /// To one host, over the connection that is there.
    fn ssh(&self, host: usize) -> Command {
        let mut command = Command::new("ssh");
        command.arg("-F").arg(self.config(true)).arg(format!("127.0.1.{host}"));
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn config(&self, multiplexed: bool) -> PathBuf {
        self.directory.path().join(if multiplexed { "multiplexed" } else { "each" })
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        for host in 1..=self.hosts {
            let _ = self.ssh(host).args(["-O", "exit"]).status();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("userdel").args(["--force", USER]).status();
    }
}

fn sshd_config(directory: &Path, port: u16) -> String {
    let directory = directory.display();
    format!(
        "ListenAddress 0.0.0.0:{port}\nHostKey {directory}/host\nAuthorizedKeysFile {directory}/user.pub\nPidFile none\n\
UsePAM no\nUseDNS no\nPrintMotd no\nPrintLastLog no\nStrictModes no\nPasswordAuthentication no\nAllowUsers {USER}\n\
MaxStartups 1000:30:2000\nMaxSessions 1000\nLogLevel ERROR\n"
    )
}

fn client_config(directory: &Path, port: u16) -> String {
    let directory = directory.display();
    format!(
        "Port {port}\nUser {USER}\nIdentityFile {directory}/user\nIdentitiesOnly yes\nBatchMode yes\nLogLevel ERROR\n\
StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nGSSAPIAuthentication no\nForwardX11 no\n"
    )
}

fn ran(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", command.get_program().display()).into()) }
}
