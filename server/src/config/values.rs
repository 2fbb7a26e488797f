//! What single settings may be.

use std::path::Path;

use serde::Deserialize;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Whether a separate process starts the agent and all commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KeeperMode {
    /// If root starts the agent and the keeper's program can be used.
    #[default]
    Auto,
    /// Yes, or the agent does not start.
    On,
    /// No.
    Off,
}

/// Users of commands that name none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultUsers {
    /// For each command one of its own, see [`telexec_engine::LocalConfig::dynamic_users`]. Requires root and `state_dir`.
    Dynamic,
}

impl DefaultUsers {
    /// Whether a path of the machine is there for their commands: not below the directories that each has to itself.
    pub(super) fn see(self, path: &Path) -> bool {
        let Self::Dynamic = self;
        !["/tmp", "/var/tmp", "/dev/shm"].map(Path::new).iter().any(|own| path != *own && path.starts_with(own))
    }
}

/// Permissions of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SocketMode(pub u32);

impl Default for SocketMode {
    fn default() -> Self {
        Self(0o600)
    }
}

impl TryFrom<String> for SocketMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777 && mode & 0o600 == 0o600);
        mode.map(Self).ok_or_else(|| format!("{text:?} is not a socket mode, such as \"0600\" or \"0660\""))
    }
}

/// The weakest containment that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RequiredContainment {
    /// A cgroup, of either version.
    Cgroup,
}
