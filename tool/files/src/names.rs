//! Names of users and groups.

use std::collections::HashMap;

use nix::unistd::{Gid, Group, Uid, User};

/// As many as are remembered.
const MOST: usize = 10_000;

/// Remembers what was looked up: a directory service may be asked.
#[derive(Default)]
pub(crate) struct Names {
    users: HashMap<u32, Option<String>>,
    groups: HashMap<u32, Option<String>>,
}

impl Names {
    /// The name of a user, or the number.
    pub(crate) fn user(&mut self, id: u32) -> String {
        self.user_name(id).map_or_else(|| id.to_string(), str::to_owned)
    }

    /// The name of a group, or the number.
    pub(crate) fn group(&mut self, id: u32) -> String {
        self.group_name(id).map_or_else(|| id.to_string(), str::to_owned)
    }

    /// The name of a user, if there is one.
    pub(crate) fn user_name(&mut self, id: u32) -> Option<&str> {
        let look_up = || User::from_uid(Uid::from_raw(id)).ok().flatten().map(|user| user.name);
        remembered(&mut self.users, id, look_up)
    }

    /// The name of a group, if there is one.
    pub(crate) fn group_name(&mut self, id: u32) -> Option<&str> {
        let look_up = || Group::from_gid(Gid::from_raw(id)).ok().flatten().map(|group| group.name);
        remembered(&mut self.groups, id, look_up)
    }
}

fn remembered(
    names: &mut HashMap<u32, Option<String>>,
    id: u32,
    look_up: impl FnOnce() -> Option<String>,
) -> Option<&str> {
    if names.len() >= MOST && !names.contains_key(&id) {
        names.clear();
    }
    names.entry(id).or_insert_with(look_up).as_deref()
}
