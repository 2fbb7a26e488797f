//! Where a sandbox lives on a target, and so what may be removed when it ends.
//!
//! A claim is a file on the target, which commands of a sandbox may change if they run as the agent's user: the home that it
//! names is compared with the one that this gateway would have chosen, and nothing else is ever removed.

use crate::claim::Claim;

/// Of an id: what nobody guesses.
pub(crate) const SUFFIX_BYTES: usize = 12;
const MAX_ID_BYTES: usize = 63;
/// With all that is below them.
const SYSTEM: [&str; 12] = ["bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr"];

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HomeError {
    #[error(
        "the claim on the target has {id:?}, which is no id of a sandbox: remove the claim when nobody uses the target"
    )]
    Id { id: String },
    #[error(
        "the claim of {id} on the target names {found:?} as its home, and this gateway would clean {expected:?} only: end it \
         with the --home and --user that it was made with, or remove the claim and that directory"
    )]
    Other { id: String, found: String, expected: String },
}

/// The homes of a target's sandboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Homes {
    /// One for all, one after the other: --home.
    Fixed(String),
    /// Each has its own, below this directory.
    Below(String),
}

impl Homes {
    pub(crate) fn of(&self, id: &str) -> String {
        match self {
            Self::Fixed(home) => home.clone(),
            Self::Below(directory) => format!("{directory}/{id}"),
        }
    }

    /// Whether the claim is of a sandbox that lives where this gateway would have put it.
    pub(crate) fn check(&self, claim: &Claim) -> Result<(), HomeError> {
        let id = claim.id.clone();
        if !is_id(&id) {
            return Err(HomeError::Id { id });
        }
        let expected = self.of(&id);
        match claim.home == expected && is_plain(&expected) {
            true => Ok(()),
            false => Err(HomeError::Other { id, found: claim.home.clone(), expected }),
        }
    }
}

/// A name and twelve hexadecimal digits: no directory of the system is called so, wherever a link leads.
fn is_id(id: &str) -> bool {
    let is_label = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    id.len() <= MAX_ID_BYTES
        && id.rsplit_once('-').is_some_and(|(name, suffix)| {
            let is_hex = suffix.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            !name.is_empty() && is_label(name) && suffix.len() == SUFFIX_BYTES && is_hex
        })
}

/// Absolute, and written in the only way that needs no look at the target.
pub(crate) fn is_plain(path: &str) -> bool {
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_name)) && !path.contains('\0')
}

/// What may be emptied for each sandbox: no directory of the system, nor one at the top.
pub(crate) fn emptied(text: &str) -> Result<String, String> {
    if !is_plain(text) {
        return Err("must be absolute, without \"..\" and a slash at the end".to_owned());
    }
    let parts: Vec<_> = text.split('/').skip(1).collect();
    match parts.as_slice() {
        [] | [_] | ["var", _] => Err("is too near to the root to be emptied: name a directory below it".to_owned()),
        [top, ..] if SYSTEM.contains(top) => Err(format!("is below /{top}, which is the system's")),
        _ => Ok(text.to_owned()),
    }
}

/// Whether it is the directory, or below.
pub(crate) fn is_within(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::claim::ClaimState;

    fn claim(id: &str, home: &str) -> Claim {
        Claim {
            state: ClaimState::Ending,
            owner: String::new(),
            id: id.to_owned(),
            home: home.to_owned(),
            token: String::new(),
            template: String::new(),
            metadata: Default::default(),
            envs: Default::default(),
            idempotency_key: None,
            started: SystemTime::now(),
            deadline: SystemTime::now(),
        }
    }

    #[test]
    fn a_claim_cannot_name_what_is_removed() {
        let below = Homes::Below("/home/a/telexec-e2b".to_owned());
        let id = "one-0123456789ab";
        assert_eq!(below.check(&claim(id, &below.of(id))), Ok(()));
        for home in [
            "",
            "/",
            "/etc",
            "/home/a",
            "/home/a/telexec-e2b",
            "/home/a/telexec-e2b/",
            "/home/a/telexec-e2b/two-0123456789ab",
            "/home/a/telexec-e2b/../one-0123456789ab",
            "/home/a/telexec-e2b/one-0123456789ab/",
            "/home/a/telexec-e2b/one-0123456789ab/..",
            "one-0123456789ab",
        ] {
            assert!(matches!(below.check(&claim(id, home)), Err(HomeError::Other { .. })), "{home}");
        }
        // nor by its id
        for id in [
            "",
            ".",
            "..",
            "etc",
            "/",
            "../../etc",
            "-0123456789ab",
            "one-0123456789AB",
            "one-0123456789a",
            "a/b-0123456789ab",
        ] {
            assert_eq!(below.check(&claim(id, &below.of(id))), Err(HomeError::Id { id: id.to_owned() }), "{id}");
        }
        let fixed = Homes::Fixed("/home/user".to_owned());
        assert_eq!(fixed.check(&claim(id, "/home/user")), Ok(()));
        for home in ["/", "", "/home", "/home/user/..", "/home/user/x"] {
            assert!(fixed.check(&claim(id, home)).is_err(), "{home}");
        }
        // where the agent itself starts commands in a strange place
        for directory in ["", "/a/..", "relative"] {
            let below = Homes::Below(directory.to_owned());
            assert_eq!(below.check(&claim(id, &below.of(id))).is_ok(), directory.is_empty(), "{directory}");
        }
    }

    #[test]
    fn no_directory_of_the_system_is_emptied() {
        for home in ["/home/user", "/srv/e2b/home", "/root/e2b", "/var/lib/e2b"] {
            assert_eq!(emptied(home), Ok(home.to_owned()));
        }
        for home in [
            "",
            "/",
            "//",
            "/.",
            "/home",
            "/root",
            "/var",
            "/var/lib",
            "/etc",
            "/etc/x",
            "/usr/local",
            "/proc/1/root",
            "/run/user/0",
            "/home/..",
            "/home/../etc",
            "/home/user/",
            "home/user",
            "/home//user",
            "/home/a\0",
        ] {
            assert!(emptied(home).is_err(), "{home}");
        }
    }

    #[test]
    fn a_directory_has_itself_and_what_is_below() {
        assert!(is_within("/a/b", "/a/b") && is_within("/a/b/c", "/a/b"));
        assert!(!is_within("/a/bc", "/a/b") && !is_within("/a", "/a/b"));
    }
}
