//! What an agent that runs as a user of its own needs, and only root can give: its cgroups and its directories.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RawMode, Stat, Uid, chownat, fchmod, fchown, fstat, mkdirat, openat,
};
use rustix::io::Errno;
use telexec_engine::{check_delegation, delegate_cgroup, is_state_file, look_up_users};
use telexec_keeper::agent_user::AgentUser;
use telexec_keeper::users::{Credentials, Users};
use tracing::warn;

use crate::Config;
use crate::address::ListenAddress;
use crate::audit::is_collected;
use crate::process::thread_of_user::as_user;

/// Directories below a state directory: more than there are.
const MAX_DEPTH: u32 = 4;

/// S_IWGRP and S_IWOTH.
const OTHERS_WRITE: RawMode = 0o022;
/// S_ISVTX.
const STICKY: RawMode = 0o1000;
/// S_IRWXU.
const OWNER_USES: RawMode = 0o700;
/// S_ISUID and S_ISGID.
const SET_ID: RawMode = 0o6000;

/// Why the agent cannot run as its user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentUserError {
    /// Only root can become another user.
    #[error("agent_user: only root can run the agent as another user: start telexecd as root, or remove agent_user")]
    NotRoot,
    /// It cannot be looked up.
    #[error("agent_user: create the user (the package and deploy/systemd/telexec.sysusers do), or remove agent_user")]
    LookUp(#[source] io::Error),
    /// A user that commands may run as cannot be looked up.
    #[error("command_users")]
    CommandUsers(#[source] io::Error),
    /// It is root.
    #[error("agent_user must not be root: use a dedicated unprivileged user")]
    Root,
    /// Only root, or a process with a capability, may listen there.
    #[error(
        "agent_user: {user} may not listen on {listen}: ports below {first} need root; use a higher one, or listen = [\"systemd:\"]"
    )]
    Port {
        /// Its user.
        user: String,
        /// The address.
        listen: ListenAddress,
        /// The first port that is not root's.
        first: u16,
    },
    /// Commands may run as it.
    #[error("agent_user: {0} is in command_users too: commands never run as the agent's user")]
    RunsCommands(String),
    /// There is nowhere to keep commands in.
    #[error("agent_user: requires cgroup v2, which does not work here")]
    Cgroup(#[source] io::Error),
    /// A directory cannot become its user's.
    #[error("agent_user: cannot change the owner of {path}")]
    Chown {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Its user cannot be given access to a private key.
    #[error("agent_user: cannot let {user} read {path} as one of its group")]
    Share {
        /// Its user.
        user: String,
        /// The key.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Its user has no access to a file or directory.
    #[error("agent_user: {user} has no access to {path}{remedy}")]
    Access {
        /// Its user.
        user: String,
        /// The file.
        path: PathBuf,
        /// What to do.
        remedy: String,
        /// The cause.
        source: io::Error,
    },
}

/// An agent that is to run as a user of its own.
pub struct Prepared {
    /// As whom, and where.
    pub agent_user: AgentUser,
    /// As whom commands may run; `None`: as anyone.
    pub command_users: Option<Users>,
}

/// The user that this process has to change the agent to; `None`: the agent keeps the user of this process, which may be its
/// `agent_user` already.
pub fn user_to_become(config: &Config) -> Option<&str> {
    let name = config.agent_user.as_deref()?;
    let own = rustix::process::geteuid();
    let is_own = |users: Vec<Credentials>| users.iter().any(|user| user.uid == own.as_raw());
    let is_already = !own.is_root() && look_up_users(&[name.to_owned()]).is_ok_and(is_own);
    (!is_already).then_some(name)
}

/// Lets the user of an agent with this configuration, which is returned, read a private key of root's, as a member of its group.
/// `None`: it can already, there is none, or this process is not root.
///
/// # Errors
/// See [`AgentUserError`].
pub fn share_key(config: &Config, path: &Path) -> Result<Option<String>, AgentUserError> {
    let Some(name) = config.agent_user.as_deref().filter(|_| rustix::process::geteuid().is_root()) else {
        return Ok(None);
    };
    let user = find(name)?;
    let check = || check_access(&user, vec![path.to_owned()], ", or to a directory above it");
    if user.uid == 0 || check().is_ok() {
        return Ok(None);
    }
    let share = || {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let key = openat(CWD, path, flags, Mode::empty())?;
        let stat = fstat(&key)?;
        if stat.st_uid != 0 || file_type(&stat) != FileType::RegularFile || stat.st_nlink != 1 {
            return Err(io::Error::other("it is not a file of root's with one name"));
        }
        // first the group: the old one gets nothing
        fchown(&key, None, Some(Gid::from_raw(user.gid)))?;
        Ok(fchmod(&key, Mode::RUSR | Mode::WUSR | Mode::RGRP)?)
    };
    share().map_err(|source| AgentUserError::Share { user: name.to_owned(), path: path.to_owned(), source })?;
    check()?;
    Ok(Some(user.name))
}

/// Makes the cgroups of the agent, and its user the owner of the directories that the agent writes to, as far as they are
/// root's: `state_dir` with all in it, those of the audit log and of the logs of other agents, and those of its Unix sockets.
///
/// # Errors
/// See [`AgentUserError`]. Nothing was started.
pub fn prepare(config: &Config, name: &str, file: Option<&Path>) -> Result<Prepared, AgentUserError> {
    let (user, command_users) = look_up(config, name)?;
    check_ports(&user, config)?;
    let directories = Directories::of(config);
    // nothing changes if it fails
    directories.chown(&user, true)?;
    check_files(&user, config, file)?;
    let cgroups = delegate_cgroup(user.uid, user.gid).map_err(AgentUserError::Cgroup)?;
    directories.chown(&user, false)?;
    check_access(&user, directories.paths(), "")?;
    Ok(Prepared { agent_user: AgentUser::new(user, cgroups), command_users })
}

/// Gives a running agent with this configuration the directories that it writes to, as far as they are root's or missing. Does
/// nothing if this process is not root.
///
/// # Errors
/// See [`AgentUserError`].
pub fn restore_directories(config: &Config) -> Result<(), AgentUserError> {
    match config.agent_user.as_deref().filter(|_| rustix::process::geteuid().is_root()) {
        Some(name) => Directories::of(config).chown(&find(name)?, false),
        None => Ok(()),
    }
}

/// Checks what of that can be checked without changing anything; nothing, if this process is not root.
///
/// # Errors
/// See [`AgentUserError`].
pub fn check(config: &Config, name: &str, file: Option<&Path>) -> Result<(), AgentUserError> {
    match look_up(config, name) {
        Ok((user, _)) => {
            check_ports(&user, config)?;
            check_delegation().map_err(AgentUserError::Cgroup)?;
            let directories = Directories::of(config);
            directories.chown(&user, true)?;
            check_files(&user, config, file)?;
            check_access(&user, directories.of_others(&user), "")
        }
        // as the agent itself, before an upgrade
        Err(AgentUserError::NotRoot) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Checks that the user can read what the agent does, its program and its configuration (`file`) too.
fn check_files(user: &Credentials, config: &Config, file: Option<&Path>) -> Result<(), AgentUserError> {
    let audit = || config.audit.destinations().map(|(_, destination)| destination);
    let keys = [config.tls_key.as_ref(), config.receipt_key.as_ref()];
    let keys = keys.into_iter().chain(audit().map(|destination| destination.key.as_ref()));
    let remedy = format!(": run chgrp {} and chmod 640 on it", user.gid);
    check_access(user, keys.flatten().cloned().collect(), &remedy)?;
    let public = [&config.tls_cert, &config.client_ca, &config.client_crl, &config.policy];
    let audit = audit().flat_map(|destination| [&destination.ca, &destination.cert]).flatten();
    let own = std::env::current_exe().ok().into_iter().chain(file.map(Path::to_owned));
    let tokens = config.token_issuers.values().flat_map(|issuer| [&issuer.keys_file, &issuer.keys_ca]).flatten();
    let public = public.into_iter().flatten().chain(audit).chain(tokens);
    check_access(user, public.cloned().chain(own).collect(), "")
}

fn look_up(config: &Config, name: &str) -> Result<(Credentials, Option<Users>), AgentUserError> {
    if !rustix::process::geteuid().is_root() {
        return Err(AgentUserError::NotRoot);
    }
    let user = find(name)?;
    if user.uid == 0 {
        return Err(AgentUserError::Root);
    }
    let command_users = config.allowed_users().map_err(AgentUserError::CommandUsers)?;
    let has = |uid| command_users.iter().flat_map(Users::named).any(|other| other.uid == uid);
    if has(user.uid) {
        return Err(AgentUserError::RunsCommands(name.to_owned()));
    }
    let remedy = match &command_users {
        None => "set command_users",
        Some(_) if has(0) => "remove root from command_users",
        Some(_) => "",
    };
    if !remedy.is_empty() {
        warn!("agent_user: a compromised agent could run anything as root: {remedy}");
    }
    Ok((user, command_users))
}

fn find(name: &str) -> Result<Credentials, AgentUserError> {
    let found = look_up_users(&[name.to_owned()]).map_err(AgentUserError::LookUp)?;
    found.into_iter().next().ok_or_else(|| AgentUserError::LookUp(io::ErrorKind::NotFound.into()))
}

fn check_ports(user: &Credentials, config: &Config) -> Result<(), AgentUserError> {
    const FIRST: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let first = std::fs::read_to_string(FIRST).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024);
    let is_roots = |listen: &&ListenAddress| match listen {
        ListenAddress::Tcp(address) => {
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
            port.is_some_and(|port: u16| port != 0 && port < first)
        }
        ListenAddress::Unix(_) | ListenAddress::Vsock { .. } | ListenAddress::Systemd => false,
    };
    match config.listen.iter().chain(&config.metrics_listen).find(is_roots) {
        Some(listen) => Err(AgentUserError::Port { user: user.name.clone(), listen: listen.clone(), first }),
        None => Ok(()),
    }
}

/// What an agent writes to.
struct Directories<'a>(Vec<(&'a Path, Content<'a>)>);

/// What may be in a directory that becomes the agent's.
#[derive(Clone, Copy)]
enum Content<'a> {
    State,
    /// What is below that.
    Any,
    /// The log of this name, its key, and its rotated files.
    Log(&'a OsStr),
    /// The audit logs of other agents.
    Collected,
    Sockets,
}

impl Content<'_> {
    fn allows(self, name: &OsStr, stat: &Stat) -> bool {
        match self {
            Self::State => name.to_str().is_some_and(is_state_file),
            Self::Any => true,
            Self::Log(log) => name.as_bytes().starts_with(log.as_bytes()),
            Self::Collected => is_collected(name),
            Self::Sockets => file_type(stat) == FileType::Socket,
        }
    }
}

impl<'a> Directories<'a> {
    fn of(config: &'a Config) -> Self {
        let state_dir = config.state_dir.as_deref().map(|path| (path, Content::State));
        let log = config.audit.file.as_deref().and_then(|log| Some((log.parent()?, Content::Log(log.file_name()?))));
        let listen = config.listen.iter().chain(&config.metrics_listen);
        let sockets = listen.filter_map(|listen| match listen {
            ListenAddress::Unix(path) => path.parent().map(|directory| (directory, Content::Sockets)),
            ListenAddress::Tcp(_) | ListenAddress::Vsock { .. } | ListenAddress::Systemd => None,
        });
        let collector = config.audit_collector.as_ref();
        let collected = collector.map(|collector| (collector.directory.as_path(), Content::Collected));
        Self(state_dir.into_iter().chain(log).chain(collected).chain(sockets).collect())
    }

    /// `only_checks`: nothing changes.
    fn chown(&self, user: &Credentials, only_checks: bool) -> Result<(), AgentUserError> {
        let owner = Owner { uid: Uid::from_raw(user.uid), gid: Gid::from_raw(user.gid), only_checks };
        for (path, content) in &self.0 {
            let failed = |source| AgentUserError::Chown { path: (*path).to_owned(), source };
            match path.metadata() {
                Ok(found) if found.uid() == user.uid => owner.restore(path).map_err(failed)?,
                // the agent says what it may not do there
                Ok(found) if found.uid() != 0 => {}
                Err(_) if only_checks => {}
                found => {
                    let checked = check_ancestors(path);
                    let made = checked.and_then(|()| if found.is_ok() { Ok(()) } else { make(path).map(drop) });
                    made.and_then(|()| owner.chown_directory(path, *content)).map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    /// Those that neither are the user's nor become so.
    fn of_others(&self, user: &Credentials) -> Vec<PathBuf> {
        let stays = |path: &&Path| path.metadata().is_ok_and(|found| ![0, user.uid].contains(&found.uid()));
        self.0.iter().map(|(path, _)| *path).filter(stays).map(Path::to_owned).collect()
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|(path, _)| path.to_path_buf()).filter(|path| path.is_dir()).collect()
    }
}

/// No other user decides where this path leads.
fn check_ancestors(path: &Path) -> io::Result<()> {
    let check = |path: &Path| {
        path.ancestors().skip(1).try_for_each(|ancestor| match ancestor.symlink_metadata() {
            Ok(found) if found.uid() != 0 => Err(other_users(ancestor, "belongs to a user other than root")),
            // with the sticky bit nobody else renames what root has there
            Ok(found) if found.is_dir() && found.mode() & (OTHERS_WRITE | STICKY) == OTHERS_WRITE => {
                Err(other_users(ancestor, "is writable by users other than root"))
            }
            _ => Ok(()),
        })
    };
    check(path)?;
    path.canonicalize().map_or(Ok(()), |path| check(&path))
}

fn other_users(path: &Path, what: &str) -> io::Error {
    io::Error::other(format!("{} {what}", path.display()))
}

/// Makes a directory for root alone, below others that everyone may pass, whatever the umask.
///
/// # Errors
/// As those of the system; also where other users have made something of that name meanwhile.
fn make(path: &Path) -> io::Result<OwnedFd> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    let parent = match parent.is_dir() {
        true => openat(CWD, parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?,
        false => {
            let made = make(parent)?;
            fchmod(&made, Mode::from_raw_mode(0o755))?;
            made
        }
    };
    match mkdirat(&parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let made = open_directory(parent.as_fd(), name)?;
    if fstat(&made)?.st_uid != 0 {
        return Err(other_users(path, "belongs to a user other than root"));
    }
    Ok(made)
}

/// Opens them as the agent will, by a thread that is that user: threads have credentials of their own, see
/// credentials(7).
fn check_access(user: &Credentials, files: Vec<PathBuf>, remedy: &str) -> Result<(), AgentUserError> {
    let failed = |path: &Path, source| {
        let (user, path, remedy) = (user.name.clone(), path.to_owned(), remedy.to_owned());
        AgentUserError::Access { user, path, remedy, source }
    };
    let fails = |path: PathBuf| File::open(&path).err().map(|error| (path, error));
    let found = as_user(user, || files.into_iter().find_map(fails));
    match found.map_err(|source| failed(Path::new("its files"), source))? {
        Some((path, source)) => Err(failed(&path, source)),
        None => Ok(()),
    }
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Who is to have a directory.
#[derive(Clone, Copy)]
struct Owner {
    uid: Uid,
    gid: Gid,
    /// Nothing changes.
    only_checks: bool,
}

impl Owner {
    /// Lets the user use its own directory again, as an agent may have left it.
    fn restore(self, path: &Path) -> io::Result<()> {
        let directory = open_directory(CWD, path.as_os_str())?;
        let stat = fstat(&directory)?;
        // the way to it may be that user's: this is what was opened
        if self.only_checks || stat.st_uid != self.uid.as_raw() || stat.st_mode & OWNER_USES == OWNER_USES {
            return Ok(());
        }
        Ok(fchmod(&directory, Mode::from_raw_mode(0o700))?)
    }

    /// Changes the owner of a directory of root with all in it, of the directory last.
    ///
    /// # Errors
    /// Others can write to it, or there is something else in it.
    fn chown_directory(self, path: &Path, content: Content<'_>) -> io::Result<()> {
        let directory = open_directory(CWD, path.as_os_str())?;
        let stat = fstat(&directory)?;
        if stat.st_uid != 0 {
            return Err(other_users(path, "belongs to a user other than root"));
        }
        if stat.st_mode & OTHERS_WRITE != 0 {
            return Err(io::Error::other("it is writable by users other than root: use a dedicated directory"));
        }
        self.chown_content(&directory, &stat, content, MAX_DEPTH)?;
        if self.only_checks {
            return Ok(());
        }
        Ok(fchown(&directory, Some(self.uid), Some(self.gid))?)
    }

    /// What a compromised agent may have left there is not trusted: links are not followed, a file that has another name
    /// elsewhere stays as it is, and programs that run as their owner are refused.
    fn chown_content(self, directory: &OwnedFd, of: &Stat, content: Content<'_>, depth: u32) -> io::Result<()> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let file = openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            let stat = fstat(&file)?;
            if !content.allows(name, &stat) {
                let name = name.display();
                return Err(io::Error::other(format!("it also contains {name}: use a dedicated directory")));
            }
            if file_type(&stat) == FileType::RegularFile && stat.st_mode & SET_ID != 0 {
                let name = name.display();
                return Err(io::Error::other(format!(
                    "it contains {name} with set-user-ID or set-group-ID: remove that"
                )));
            }
            let is_plain = matches!(file_type(&stat), FileType::RegularFile | FileType::Socket) && stat.st_nlink == 1;
            let is_directory = file_type(&stat) == FileType::Directory && stat.st_dev == of.st_dev && depth > 0;
            if is_directory {
                let below = open_directory(file.as_fd(), OsStr::new("."))?;
                self.chown_content(&below, of, Content::Any, depth - 1)?;
            }
            if stat.st_uid == 0 && (is_plain || is_directory) && !self.only_checks {
                chownat(&file, "", Some(self.uid), Some(self.gid), AtFlags::EMPTY_PATH)?;
            }
        }
        Ok(())
    }
}

fn open_directory(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?)
}
