//! What an agent with a user of its own may not do any more, whatever happens to it: `system_calls` by seccomp(2), `files` by
//! landlock(7). Commands are the keeper's children, and know nothing of this.
//!
//! The rest is by its user: it has no capabilities, and no_new_privs is set.

mod files;
mod system_calls;

use std::path::PathBuf;

pub use landlock::RulesetStatus;

use crate::Config;

/// A restriction that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RestrictionError {
    /// It is not one for this architecture.
    #[error("cannot make a seccomp filter for this architecture")]
    Filter(#[from] seccompiler::BackendError),
    /// The kernel refuses it.
    #[error("cannot install a seccomp filter")]
    Install(#[from] seccompiler::Error),
    /// The kernel has Landlock, and refuses it.
    #[error("cannot apply the Landlock rules")]
    Landlock(#[from] landlock::RulesetError),
    /// It is to be written to.
    #[error("{path}: the agent cannot use this directory")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: landlock::PathFdError,
    },
}

/// Forbids this process, and all threads to come, what an agent with this configuration does not do. Returns how far the kernel
/// has Landlock: without it, files are left to the user's permissions. Before there is another thread, since Landlock is of
/// threads.
///
/// # Errors
/// The kernel has no seccomp filters, or refuses the rules; or a directory is not there.
pub fn restrict(config: &Config) -> Result<RulesetStatus, RestrictionError> {
    let status = files::restrict(config)?;
    system_calls::restrict()?;
    Ok(status)
}

#[cfg(test)]
mod tests {
    /// Runs a test in a process of its own, which it leaves restricted.
    pub(super) fn alone(name: &str, test: impl FnOnce()) {
        if std::env::var_os("TELEXEC_ALONE").is_some() {
            let _ = rustix::thread::set_no_new_privs(true);
            return test();
        }
        let name = format!("process::restrictions::{name}");
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name, "--nocapture"]).envs([("TELEXEC_ALONE", "1"), ("TMPDIR", "/tmp")]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
