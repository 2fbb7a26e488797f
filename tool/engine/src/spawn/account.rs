//! The users that commands run as, as passwd(5) and group(5), or what stands for them on this machine, know them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{Uid, User, getgrouplist};
use telexec_executor::{SpawnError, SpawnStage};
use telexec_keeper::users::DYNAMIC;
use telexec_spawn::{Credentials, private};

use super::dynamic_user::DYNAMIC_USER;

/// Variables by their names.
pub(crate) type Environment<'a> = BTreeMap<&'a str, Cow<'a, str>>;

/// A user that commands run as.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    home: String,
    shell: String,
    /// `None`: it is the user of the process that starts them, whose credentials commands inherit.
    pub(crate) credentials: Option<Credentials>,
    /// It exists for one command alone, see [`Account::with_id`].
    pub(crate) is_dynamic: bool,
}

impl Account {
    /// The user of the process that starts commands.
    pub(crate) fn of(own: u32) -> Self {
        let uid = Uid::from_raw(own);
        match User::from_uid(uid).ok().flatten() {
            Some(user) => Self::new(user, None),
            None => Self {
                name: uid.to_string(),
                uid: uid.as_raw(),
                home: "/".into(),
                shell: SHELL.into(),
                credentials: None,
                is_dynamic: false,
            },
        }
    }

    /// A dynamic user, before it has an id: the lowest that it could have stands for that.
    pub(crate) fn dynamic() -> Self {
        Self {
            name: DYNAMIC_USER.into(),
            uid: *DYNAMIC.start(),
            home: private::HOME.to_string_lossy().into_owned(),
            shell: SHELL.into(),
            credentials: None,
            is_dynamic: true,
        }
    }

    /// The dynamic user that has this id.
    pub(crate) fn with_id(self, uid: u32) -> Self {
        let name = uid.to_string();
        let credentials = Credentials { name: name.clone(), uid, gid: uid, groups: Vec::new() };
        Self { name, uid, credentials: Some(credentials), ..self }
    }

    /// The user with this name, or, if there is none and it is a number, with this id. May take long, or forever, where
    /// users are looked up over a network. `own`: the user of the process that starts commands.
    ///
    /// # Errors
    /// There is none (ENOENT), or it cannot be looked up.
    pub(crate) fn find(name: &str, own: u32) -> Result<Self, SpawnError> {
        let failed = |errno: Errno| SpawnError {
            stage: SpawnStage::User,
            subject: name.to_owned(),
            errno: errno as i32,
            missing_interpreter: false,
        };
        let user = match (User::from_name(name).map_err(failed)?, id(name)) {
            (Some(user), _) => Some(user),
            (None, Some(uid)) => User::from_uid(uid).map_err(failed)?,
            (None, None) => None,
        };
        let user = user.ok_or_else(|| failed(Errno::ENOENT))?;
        if user.uid.as_raw() == UNCHANGED || user.gid.as_raw() == UNCHANGED {
            return Err(failed(Errno::EINVAL));
        }
        if user.uid.as_raw() == own {
            return Ok(Self::new(user, None));
        }
        let c_name = CString::new(user.name.as_str()).map_err(|_| failed(Errno::EINVAL))?;
        let groups = getgrouplist(&c_name, user.gid).map_err(failed)?;
        let credentials = Credentials {
            name: user.name.clone(),
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
        };
        Ok(Self::new(user, Some(credentials)))
    }

    fn new(user: User, credentials: Option<Credentials>) -> Self {
        let text = |path: PathBuf| path.into_os_string().into_string().ok().filter(|path| !path.is_empty());
        Self {
            name: user.name,
            uid: user.uid.as_raw(),
            home: text(user.dir).unwrap_or_else(|| "/".into()),
            shell: text(user.shell).unwrap_or_else(|| SHELL.into()),
            credentials,
            is_dynamic: false,
        }
    }

    /// Where its commands start. An account such as nobody has no home; it may still run commands.
    pub(crate) fn directory(&self) -> &str {
        let is_there = match Path::new(&self.home).metadata() {
            Ok(home) => home.is_dir(),
            // it is that user's, and not to be seen by the agent's
            Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
        };
        if is_there { &self.home } else { "/" }
    }

    /// What its commands' environment starts from, as login(1) makes it.
    pub(crate) fn environment(&self) -> Environment<'_> {
        let path = match self.uid {
            0 => "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            _ => "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        };
        let lang = std::env::var("LANG").map_or("C.UTF-8".into(), Cow::Owned);
        [
            ("PATH", path.into()),
            ("HOME", Cow::from(&self.home)),
            ("USER", Cow::from(&self.name)),
            ("LOGNAME", Cow::from(&self.name)),
            ("SHELL", Cow::from(&self.shell)),
            ("LANG", lang),
        ]
        .into()
    }
}

/// A number as it is written, not such as `+0` or `00`, which a policy may not take for root.
fn id(name: &str) -> Option<Uid> {
    let id: u32 = name.parse().ok()?;
    (id.to_string() == name).then(|| Uid::from_raw(id))
}

/// To setresuid(2) this is no id: it means "unchanged".
const UNCHANGED: u32 = u32::MAX;

/// For accounts that name none, see passwd(5).
const SHELL: &str = "/bin/sh";
