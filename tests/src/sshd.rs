//! What telexec is compared with: an sshd of its own, for root.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// Whom the commands run as: somebody whose shell has nothing to read before it begins.
const USER: &str = "telexec-bench";
const PROGRAMS: [&str; 4] = ["/usr/sbin/sshd", "ssh", "ssh-keygen", "useradd"];

/// An sshd that knows one user, with one key, on every loopback address. Dropping it ends it, and the connections that
/// [`Sshd::ssh`] left open.
#[derive(Debug)]
pub struct Sshd {
    directory: TempDir,
    child: Child,
    hosts: usize,
}

impl Sshd {
    /// Why there can be none here, if so; `others` are further programs that are needed.
    pub fn missing(others: &[&str]) -> Option<String> {
        if !crate::is_root() {
            return Some("only root can start an sshd that lets others in".to_owned());
        }
        let there =
            |name: &&&str| Command::new("which").arg(name).stdout(Stdio::null()).status().is_ok_and(|is| is.success());
        let missing: Vec<_> = PROGRAMS.iter().chain(others).filter(|name| !there(name)).copied().collect();
        (!missing.is_empty()).then(|| format!("not installed: {}", missing.join(" ")))
    }

    /// Starts it, for the addresses from 127.0.1.1 on, and waits until it answers.
    ///
    /// # Errors
    /// A program failed, or it does not answer.
    pub fn start(hosts: usize) -> io::Result<Self> {
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
        // what an interrupted run has left
        let _ = Command::new("userdel").args(["--force", USER]).stderr(Stdio::null()).status();
        let mut useradd = Command::new("useradd");
        useradd.args(["--create-home", "--shell", "/bin/sh", "--password", "*", "--skel"]).arg(path("skeleton"));
        ran(useradd.arg("--home-dir").arg(path("home")).arg(USER))?;
        // the user goes to its home through here
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711))?;
        let child = Command::new("/usr/sbin/sshd").args(["-D", "-f"]).arg(path("sshd_config")).spawn()?;
        let sshd = Self { directory, child, hosts };
        // it tries again while nothing listens
        ran(sshd.ssh(1, true).args(["-o", "ConnectionAttempts=30", "true"]))?;
        Ok(sshd)
    }

    /// `ssh` to one host, without a command yet: over a connection that stays, or a new one.
    pub fn ssh(&self, host: usize, multiplexed: bool) -> Command {
        let mut command = Command::new("ssh");
        command.arg("-F").arg(self.config(multiplexed)).arg(format!("127.0.1.{host}"));
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Where its keys (`user`, `user.pub`) and the home directory of its user (`home`) are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The configuration for `ssh -F`.
    pub fn config(&self, multiplexed: bool) -> PathBuf {
        self.directory.path().join(if multiplexed { "multiplexed" } else { "each" })
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        for host in 1..=self.hosts {
            let _ = self.ssh(host, true).args(["-O", "exit"]).status();
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
UsePAM no\nUseDNS no\nPrintMotd no\nPrintLastLog no\nStrictModes no\nPasswordAuthentication no\nAllowUsers {USER}@127.0.0.0/8\n\
MaxStartups 1000:30:2000\nMaxSessions 1000\nLogLevel ERROR\nSubsystem sftp internal-sftp\n"
    )
}

fn client_config(directory: &Path, port: u16) -> String {
    let directory = directory.display();
    format!(
        "Port {port}\nUser {USER}\nIdentityFile {directory}/user\nIdentitiesOnly yes\nBatchMode yes\nLogLevel ERROR\n\
StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nGSSAPIAuthentication no\nForwardX11 no\n\
Ciphers aes128-gcm@openssh.com\n"
    )
}

fn ran(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{}: {status}", command.get_program().display())))
    }
}
