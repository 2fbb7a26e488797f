//! An agent that runs as a user of its own: how it becomes that, and what is done for it that takes more.
//!
//! Its cgroup is in a directory that was given to that user, who makes the cgroups of executions beside it. What is in
//! these is signalled for it, and no other process.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchown, fstat, fstatfs, openat};
use rustix::io::Errno;
use telexec_spawn::Credentials;

/// See pipe(7) and pts(4): PIPEFS_MAGIC and DEVPTS_SUPER_MAGIC of linux/magic.h.
const STREAM_FILE_SYSTEMS: [i64; 2] = [0x5049_5045, 0x1cd1];

/// The name of the agent's cgroup in its directory.
pub const CGROUP: &str = "agent";

/// As whom the agent runs, and where.
#[derive(Debug)]
pub struct AgentUser {
    /// Its user, never root.
    pub credentials: Credentials,
    /// The directory of its cgroups (version 2), which is its user's.
    pub cgroups: PathBuf,
    /// The same in /proc/PID/cgroup.
    path: Option<String>,
}

impl AgentUser {
    /// This user, and the directory of the cgroups of its agent.
    pub fn new(credentials: Credentials, cgroups: PathBuf) -> Self {
        Self { credentials, cgroups, path: None }
    }

    /// The file that a process enters the agent's cgroup by.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn entry(&self) -> Result<OwnedFd, Errno> {
        let path = self.cgroups.join(CGROUP).join("cgroup.procs");
        openat(rustix::fs::CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// The first agent is there, in its cgroup. A later one may be moved by what an earlier one has left.
    pub(crate) fn learn_path(&mut self, agent: u32) {
        if self.path.is_none() {
            let path = unified(&agent.to_string()).ok().flatten();
            self.path = path.and_then(|path| path.strip_suffix(CGROUP)?.strip_suffix('/').map(str::to_owned));
        }
    }

    /// Whether a process, by its descriptor, is in a cgroup that the agent has made for an execution.
    pub(crate) fn may_signal(&self, pidfd: &OwnedFd) -> bool {
        let Some(directory) = &self.path else { return false };
        let path = pid(pidfd).and_then(|pid| unified(&pid).ok().flatten());
        path.is_some_and(|path| is_of_execution(directory, &path))
    }

    /// Whether a process may be started so: never as this user.
    pub(crate) fn allows(&self, asked: Option<&Credentials>) -> bool {
        asked.is_none_or(|asked| asked.uid != self.credentials.uid)
    }

    /// Gives the ends of pipes and terminals that belong to the agent's user to who is to have them.
    pub(crate) fn give_streams(&self, streams: &[OwnedFd], to: (u32, u32)) {
        for stream in streams.iter().filter(|stream| self.is_stream(stream.as_fd())) {
            let is_pipe = fstat(stream).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
            // the group of a terminal is the system's
            let _ = fchown(stream, Some(Uid::from_raw(to.0)), is_pipe.then(|| Gid::from_raw(to.1)));
        }
    }

    fn is_stream(&self, stream: BorrowedFd<'_>) -> bool {
        let is_on = |system: rustix::fs::StatFs| STREAM_FILE_SYSTEMS.contains(&i64::from(system.f_type));
        let is_its = |stat: rustix::fs::Stat| stat.st_uid == self.credentials.uid;
        fstatfs(stream).is_ok_and(is_on) && fstat(stream).is_ok_and(is_its)
    }

    /// Gives an empty file, which nothing but the agent's user and its group may use, to this user; its group stays.
    ///
    /// # Errors
    /// It is anything else.
    pub(crate) fn give_file(&self, file: &OwnedFd, to: u32) -> Result<(), Errno> {
        let stat = fstat(file)?;
        let is_plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & 0o7137 == 0;
        if !is_plain || stat.st_uid != self.credentials.uid || stat.st_nlink != 1 || stat.st_size != 0 {
            return Err(Errno::PERM);
        }
        fchown(file, Some(Uid::from_raw(to)), None)
    }

    /// Removes its cgroups, if nothing is in them.
    pub(crate) fn remove_cgroups(&self) {
        for directory in [&*self.cgroups.join(CGROUP), &self.cgroups] {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Whether a cgroup is below this directory, and not the agent's own.
pub fn is_of_execution(directory: &str, cgroup: &str) -> bool {
    let below = cgroup.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/'));
    below.is_some_and(|below| Path::new(below).components().next().is_some_and(|first| first.as_os_str() != CGROUP))
}

/// The cgroup (version 2) of a process, as proc_pid_cgroup(5) has it.
///
/// # Errors
/// It has ended.
pub fn unified(pid: &str) -> io::Result<Option<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    Ok(text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned))
}

/// The process that it is of, as proc_pid_fdinfo(5) has it. That may have ended, and then its number is another's; but
/// who signals it by its descriptor signals no other.
fn pid(pidfd: &OwnedFd) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim();
    pid.parse::<u32>().ok().filter(|pid| *pid != 0).map(|pid| pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_has_a_cgroup_beside_the_agents() {
        for (cgroup, is_of_execution) in [
            ("/a/telexec-agent.1/telexec.2.0/0", true),
            ("/a/telexec-agent.1/telexec.2.0/0/sub", true),
            ("/a/telexec-agent.1/agent", false),
            ("/a/telexec-agent.1/agent/sub", false),
            ("/a/telexec-agent.1", false),
            ("/a/telexec-agent.1/", false),
            ("/a/telexec-agent.12/telexec.2.0/0", false),
            ("/a", false),
            ("/", false),
            ("/b/telexec-agent.1/x", false),
        ] {
            assert_eq!(super::is_of_execution("/a/telexec-agent.1", cgroup), is_of_execution, "{cgroup}");
        }
        assert!(super::is_of_execution("", "/telexec.2.0/0"));
    }

    #[test]
    fn a_process_is_known_by_its_descriptor() {
        let this = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(this, rustix::process::PidfdFlags::empty()).unwrap();
        assert_eq!(pid(&pidfd), Some(std::process::id().to_string()));
        assert_eq!(pid(&fs::File::open("/dev/null").unwrap().into()), None);
    }

    #[test]
    fn only_what_is_the_agents_is_given() {
        let credentials = Credentials { name: String::new(), uid: 4711, gid: 4711, groups: Vec::new() };
        let user = AgentUser::new(credentials, "/".into());
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let owner = |file: &OwnedFd| fstat(file).unwrap().st_uid;
        let before = owner(&read);
        user.give_streams(std::slice::from_ref(&read), (1, 1));
        let file: OwnedFd = fs::File::open("/dev/null").unwrap().into();
        assert_eq!(user.give_file(&file, 1), Err(Errno::PERM));
        assert_eq!(owner(&read), before);
        assert!(user.allows(None) && !user.allows(Some(&user.credentials)));
    }
}
