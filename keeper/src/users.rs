//! As whom the agent may have commands run.

pub use telexec_spawn::Credentials;

/// The users that are allowed, each with its groups.
#[derive(Debug, PartialEq, Eq)]
pub struct Users(Vec<Credentials>);

impl Users {
    /// As [`write()`] writes them; `None`: it does not.
    pub fn read(text: &str) -> Option<Self> {
        text.split(';').filter(|user| !user.is_empty()).map(read_one).collect::<Option<_>>().map(Self)
    }

    /// Whether a process may be started so: as one of them, and in no group that it is not in. `None`: as this process.
    pub(crate) fn allow(&self, asked: Option<&Credentials>, own: u32) -> bool {
        let Some(asked) = asked else { return self.0.iter().any(|user| user.uid == own) };
        let is_in = |user: &Credentials, group: &u32| user.gid == *group || user.groups.contains(group);
        let allows =
            |user: &Credentials| is_in(user, &asked.gid) && asked.groups.iter().all(|group| is_in(user, group));
        self.0.iter().any(|user| user.uid == asked.uid && allows(user))
    }
}

/// As an argument: `UID:GID:GROUP,GROUP;…`.
pub fn write(users: &[Credentials]) -> String {
    let text = |user: &Credentials| {
        let groups: Vec<_> = user.groups.iter().map(u32::to_string).collect();
        format!("{}:{}:{}", user.uid, user.gid, groups.join(","))
    };
    users.iter().map(text).collect::<Vec<_>>().join(";")
}

/// One of them.
pub fn read_one(text: &str) -> Option<Credentials> {
    let mut parts = text.splitn(3, ':');
    let (uid, gid, groups) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?);
    let groups = groups.split(',').filter(|group| !group.is_empty()).map(|group| group.parse().ok());
    Some(Credentials { name: String::new(), uid, gid, groups: groups.collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_user(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { name: String::new(), uid, gid, groups: groups.into() }
    }

    #[test]
    fn they_read_as_written() {
        for users in [vec![], vec![as_user(1, 2, &[])], vec![as_user(0, 0, &[0, 5]), as_user(65534, 65534, &[65534])]] {
            assert_eq!(Users::read(&write(&users)), Some(Users(users)));
        }
        for wrong in ["1", "1:2", "a:2:", "1:2:x", "1:2:3:4", "-1:0:"] {
            assert_eq!(Users::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nobody_else_is_allowed_and_no_other_group() {
        let users = Users(vec![as_user(1000, 1000, &[1000, 27]), as_user(1001, 1001, &[])]);
        for (uid, gid, groups, allowed) in [
            (1000, 1000, &[1000, 27][..], true),
            (1000, 27, &[], true),
            (1000, 1000, &[0], false),
            (1000, 0, &[], false),
            (1001, 1001, &[27], false),
            (0, 0, &[], false),
            (1002, 1000, &[], false),
        ] {
            assert_eq!(users.allow(Some(&as_user(uid, gid, groups)), 0), allowed, "{uid}:{gid}:{groups:?}");
        }
        assert!(!users.allow(None, 0) && users.allow(None, 1000));
    }
}
