//! `telexec ssh`: the command line of ssh (`line`), and unmodified programs that call it (`programs`, `ansible`).

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use telexec_tests::{Agent, Certs, program, within};
use tempfile::TempDir;
use tokio::process::Command;

mod ansible;
mod forwards;
mod line;
mod programs;

/// A user's home with a configuration of telexec, and the agents that it names: `web1` and `web2`, by mTLS. Nothing
/// listens where `gone` is.
struct Site {
    web1: Agent,
    web2: Agent,
    certs: Certs,
    directory: TempDir,
}

/// How a program ended.
#[derive(Debug)]
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Site {
    fn new() -> Self {
        let certs = Certs::new();
        let [web1, web2] = ["one", "two"]
            .map(|name| Agent::builder().mtls(&certs).config(format!("[environment]\nMACHINE = '{name}'")).start());
        let directory = tempfile::tempdir().unwrap();
        let this = Self { web1, web2, certs, directory };
        let client = &this.certs.client;
        let mut config = format!(
            "[defaults]\ncert = {:?}\nkey = {:?}\nca = {:?}\nserver_name = 'localhost'\n",
            client.cert,
            client.key,
            this.certs.ca.cert()
        );
        let targets = [("web1", this.web1.address()), ("web2", this.web2.address()), ("gone", "127.0.0.1:1")];
        for (name, address) in targets {
            write!(config, "[targets.{name}]\naddress = '{address}'\n").unwrap();
        }
        this.write("home/.config/telexec/config.toml", &config);
        std::fs::create_dir(this.path("bin")).unwrap();
        for name in ["telexec", "telexec-ssh", "ssh"] {
            symlink(program("telexec"), this.path("bin").join(name)).unwrap();
        }
        this
    }

    /// A path in a directory that is removed with this.
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The same as text.
    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes a file there.
    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A program that finds telexec, its configuration and nothing else of who runs the tests, in that directory.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("HOME", self.path("home")).env("LANG", "C.UTF-8").current_dir(self.directory.path());
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Runs a shell text there.
    async fn run(&self, text: &str) -> Ended {
        let mut command = self.command("bash");
        command.args(["-c", text]);
        ended(&mut command).await
    }

    /// The same, whose output is returned if all went well.
    #[track_caller]
    fn done(&self, text: &str) -> impl Future<Output = String> {
        let here = std::panic::Location::caller();
        async move {
            let Ended { code, stdout, stderr } = self.run(text).await;
            assert_eq!(code, 0, "{here}: {text}\n{stdout}\n{stderr}");
            stdout
        }
    }
}

async fn ended(command: &mut Command) -> Ended {
    let output = within(command.output()).await.expect("not installed: tests/run installs it");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap_or_else(|| panic!("{}", output.status));
    Ended { code, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Whether both directories have the same files.
fn same(one: &Path, other: &Path) -> bool {
    let output = std::process::Command::new("diff").arg("-r").args([one, other]).output().unwrap();
    output.status.success()
}
