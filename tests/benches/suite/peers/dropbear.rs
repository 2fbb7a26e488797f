//! Dropbear, a small SSH server, with OpenSSH's client.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command as Program, Stdio};

use telexec_tests::Sshd;

use super::processes::{Processes, Start, version};
use crate::Result;
use crate::process::spawned;

const ADDRESS: &str = "127.0.1.1";

/// For the user of this sshd, in whose home Dropbear looks for keys.
pub(super) fn start(sshd: &Sshd) -> Result<Processes<'_>> {
    let (home, key) = (sshd.directory().join("home"), sshd.directory().join("dropbear"));
    let owner = fs::metadata(&home)?;
    fs::create_dir(home.join(".ssh"))?;
    fs::copy(sshd.directory().join("user.pub"), home.join(".ssh/authorized_keys"))?;
    for path in [".ssh", ".ssh/authorized_keys"].map(|name| home.join(name)) {
        chown(&path, Some(owner.uid()), Some(owner.gid()))?;
        fs::set_permissions(&path, PermissionsExt::from_mode(0o700))?;
    }
    let mut dropbearkey = Program::new("dropbearkey");
    dropbearkey.args(["-t", "ed25519", "-f"]).arg(&key);
    spawned(dropbearkey)?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let mut dropbear = Program::new("dropbear");
    dropbear.args(["-F", "-s", "-p", &format!("{ADDRESS}:{port}"), "-r"]).arg(&key);
    dropbear.arg("-P").arg(sshd.directory().join("dropbear.pid")).stdin(Stdio::null()).stderr(Stdio::null());
    let child = dropbear.spawn().map_err(|error| format!("cannot start dropbear: {error}"))?;
    let mut exit = ssh(&sshd.config(true), &port);
    exit.args(["-O", "exit"]);
    let server = Server { child, exit };
    let mut first = ssh(&sshd.config(true), &port);
    first.arg("true");
    spawned(first)?;
    let ssh = |multiplexed| -> Start<'_> {
        let (port, config) = (port.clone(), sshd.config(multiplexed));
        Box::new(move || ssh(&config, &port))
    };
    Ok(Processes::multiplexed("ssh, Dropbear", version("dropbear", "-V")?, [ssh(true), ssh(false)]).with(server))
}

fn ssh(config: &Path, port: &str) -> Program {
    let mut ssh = Program::new("ssh");
    // the preferred cipher of those that both support
    ssh.arg("-F").arg(config).args(["-c", "chacha20-poly1305@openssh.com", "-p", port]);
    // retries until the server listens
    ssh.args(["-o", "ConnectionAttempts=30", ADDRESS]);
    ssh
}

struct Server {
    child: Child,
    /// Ends the connection that stays open.
    exit: Program,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.exit.stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
