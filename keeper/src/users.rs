//! As whom the agent may have commands run.

use std::ops::RangeInclusive;

pub use telexec_spawn::Credentials;

/// The ids of dynamic users, and of the group of each. Apart from those that distributions, systemd (see UIDS-GIDS of its
/// documentation) and, by default, SSSD and Winbind hand out.
pub const DYNAMIC: RangeInclusive<u32> = 0x7800_0000..=0x7FFD_FFFF;

/// Among users, any of these.
const ANY_DYNAMIC: &str = "dynamic";

/// The users that are allowed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Each with its groups.
    named: Vec<Credentials>,
    /// Also those of [`DYNAMIC`].
    dynamic: bool,
}

impl Users {
    /// These, and if `dynamic` those of [`DYNAMIC`].
    pub fn new(named: Vec<Credentials>, dynamic: bool) -> Self {
        Self { named, dynamic }
    }

    /// As [`Users::write`] writes them; `None`: it does not.
    pub fn read(text: &str) -> Option<Self> {
        let mut users = Self::default();
        for user in text.split(';').filter(|user| !user.is_empty()) {
            match user {
                ANY_DYNAMIC => users.dynamic = true,
                _ => users.named.push(read_one(user)?),
            }
        }
        Some(users)
    }

    /// As an argument: [`write_one`] of each, with semicolons between them.
    pub fn write(&self) -> String {
        let dynamic = self.dynamic.then(|| ANY_DYNAMIC.to_owned());
        self.named.iter().map(write_one).chain(dynamic).collect::<Vec<_>>().join(";")
    }

    /// Those that have a name.
    pub fn named(&self) -> &[Credentials] {
        &self.named
    }

    /// Whether a process may be started so: as one of them, and in no group that it is not in. `None`: as this process.
    /// `is_private`: with private directories, as dynamic users only.
    pub(crate) fn allow(&self, asked: Option<&Credentials>, is_private: bool, own: u32) -> bool {
        let Some(asked) = asked else { return self.named.iter().any(|user| user.uid == own) };
        if is_private {
            return self.dynamic && DYNAMIC.contains(&asked.uid) && asked.gid == asked.uid && asked.groups.is_empty();
        }
        let is_in = |user: &Credentials, group: &u32| user.gid == *group || user.groups.contains(group);
        let allows =
            |user: &Credentials| is_in(user, &asked.gid) && asked.groups.iter().all(|group| is_in(user, group));
        self.named.iter().any(|user| user.uid == asked.uid && allows(user))
    }
}

/// As an argument: `UID:GID:GROUP,GROUP…`.
pub fn write_one(user: &Credentials) -> String {
    let groups: Vec<_> = user.groups.iter().map(u32::to_string).collect();
    format!("{}:{}:{}", user.uid, user.gid, groups.join(","))
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
            for dynamic in [false, true] {
                let users = Users::new(users.clone(), dynamic);
                assert_eq!(Users::read(&users.write()), Some(users));
            }
        }
        for wrong in ["1", "1:2", "a:2:", "1:2:x", "1:2:3:4", "-1:0:"] {
            assert_eq!(Users::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nobody_else_is_allowed_and_no_other_group() {
        let users = Users::new(vec![as_user(1000, 1000, &[1000, 27]), as_user(1001, 1001, &[])], false);
        for (uid, gid, groups, allowed) in [
            (1000, 1000, &[1000, 27][..], true),
            (1000, 27, &[], true),
            (1000, 1000, &[0], false),
            (1000, 0, &[], false),
            (1001, 1001, &[27], false),
            (0, 0, &[], false),
            (1002, 1000, &[], false),
        ] {
            assert_eq!(users.allow(Some(&as_user(uid, gid, groups)), false, 0), allowed, "{uid}:{gid}:{groups:?}");
        }
        assert!(!users.allow(None, false, 0) && users.allow(None, false, 1000));
    }

    #[test]
    fn dynamic_users_are_in_no_group_but_their_own() {
        let (first, last) = DYNAMIC.into_inner();
        let (only, none) = (Users::new(Vec::new(), true), Users::new(Vec::new(), false));
        for (uid, gid, groups, allowed) in [
            (first, first, &[][..], true),
            (last, last, &[], true),
            (first - 1, first - 1, &[], false),
            (last + 1, last + 1, &[], false),
            (first, 0, &[], false),
            (first, first + 1, &[], false),
            (first, first, &[0], false),
            (0, 0, &[], false),
        ] {
            let user = as_user(uid, gid, groups);
            assert_eq!(only.allow(Some(&user), true, 0), allowed, "{uid}:{gid}:{groups:?}");
            assert!(!only.allow(Some(&user), false, 0) && !none.allow(Some(&user), true, 0));
        }
        assert!(!only.allow(None, false, 0));
    }
}
