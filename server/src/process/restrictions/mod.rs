//! What an agent with a user of its own may not do any more, whatever happens to it: `system_calls` by seccomp(2), `files` by
//! landlock(7). Commands are the keeper's children, and know nothing of this.
//!
//! The rest is by its user: it has no capabilities, and no_new_privs is set.

mod files;
mod system_calls;

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
    #[error("cannot restrict the files that are written to, by Landlock")]
    Landlock(#[from] landlock::RulesetError),
}

/// Forbids this process, and all threads to come, what an agent with this configuration does not do. False: the kernel has no
/// Landlock, and files are left to the user's permissions. Before there is another thread, since Landlock is of threads.
///
/// # Errors
/// The kernel has no seccomp filters.
pub fn restrict(config: &Config) -> Result<bool, RestrictionError> {
    let has_landlock = files::restrict(config)?;
    system_calls::restrict()?;
    Ok(has_landlock)
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
        let output = command.args(["--exact", &name, "--nocapture"]).env("TELEXEC_ALONE", "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
