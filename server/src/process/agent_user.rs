//! What an agent that runs as a user of its own needs, and only root can give: its cgroups, and its directories.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RawMode, Stat, Uid, chownat, fchown, fstat, openat, statat,
};
use telexec_engine::{delegate_cgroup, look_up_users};
use telexec_keeper::agent_user::AgentUser;

use crate::Config;
use crate::address::ListenAddress;

/// Directories below a state directory: more than there are.
const MAX_DEPTH: u32 = 16;

/// Why the agent cannot run as its user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentUserError {
    /// Only root can become another user.
    #[error("agent_user: only root can start an agent as another user: start telexecd as root, or leave it out")]
    NotRoot,
    /// There is no such user.
    #[error("agent_user: there is no user {name}")]
    User {
        /// Its name.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// It is root.
    #[error("agent_user: {0} is root: name a user that nothing else runs as")]
    Root(String),
    /// Commands may run as it.
    #[error("agent_user: {0} is in command_users too: commands never run as the agent's user")]
    RunsCommands(String),
    /// There is nowhere to keep commands in.
    #[error("agent_user: needs cgroup-v2, which does not work here")]
    Cgroup(#[source] io::Error),
    /// A directory cannot be its user's.
    #[error("agent_user: {path} cannot be given to that user")]
    Give {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Makes the cgroups of the agent, and gives that user the directories that the agent writes to, as far as they are root's:
/// `state_dir` with all in it, that of the audit log, and those of its Unix sockets.
///
/// # Errors
/// See there. Nothing was started.
pub fn prepare(config: &Config, name: &str) -> Result<AgentUser, AgentUserError> {
    if !rustix::process::geteuid().is_root() {
        return Err(AgentUserError::NotRoot);
    }
    let unknown = |source| AgentUserError::User { name: name.to_owned(), source };
    let one = |names: &[String]| look_up_users(names).map_err(unknown);
    let user = one(&[name.to_owned()])?.into_iter().next().ok_or_else(|| unknown(io::ErrorKind::NotFound.into()))?;
    if user.uid == 0 {
        return Err(AgentUserError::Root(name.to_owned()));
    }
    if one(config.command_users.as_deref().unwrap_or_default())?.iter().any(|other| other.uid == user.uid) {
        return Err(AgentUserError::RunsCommands(name.to_owned()));
    }
    let owner = Owner { uid: Uid::from_raw(user.uid), gid: Gid::from_raw(user.gid) };
    let given = |path: &Path, done: io::Result<()>| {
        done.map_err(|source| AgentUserError::Give { path: path.to_owned(), source })
    };
    if let Some(state_dir) = &config.state_dir {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir);
        given(state_dir, made.and_then(|()| owner.give(state_dir, Content::All)))?;
    }
    if let Some(log) = &config.audit.file
        && let (Some(directory), Some(name)) = (log.parent(), log.file_name())
    {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        given(directory, made.and_then(|()| owner.give(directory, Content::Log(name))))?;
    }
    for listen in config.listen.iter().chain(&config.metrics_listen) {
        if let ListenAddress::Unix(path) = listen
            && let Some(directory) = path.parent().filter(|directory| directory.is_dir())
        {
            given(directory, owner.give(directory, Content::Sockets))?;
        }
    }
    let cgroups = delegate_cgroup(user.uid, user.gid).map_err(AgentUserError::Cgroup)?;
    Ok(AgentUser::new(user, cgroups))
}

/// Who is to have a directory.
#[derive(Clone, Copy)]
struct Owner {
    uid: Uid,
    gid: Gid,
}

/// What may be in it.
#[derive(Clone, Copy)]
enum Content<'a> {
    All,
    /// The log of this name and its rotated files.
    Log(&'a OsStr),
    Sockets,
}

impl Content<'_> {
    fn has(self, name: &OsStr, stat: &Stat) -> bool {
        match self {
            Self::All => true,
            Self::Log(log) => name.as_bytes().starts_with(log.as_bytes()),
            Self::Sockets => file_type(stat) == FileType::Socket,
        }
    }
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

impl Owner {
    /// Gives a directory of root with all in it, the directory last. Of another user it is left as it is: an agent that may not
    /// use it says so.
    ///
    /// # Errors
    /// Others can write to it, or there is something else in it.
    fn give(self, path: &Path, content: Content<'_>) -> io::Result<()> {
        /// S_IWGRP and S_IWOTH.
        const OTHERS_WRITE: RawMode = 0o022;
        let directory = open(CWD, path.as_os_str())?;
        let stat = fstat(&directory)?;
        if stat.st_uid != 0 {
            return Ok(());
        }
        if stat.st_mode & OTHERS_WRITE != 0 {
            return Err(io::Error::other("others than root can write to it: use a directory for this alone"));
        }
        self.give_all_in(&directory, &stat, content, MAX_DEPTH)?;
        Ok(fchown(&directory, Some(self.uid), Some(self.gid))?)
    }

    /// What a taken agent may have left there is not trusted: neither links are followed, nor is a file given that has another
    /// name elsewhere.
    fn give_all_in(self, directory: &OwnedFd, of: &Stat, content: Content<'_>, depth: u32) -> io::Result<()> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if !content.has(name, &stat) {
                let name = name.display();
                return Err(io::Error::other(format!("{name} is in it too: use a directory for this alone")));
            }
            if file_type(&stat) == FileType::Directory && depth > 0 {
                let below = open(directory.as_fd(), name)?;
                let stat = fstat(&below)?;
                if stat.st_dev == of.st_dev {
                    self.give_all_in(&below, of, content, depth - 1)?;
                    self.give_one(&below, &stat)?;
                }
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let one = openat(directory, name, flags, Mode::empty())?;
            let stat = fstat(&one)?;
            if matches!(file_type(&stat), FileType::RegularFile | FileType::Socket) && stat.st_nlink == 1 {
                self.give_one(&one, &stat)?;
            }
        }
        Ok(())
    }

    fn give_one(self, file: &OwnedFd, stat: &Stat) -> io::Result<()> {
        match stat.st_uid {
            0 => Ok(chownat(file, "", Some(self.uid), Some(self.gid), AtFlags::EMPTY_PATH)?),
            _ => Ok(()),
        }
    }
}

fn open(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?)
}
