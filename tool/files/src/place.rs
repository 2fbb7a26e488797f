//! From a path to an open directory and a name in it, so that what was asked about is what is used.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, readlinkat, statat};
use rustix::io::Errno;

/// As many symbolic links as the kernel follows: path_resolution(7).
const MAX_LINKS: usize = 40;
/// No path is longer, with the NUL that the kernel counts: `PATH_MAX`.
pub(crate) const MAX_PATH_BYTES: usize = 4095;
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A name in a directory that is open.
pub(crate) struct Place {
    directory: OwnedFd,
    /// Directories below that which do not exist yet.
    missing: Vec<Vec<u8>>,
    name: Vec<u8>,
    /// The path of the directory, without symbolic links.
    real: Vec<u8>,
}

/// What becomes of a symbolic link at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// It stands for what it points to.
    Follow,
    /// It stands for itself.
    Keep,
}

impl Place {
    /// Of this path, whose directory exists.
    ///
    /// # Errors
    /// Of opening the directory; `ELOOP`, also for links of `/proc` that lead out of the file system.
    pub(crate) fn of(path: &[u8], links: Links) -> Result<Self, Errno> {
        Self::find(path, links, false)
    }

    /// Of this path. The directories that it is in may be missing.
    ///
    /// # Errors
    /// As of [`Place::of`].
    pub(crate) fn to_be_made(path: &[u8], links: Links) -> Result<Self, Errno> {
        Self::find(path, links, true)
    }

    fn find(path: &[u8], links: Links, may_miss: bool) -> Result<Self, Errno> {
        if path.contains(&0) {
            return Err(Errno::INVAL);
        }
        if path.len() > MAX_PATH_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let mut path = path.to_vec();
        for _ in 0..MAX_LINKS {
            let place = Self::at(&path, may_miss)?;
            // a slash at the end asks for what a link points to, as to the kernel
            let follows = links == Links::Follow || path.ends_with(b"/");
            match place.link_target() {
                Some(target) if follows => path = place.beside(&target),
                _ if path.ends_with(b"/") => return place.if_directory(),
                _ => return Ok(place),
            }
        }
        Err(Errno::LOOP)
    }

    /// The last name is not looked at.
    fn at(path: &[u8], may_miss: bool) -> Result<Self, Errno> {
        let (parent, name) = split(path)?;
        if matches!(name, b"" | b"." | b"..") {
            return Self::directory_itself(path);
        }
        let (directory, missing) = match open_directory(parent) {
            Err(Errno::NOENT) if may_miss => open_ancestor(parent)?,
            directory => (directory?, Vec::new()),
        };
        let real = real_path(&directory)?;
        if is_own_process(&real) {
            return Err(Errno::ACCESS);
        }
        Ok(Self { directory, missing, name: name.to_vec(), real })
    }

    /// A directory that the path has no name for.
    fn directory_itself(path: &[u8]) -> Result<Self, Errno> {
        let itself = open_directory(path)?;
        let real = real_path(&itself)?;
        let (parent, name) = split(&real)?;
        let (directory, name) = match name {
            b"" => (itself, &b"."[..]),
            name => (openat(&itself, "..", DIRECTORY, Mode::empty())?, name),
        };
        Ok(Self { directory, missing: Vec::new(), name: name.to_vec(), real: parent.to_vec() })
    }

    fn if_directory(self) -> Result<Self, Errno> {
        match self.stat() {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => Err(Errno::NOTDIR),
            _ => Ok(self),
        }
    }

    /// The directory that the name is in.
    pub(crate) fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// The name in that.
    pub(crate) fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
    }

    /// The whole path, without symbolic links.
    pub(crate) fn real(&self) -> Vec<u8> {
        let names = self.missing.iter().chain([&self.name]).filter(|name| *name != b".");
        let mut path = self.real.clone();
        for name in names {
            if !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        path
    }

    /// Of the name, not of what a link points to.
    ///
    /// # Errors
    /// Of fstatat(2).
    pub(crate) fn stat(&self) -> Result<Stat, Errno> {
        match self.missing.is_empty() {
            true => statat(&self.directory, self.name(), AtFlags::SYMLINK_NOFOLLOW),
            false => Err(Errno::NOENT),
        }
    }

    /// Opens it. A link that has come meanwhile is `ELOOP`.
    ///
    /// # Errors
    /// Of openat(2).
    pub(crate) fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        openat(&self.directory, self.name(), flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }

    /// Makes the directories that are missing.
    ///
    /// # Errors
    /// Of mkdirat(2) and openat(2).
    pub(crate) fn make_parents(&mut self) -> Result<(), Errno> {
        for name in std::mem::take(&mut self.missing) {
            let path = OsStr::from_bytes(&name);
            match rustix::fs::mkdirat(&self.directory, path, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            self.directory = openat(&self.directory, path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
            self.real = real_path(&self.directory)?;
        }
        Ok(())
    }

    /// Where the name points, if it is a symbolic link.
    pub(crate) fn link_target(&self) -> Option<Vec<u8>> {
        let is_there = self.missing.is_empty();
        let target = is_there.then(|| readlinkat(&self.directory, self.name(), Vec::new()))?;
        target.ok().map(std::ffi::CString::into_bytes)
    }

    /// What a link in this place points to.
    fn beside(&self, target: &[u8]) -> Vec<u8> {
        match target.starts_with(b"/") {
            true => target.to_vec(),
            false => [&self.real[..], b"/", target].concat(),
        }
    }
}

/// The directory, and the name in it without slashes at its end.
fn split(path: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let (path, _) = path.split_at(end);
    Ok(match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => path.split_at(slash + 1),
        None if path.is_empty() => (b"/", b""),
        None => (b".", path),
    })
}

/// The deepest directory of this path that exists, and the names below it.
fn open_ancestor(path: &[u8]) -> Result<(OwnedFd, Vec<Vec<u8>>), Errno> {
    let mut missing = Vec::new();
    let mut rest = path;
    loop {
        let (parent, name) = split(rest)?;
        if matches!(name, b"" | b"." | b"..") {
            // what is above a directory that does not exist is nowhere
            return Err(Errno::NOENT);
        }
        missing.insert(0, name.to_vec());
        match open_directory(parent) {
            Err(Errno::NOENT) => rest = parent,
            directory => return Ok((directory?, missing)),
        }
    }
}

/// In `/proc` the memory of this process could be written, and with it the verdicts of the agent.
pub(crate) fn is_own_process(path: &[u8]) -> bool {
    let own = format!("/proc/{}", std::process::id());
    path.strip_prefix(own.as_bytes()).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn open_directory(path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = OsStr::from_bytes(path);
    match openat2(CWD, path, DIRECTORY, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        // before Linux 5.6
        Err(Errno::NOSYS) => openat(CWD, path, DIRECTORY, Mode::empty()),
        opened => opened,
    }
}

/// Of an open file, without symbolic links.
pub(crate) fn real_path(directory: &OwnedFd) -> Result<Vec<u8>, Errno> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    readlinkat(CWD, link, Vec::new()).map(std::ffi::CString::into_bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    fn real(path: &Path, links: Links) -> Result<String, Errno> {
        Place::of(path.as_os_str().as_bytes(), links).map(|place| String::from_utf8(place.real()).unwrap())
    }

    #[test]
    fn it_is_the_path_that_the_kernel_would_take() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/file"), "").unwrap();
        symlink("a/file", root.join("link")).unwrap();
        symlink("link", root.join("second")).unwrap();
        symlink("a", root.join("dir")).unwrap();
        symlink("round", root.join("round")).unwrap();
        symlink("nowhere/x", root.join("dangling")).unwrap();
        let text = |name: &str| root.join(name).to_str().unwrap().trim_end_matches('/').to_owned();
        for (path, links, expected) in [
            ("a/file", Links::Follow, Ok("a/file")),
            ("a/none", Links::Follow, Ok("a/none")),
            ("a/./b/../file", Links::Follow, Ok("a/file")),
            ("second", Links::Follow, Ok("a/file")),
            ("second", Links::Keep, Ok("second")),
            ("dir", Links::Keep, Ok("dir")),
            ("dir/", Links::Keep, Ok("a")),
            ("dir/..", Links::Keep, Ok("")),
            ("dir/file", Links::Keep, Ok("a/file")),
            ("dir/b//", Links::Follow, Ok("a/b")),
            ("a/b/.", Links::Follow, Ok("a/b")),
            ("round", Links::Follow, Err(Errno::LOOP)),
            ("round", Links::Keep, Ok("round")),
            ("dangling", Links::Follow, Err(Errno::NOENT)),
            ("none/x", Links::Follow, Err(Errno::NOENT)),
            ("a/file/", Links::Follow, Err(Errno::NOTDIR)),
            ("a/file/x", Links::Follow, Err(Errno::NOTDIR)),
        ] {
            assert_eq!(real(&root.join(path), links), expected.map(text), "{path}");
        }
        assert_eq!(real(Path::new("/"), Links::Follow).as_deref(), Ok("/"));
        assert_eq!(real(Path::new("/.."), Links::Follow).as_deref(), Ok("/"));
        assert_eq!(real(Path::new("/tmp"), Links::Follow).as_deref(), Ok("/tmp"));
        assert_eq!(real(Path::new(""), Links::Follow), Err(Errno::NOENT));
        assert_eq!(real(Path::new("/proc/self/root/etc/x"), Links::Follow), Err(Errno::LOOP));
        assert_eq!(real(Path::new("/proc/self/mem"), Links::Follow), Err(Errno::ACCESS));
        assert_eq!(real(Path::new("/proc/thread-self/mem"), Links::Follow), Err(Errno::ACCESS));
        assert_eq!(Place::of(b"a\0b", Links::Follow).err(), Some(Errno::INVAL));
        assert_eq!(Place::of(&[b'a'; 4096], Links::Follow).err(), Some(Errno::NAMETOOLONG));
    }

    #[test]
    fn missing_directories_are_made_where_they_were_asked_about() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let path = root.join("x/y/z");
        let mut place = Place::to_be_made(path.as_os_str().as_bytes(), Links::Follow).unwrap();
        assert_eq!(place.real(), path.as_os_str().as_bytes());
        // a link that comes meanwhile is not followed
        symlink("/tmp", root.join("x")).unwrap();
        assert!(place.make_parents().is_err());
        std::fs::remove_file(root.join("x")).unwrap();
        let mut place = Place::to_be_made(path.as_os_str().as_bytes(), Links::Follow).unwrap();
        place.make_parents().unwrap();
        assert_eq!(place.real(), path.as_os_str().as_bytes());
        assert!(root.join("x/y").is_dir());
        let above = root.join("none/../y");
        assert_eq!(Place::to_be_made(above.as_os_str().as_bytes(), Links::Follow).err(), Some(Errno::NOENT));
    }
}
