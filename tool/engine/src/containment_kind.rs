//! The ways to keep the processes of an execution together.

use std::fmt;
use std::str::FromStr;

/// How the processes of an execution are kept together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
pub enum ContainmentKind {
    /// By session, process group, ancestry and environment: a process that hides from all of these gets away.
    #[default]
    #[serde(rename = "process-group")]
    ProcessGroup,
    /// By a cgroup of the first version and its freezer.
    #[serde(rename = "cgroup-v1")]
    CgroupV1,
    /// By a cgroup of the second version.
    #[serde(rename = "cgroup-v2")]
    CgroupV2,
}

impl ContainmentKind {
    /// Its name, such as `cgroup-v2`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ProcessGroup => "process-group",
            Self::CgroupV1 => "cgroup-v1",
            Self::CgroupV2 => "cgroup-v2",
        }
    }
}

impl fmt::Display for ContainmentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ContainmentKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let kinds = [Self::CgroupV2, Self::CgroupV1, Self::ProcessGroup];
        let found = kinds.into_iter().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| format!("none of {}", kinds.map(Self::as_str).join(", ")))
    }
}
