//! Files are created, written and moved only where the agent has its own; symbolic links, FIFOs and devices are made nowhere;
//! signals reach only what it has started. Reading is left to its user's permissions: certificates, policies and accounts may be
//! anywhere. So are Unix sockets, which callers may have it listen on, and the removal of files. See landlock(7).

use std::path::Path;

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope, path_beneath_rules,
};

use super::RestrictionError;
use crate::Config;

/// Cgroups, its own settings, terminals, and sockets of virtual machines: permissions protect what is in these.
const SYSTEM: [&str; 6] = ["/sys/fs/cgroup", "/proc", "/dev/null", "/dev/ptmx", "/dev/pts", "/dev/vsock"];

fn handled() -> BitFlags<AccessFs> {
    AccessFs::from_write(ABI::V3) & !(AccessFs::MakeSock | AccessFs::RemoveFile)
}

/// What of that is needed.
fn allowed() -> BitFlags<AccessFs> {
    handled() & !(AccessFs::MakeSym | AccessFs::MakeFifo | AccessFs::MakeChar | AccessFs::MakeBlock)
}

/// See [`restrict`](super::restrict).
pub(super) fn restrict(config: &Config) -> Result<RulesetStatus, RestrictionError> {
    // the first version of Landlock would forbid all moves between directories: better none than that
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::SoftRequirement)
        .handle_access(AccessFs::Refer)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(handled())?
        .scope(Scope::Signal)?;
    let mut ruleset = ruleset.create()?;
    let log = config.audit.file.as_deref().and_then(Path::parent);
    let collected = config.audit_collector.as_ref().map(|collector| collector.directory.as_path());
    for path in config.state_dir.as_deref().into_iter().chain(log).chain(collected) {
        let directory =
            PathFd::new(path).map_err(|source| RestrictionError::Directory { path: path.to_owned(), source })?;
        ruleset = ruleset.add_rule(PathBeneath::new(directory, allowed()))?;
    }
    // where a shell's last directory is reported by another user
    let temporary = std::env::temp_dir();
    let others = SYSTEM.map(Path::new).into_iter().chain([temporary.as_path()]);
    Ok(ruleset.add_rules(path_beneath_rules(others, allowed()))?.restrict_self()?.ruleset)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::process::test_kill_process;

    use super::*;
    use crate::process::restrictions::tests::alone;

    #[test]
    fn files_are_written_where_the_agent_has_its_own_and_nowhere_else() {
        alone("files::tests::files_are_written_where_the_agent_has_its_own_and_nowhere_else", || {
            let [own, other] = ["/tmp", "/var/tmp"].map(|place| tempfile::tempdir_in(place).unwrap());
            let there = other.path().join("there");
            fs::write(&there, "as before").unwrap();
            let stranger = rustix::process::getppid().unwrap();
            let config = Config { state_dir: Some(own.path().to_owned()), ..Config::default() };
            if restrict(&config).unwrap() != RulesetStatus::FullyEnforced {
                eprintln!("skipped: the kernel lacks some of it, or all");
                return;
            }
            let is_refused = |done: std::io::Result<()>| {
                done.is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EACCES | libc::EXDEV)))
            };
            for directory in [other.path(), Path::new("/dev/shm")] {
                assert!(is_refused(fs::write(directory.join("new"), "")), "{directory:?}");
                assert!(is_refused(fs::create_dir(directory.join("new"))), "{directory:?}");
            }
            for directory in [other.path(), own.path(), &std::env::temp_dir()] {
                assert!(is_refused(std::os::unix::fs::symlink("/", directory.join("new"))), "{directory:?}");
            }
            assert!(is_refused(fs::write(&there, "")) && is_refused(fs::hard_link(&there, own.path().join("link"))));
            assert_eq!(fs::read_to_string(&there).unwrap(), "as before");
            assert_eq!(test_kill_process(stranger), Err(rustix::io::Errno::PERM));
            // threads inherit it, and its own is as before
            std::thread::spawn(move || assert!(is_refused(fs::write(&there, "")))).join().unwrap();
            fs::create_dir(own.path().join("below")).unwrap();
            fs::write(own.path().join("file"), "").unwrap();
            fs::rename(own.path().join("file"), own.path().join("below/file")).unwrap();
            fs::write("/dev/null", "x").unwrap();
            let listener = UnixListener::bind(other.path().join("socket")).unwrap();
            drop(listener);
            fs::remove_file(other.path().join("socket")).unwrap();
            let memory = memfd_create("of the agent", MemfdFlags::CLOEXEC).unwrap();
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
            fs::File::options().write(true).open(path).unwrap().write_all(b"x").unwrap();
            test_kill_process(rustix::process::getpid()).unwrap();
            let mut own_child = std::process::Command::new("sleep").arg("300").spawn().unwrap();
            own_child.kill().unwrap();
            own_child.wait().unwrap();
        });
    }
}
