//! What git ignores: `.gitignore` and `.ignore`, each for the directory that it is in.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, statat};

/// Longer ones are not honoured.
const MAX_BYTES: u64 = 256 * 1024;
/// The later one wins.
pub(super) const NAMES: [&str; 2] = [".gitignore", ".ignore"];

/// What one directory says, of what is below it.
#[derive(Default)]
pub(super) struct Ignored {
    /// The real path of the directory, with a slash at its end.
    base: Vec<u8>,
    rules: Vec<Gitignore>,
}

impl Ignored {
    /// Of a directory that is open. Links are not followed, and what is no regular file is not opened.
    pub(super) fn read<E>(
        directory: &OwnedFd,
        real: &[u8],
        mut permitted: impl FnMut(Vec<u8>) -> Result<bool, E>,
    ) -> Result<Self, E> {
        let base = super::below(real, b"");
        let mut rules = Vec::new();
        for name in NAMES {
            let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
            if stat.is_ok_and(|stat| is_honoured(&stat))
                && permitted([&base[..], name.as_bytes()].concat())?
                && let Some(text) = content(directory, name)
            {
                rules.extend(parse(&text));
            }
        }
        Ok(Self { base, rules })
    }

    /// Whether this is ignored, by its real path; `None`: nothing is said of it.
    pub(super) fn says(&self, real: &[u8], is_directory: bool) -> Option<bool> {
        let relative = real.strip_prefix(&self.base[..])?;
        self.rules.iter().rev().find_map(|rules| {
            match rules.matched(Path::new(OsStr::from_bytes(relative)), is_directory) {
                Match::None => None,
                Match::Ignore(_) => Some(true),
                Match::Whitelist(_) => Some(false),
            }
        })
    }
}

fn is_honoured(stat: &rustix::fs::Stat) -> bool {
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && size <= MAX_BYTES
}

fn content(directory: &OwnedFd, name: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::empty()).ok()?;
    fstat(&file).ok().filter(is_honoured)?;
    let mut bytes = Vec::new();
    File::from(file).take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Lines that are malformed say nothing.
fn parse(text: &str) -> Option<Gitignore> {
    let mut builder = GitignoreBuilder::new(".");
    for line in text.trim_start_matches('\u{feff}').lines() {
        let _ = builder.add_line(None, line);
    }
    builder.build().ok()
}
