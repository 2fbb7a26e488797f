//! An agent that runs as a user of its own: how it becomes that, and what it may have the keeper do as root.
//!
//! Two cgroups are in a directory of root's: the agent's own, which it cannot leave, and beside it the one that is delegated to
//! its user, below which it makes those of executions.

use std::ffi::{CStr, OsStr};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Statx, StatxFlags, flock, openat, openat2,
    statx,
};
use rustix::io::Errno;
use rustix::process::Pid;
use telexec_spawn::{Chown, Credentials, Step};

use crate::given::Given;

/// The major numbers of pseudo-terminals, as the kernel's devices.txt has them.
const TERMINALS: RangeInclusive<u32> = 136..=143;

/// The names of the two cgroups: the agent's own, and the one that is delegated to it.
pub const AGENT: &str = "agent";
/// See [`AGENT`].
pub const EXECUTIONS: &str = "executions";

/// How often it is tried to lock their directory, once a millisecond.
const LOCK_TRIES: u32 = 100;

/// As whom the agent runs, and where.
#[derive(Debug)]
pub struct AgentUser {
    /// Its user, never root.
    pub credentials: Credentials,
    /// The directory of the two cgroups (version 2).
    pub cgroups: PathBuf,
    /// The delegated one, in /proc/PID/cgroup.
    executions: Option<String>,
}

impl AgentUser {
    /// This user, and the directory of the cgroups of its agent.
    pub fn new(credentials: Credentials, cgroups: PathBuf) -> Self {
        Self { credentials, cgroups, executions: None }
    }

    /// The file by which a process enters the agent's cgroup.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn entry(&self) -> io::Result<OwnedFd> {
        let cgroup = self.cgroups.join(AGENT);
        make_agent_cgroup(&cgroup)?;
        Ok(openat(CWD, cgroup.join("cgroup.procs"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Locks the directory of its cgroups, which says that its keeper lives.
    ///
    /// # Errors
    /// There is none, or others look at it all the time.
    pub(crate) fn lock(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, &self.cgroups, flags, Mode::empty())?;
        // who looks at it has it for a moment
        for _ in 0..LOCK_TRIES {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(1)),
                locked => return Ok(locked.map(|()| directory)?),
            }
        }
        Err(Errno::WOULDBLOCK.into())
    }

    /// The agent is in its cgroup.
    pub(crate) fn note_cgroup(&mut self, agent: u32) {
        if self.executions.is_none() {
            self.executions = unified(&agent.to_string()).ok().flatten().and_then(|agent| beside(&agent));
        }
    }

    /// Whether a process is in a cgroup that the agent has made for an execution.
    pub(crate) fn has_in_execution(&self, pid: &str) -> bool {
        let Some(executions) = &self.executions else { return false };
        unified(pid).ok().flatten().is_some_and(|cgroup| is_below(executions, &cgroup))
    }

    /// Ends what an earlier agent has left in its cgroup.
    ///
    /// # Errors
    /// It has not ended yet.
    pub(crate) fn end_leftovers(&self) -> io::Result<()> {
        let cgroup = self.cgroups.join(AGENT);
        let is_empty =
            || fs::read_to_string(cgroup.join("cgroup.events")).is_ok_and(|events| events.contains("populated 0"));
        if is_empty() {
            return Ok(());
        }
        fs::write(cgroup.join("cgroup.kill"), "1")?;
        if is_empty() { Ok(()) } else { Err(io::Error::other("processes of the last one are still ending")) }
    }

    /// Whether a process may be started so: never as this user, and in no other cgroups.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn permit(&self, asked: Option<&Credentials>, joins: usize) -> Result<(), (Step, Errno)> {
        if asked.is_some_and(|asked| asked.uid == self.credentials.uid) {
            return Err((Step::Setuid, Errno::PERM));
        }
        if joins == 0 { Ok(()) } else { Err((Step::Cgroup, Errno::PERM)) }
    }

    /// The cgroup of an execution, by its path. No descriptor of the agent's is taken for it: what is below that is what the
    /// agent has mounted there.
    ///
    /// # Errors
    /// It is not below the directory that was delegated.
    pub(crate) fn execution_cgroup(&self, path: &CStr) -> Result<OwnedFd, Errno> {
        let executions = self.cgroups.join(EXECUTIONS);
        let below = Path::new(OsStr::from_bytes(path.to_bytes())).strip_prefix(&executions).map_err(|_| Errno::PERM)?;
        if below.as_os_str().is_empty() || !below.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(Errno::PERM);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let executions = openat(CWD, &executions, flags, Mode::empty())?;
        let below_alone = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        openat2(&executions, below, flags, Mode::empty(), below_alone)
    }

    /// Which of these files are to be another user's: the ends of pipes and pseudo-terminals, if they are the agent's user's
    /// (as a controlling terminal has to be), and an empty file that nobody but that and its group may use. The groups of
    /// terminals and of the file stay.
    ///
    /// # Errors
    /// The file is anything else.
    pub(crate) fn chowns(
        &self,
        streams: &[Given],
        controls_terminal: bool,
        file: Option<&Given>,
        (uid, gid): (u32, u32),
    ) -> Result<Vec<Chown>, Errno> {
        let mut chowns = Vec::new();
        for stream in streams {
            let stat = look(stream)?;
            let is_terminal = file_type(&stat) == FileType::CharacterDevice && TERMINALS.contains(&stat.stx_rdev_major);
            if self.owns(&stat) && (is_terminal || file_type(&stat) == FileType::Fifo) {
                let gid = if is_terminal { None } else { Some(gid) };
                chowns.push(Chown { file: stream.as_raw_fd(), uid, gid });
            } else if controls_terminal {
                // root may take any for its own
                return Err(Errno::PERM);
            }
        }
        if let Some(file) = file {
            let stat = look(file)?;
            let is_plain = file_type(&stat) == FileType::RegularFile && stat.stx_mode & 0o7137 == 0;
            if !is_plain || !self.owns(&stat) || stat.stx_nlink != 1 || stat.stx_size != 0 {
                return Err(Errno::PERM);
            }
            chowns.push(Chown { file: file.as_raw_fd(), uid, gid: None });
        }
        Ok(chowns)
    }

    fn owns(&self, stat: &Statx) -> bool {
        stat.stx_uid == self.credentials.uid
    }

    /// Ends all that was started for it, wherever it went below its directory.
    pub(crate) fn kill_all(&self) {
        let _ = fs::write(self.cgroups.join(EXECUTIONS).join("cgroup.kill"), "1");
    }

    /// Removes its cgroups, if nothing is in them.
    pub(crate) fn remove_cgroups(&self) {
        for directory in [&*self.cgroups.join(AGENT), &self.cgroups.join(EXECUTIONS), &self.cgroups] {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// What is known of it here: no file system is asked, which might not answer.
fn look(file: &Given) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, "", flags, StatxFlags::BASIC_STATS)
}

fn file_type(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

/// Makes the cgroup of an agent, unless it is there. The agent reads it, but may not write there.
///
/// # Errors
/// It cannot be made.
pub fn make_agent_cgroup(cgroup: &Path) -> io::Result<()> {
    match fs::create_dir(cgroup) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // whatever the umask
        made => made.and_then(|()| fs::set_permissions(cgroup, fs::Permissions::from_mode(0o755))),
    }
}

/// The cgroup that is delegated to the agent whose own this is, in /proc/PID/cgroup.
pub fn beside(agent: &str) -> Option<String> {
    Some(format!("{}/{EXECUTIONS}", agent.strip_suffix(AGENT)?.strip_suffix('/')?))
}

/// Whether a cgroup is below this one.
pub fn is_below(directory: &str, cgroup: &str) -> bool {
    cgroup.strip_prefix(directory).is_some_and(|below| below.starts_with('/'))
}

/// The cgroup (version 2) of a process, as proc_pid_cgroup(5) has it.
///
/// # Errors
/// It has ended.
pub fn unified(pid: &str) -> io::Result<Option<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    Ok(text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned))
}

/// The process whose descriptor it is, as proc_pid_fdinfo(5) has it. That may end meanwhile, and its id be given to another:
/// which a signal by the descriptor does not reach.
pub(crate) fn pid_of(pidfd: &Given) -> Option<String> {
    let number = pidfd.as_raw_fd();
    // of another kind, the description may wait for who uses it
    let kind = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    if !["anon_inode:[pidfd]", "pidfd:["].iter().any(|pidfd| kind.as_os_str().as_bytes().starts_with(pidfd.as_bytes()))
    {
        return None;
    }
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim();
    pid.parse::<u32>().ok().filter(|pid| *pid != 0).map(|pid| pid.to_string())
}

/// The leaders of its process group and its session, as proc_pid_stat(5) has them.
pub(crate) fn leaders(pid: &str) -> Option<[Pid; 2]> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // the name before that may be anything
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = str::from_utf8(stat.get(end + 1..)?).ok()?.split_whitespace().skip(2);
    let mut leader = || Pid::from_raw(fields.next()?.parse().ok()?);
    Some([leader()?, leader()?])
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn executions_are_below_what_is_beside_the_agent() {
        let executions = beside("/a/telexec-agent.1/agent").unwrap();
        for (cgroup, is_of_execution) in [
            ("/a/telexec-agent.1/executions/telexec.2.0/0", true),
            ("/a/telexec-agent.1/executions/telexec.2.0/0/sub", true),
            ("/a/telexec-agent.1/executions", false),
            ("/a/telexec-agent.1/agent", false),
            ("/a/telexec-agent.1/executions2/x", false),
            ("/a/telexec-agent.12/executions/0", false),
            ("/a", false),
            ("/", false),
            ("/b/telexec-agent.1/executions/x", false),
        ] {
            assert_eq!(is_below(&executions, cgroup), is_of_execution, "{cgroup}");
        }
        assert_eq!(
            (beside("/agent").as_deref(), beside("/a/useragent"), beside("/")),
            (Some("/executions"), None, None)
        );
    }

    fn given(file: impl Into<OwnedFd>) -> Given {
        file.into().into()
    }

    #[test]
    fn a_process_is_known_by_its_descriptor() {
        let this = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(this, rustix::process::PidfdFlags::empty()).unwrap();
        let pid = pid_of(&given(pidfd)).unwrap();
        assert_eq!(pid, std::process::id().to_string());
        assert_eq!(pid_of(&given(fs::File::open("/dev/null").unwrap())), None);
        // in a session of its own, since this process's may have its leader in another pid namespace
        let mut child = Command::new("setsid")
            .args(["sh", "-c", "echo; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let leader = Pid::from_child(&child);
        assert_eq!(leaders(&child.id().to_string()), Some([leader, leader]));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn only_what_is_the_agents_is_given_away() {
        let own = rustix::process::geteuid().as_raw();
        let user = |uid| {
            let credentials = Credentials { name: String::new(), uid, gid: 4711, groups: Vec::new() };
            AgentUser::new(credentials, "/".into())
        };
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let streams = [given(read), given(fs::File::open("/dev/null").unwrap()), given(fs::File::open("/").unwrap())];
        let chowns = |uid, file| user(uid).chowns(&streams, false, file, (1, 2));
        assert_eq!(chowns(4711, None).unwrap().len(), 0);
        let [Chown { uid: 1, gid: Some(2), .. }] = chowns(own, None).unwrap()[..] else { panic!("the pipe alone") };
        assert!(user(own).chowns(&streams[1..2], true, None, (1, 2)).is_err(), "it is no pseudo-terminal");
        let file = given(fs::File::open("/proc/self/status").unwrap());
        assert!(chowns(own, Some(&file)).is_err());
        let agent = user(4711);
        assert_eq!(agent.permit(Some(&agent.credentials), 0), Err((Step::Setuid, Errno::PERM)));
        assert_eq!(agent.permit(None, 1), Err((Step::Cgroup, Errno::PERM)));
        assert_eq!(agent.permit(None, 0), Ok(()));
        for path in [c"", c"/", c"/executions/../tmp", c"/executionsx", c"executions", c"/proc/self"] {
            assert!(agent.execution_cgroup(path).is_err(), "{path:?}");
        }
    }
}
