//! `telexec fleet`: many hosts at once, which here are the ports of few agents.

use std::fmt::Write;
use std::path::Path;

use telexec_tests::{Agent, Certs};
use tempfile::TempDir;
use tokio::process::Command;

use super::{Said, telexec};

mod background;
mod copy;
mod faults;
mod hosts;
mod inventories;
mod live_line;
mod output;
mod pace;
mod queries;

/// Hosts over mTLS, which a configuration calls web01, web02 and so on: all of one agent. One called other is of an agent
/// whose commands have `KIND=other` in their environment.
struct Fleet {
    agent: Agent,
    _other: Agent,
    certs: Certs,
    directory: TempDir,
}

impl Fleet {
    fn of(hosts: usize) -> Self {
        let certs = Certs::new();
        let mut builder = Agent::builder().mtls(&certs);
        for _ in 1..hosts {
            builder = builder.listen("tcp://127.0.0.1:0");
        }
        let agent = builder.start();
        let other = Agent::builder().mtls(&certs).config("[environment]\nKIND = 'other'").start();
        let directory = tempfile::tempdir().unwrap();
        let mut toml = format!(
            "[defaults]\ncert = '{}'\nkey = '{}'\nca = '{}'\nserver_name = 'localhost'\n\
             [groups]\nweb = ['web[01-{hosts:02}]']\n[targets.other]\naddress = '{}'\n",
            certs.client.cert.display(),
            certs.client.key.display(),
            certs.ca.cert().display(),
            other.address(),
        );
        for (number, uri) in agent.uris().iter().enumerate() {
            write!(toml, "[targets.web{:02}]\naddress = '{uri}'\n", number + 1).unwrap();
        }
        std::fs::write(directory.path().join("config.toml"), toml).unwrap();
        Self { agent, _other: other, certs, directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn telexec(&self, args: &[&str]) -> Command {
        let mut command = telexec(["fleet"].iter().chain(args));
        command.env("TELEXEC_CONFIG", self.path().join("config.toml"));
        command.env("XDG_STATE_HOME", self.path().join("state"));
        command
    }

    async fn say(&self, args: &[&str]) -> Said {
        Said::by(self.telexec(args)).await
    }

    /// Adds a target of this name.
    fn add(&self, name: &str, address: &str) {
        let path = self.path().join("config.toml");
        let toml = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, format!("{toml}\n[targets.{name}]\naddress = '{address}'\n")).unwrap();
    }
}

/// The lines, sorted: which host is first is not known.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// The closing summary, without the time that it took, and without the failures that were reported before it.
fn summary(said: &Said) -> Vec<String> {
    let lines = said.remark().lines().map(|line| line.strip_prefix("telexec: ").unwrap());
    let lines = lines.map(|line| line.split(", in ").next().unwrap().to_owned());
    lines.skip_while(|line| !line.contains(" ok")).collect()
}
