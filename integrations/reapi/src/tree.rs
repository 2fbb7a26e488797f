//! The input root: directories from the CAS, checked, and what is to be laid out.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use bazel_remote_apis::build::bazel::remote::execution::v2 as reapi;
use prost::Message;

use crate::cas::{Cas, batches, is_small};
use crate::digest::Digest;
use crate::failure::Failure;

/// Files, directories and links of one action, each counted where it is laid out.
pub(crate) const MAX_ENTRIES: usize = 500_000;
pub(crate) const MAX_DEPTH: usize = 128;
const MAX_NAME_BYTES: usize = 255;
/// Of Linux, with room for the work directory.
const MAX_PATH_BYTES: usize = 3_800;
const MAX_TARGET_BYTES: usize = 4_095;
/// Of all paths of an action.
const MAX_PATHS_BYTES: usize = 64 * 1024 * 1024;
/// Of all directories of an action; and of those that are kept, since most actions have most of them in common.
const MAX_DIRECTORIES_BYTES: u64 = 128 * 1024 * 1024;

/// What an input root has, with paths below it. Directories come before what is in them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) directories: Vec<String>,
    pub(crate) files: Vec<(String, Blob)>,
    /// Their paths, and what they say.
    pub(crate) links: Vec<(String, String)>,
}

/// A file as it is kept: the same content is another file if it can be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) executable: bool,
}

/// Directories that were fetched.
#[derive(Default)]
pub(crate) struct Directories(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_digest: HashMap<Digest, Arc<reapi::Directory>>,
    bytes: u64,
}

/// What an entry of a directory takes in memory beside its name.
const ENTRY_BYTES: u64 = 256;

/// What a directory takes in memory, about.
fn memory(directory: &reapi::Directory) -> u64 {
    directory.encoded_len() as u64 + ENTRY_BYTES * entries_of(directory) as u64
}

fn entries_of(directory: &reapi::Directory) -> usize {
    directory.files.len() + directory.directories.len() + directory.symlinks.len()
}

impl Directories {
    /// All that is below this directory.
    pub(crate) async fn layout(&self, cas: &Cas, root: Digest) -> Result<Layout, Failure> {
        let known = self.fetch(cas, root).await?;
        let mut layout = Layout::default();
        let mut below = vec![(String::new(), root, 0)];
        let (mut entries, mut path_bytes) = (0, 0);
        while let Some((path, digest, depth)) = below.pop() {
            let directory = known.get(&digest).ok_or_else(|| Failure::Missing(vec![digest]))?;
            entries += entries_of(directory);
            path_bytes += directory.encoded_len() + path.len() * (directory.files.len() + directory.directories.len());
            if path_bytes > MAX_PATHS_BYTES {
                return Err(Failure::TooLarge("the paths of the input root have more than 64 MiB".to_owned()));
            }
            if entries > MAX_ENTRIES {
                return Err(too_many());
            }
            if depth > MAX_DEPTH {
                return Err(too_deep());
            }
            for file in &directory.files {
                let blob = Blob { digest: digest_of(file.digest.as_ref())?, executable: file.is_executable };
                layout.files.push((join(&path, &file.name)?, blob));
            }
            for link in &directory.symlinks {
                if link.target.len() > MAX_TARGET_BYTES {
                    return Err(Failure::Invalid(format!("the target of the symlink {:?} is too long", link.name)));
                }
                if link.target.is_empty() || link.target.contains('\0') {
                    return Err(Failure::Invalid(format!("the symlink {:?} has no target", link.name)));
                }
                layout.links.push((join(&path, &link.name)?, link.target.clone()));
            }
            for inner in &directory.directories {
                let inner_path = join(&path, &inner.name)?;
                layout.directories.push(inner_path.clone());
                below.push((inner_path, digest_of(inner.digest.as_ref())?, depth + 1));
            }
        }
        Ok(layout)
    }

    /// The directory and all below it, a level at a time.
    async fn fetch(&self, cas: &Cas, root: Digest) -> Result<HashMap<Digest, Arc<reapi::Directory>>, Failure> {
        let mut known = HashMap::new();
        let (mut level, mut bytes, mut depth, mut entries) = (HashSet::from([root]), 0, 0, 0);
        while !level.is_empty() {
            if depth > MAX_DEPTH {
                return Err(too_deep());
            }
            depth += 1;
            bytes = level.iter().fold(bytes, |bytes: u64, digest| bytes.saturating_add(digest.size));
            if bytes > MAX_DIRECTORIES_BYTES {
                return Err(Failure::TooLarge("the directories of the input root have more than 128 MiB".to_owned()));
            }
            let fetched = self.fetch_level(cas, &level).await?;
            let mut next = HashSet::new();
            for directory in fetched.values() {
                entries += entries_of(directory);
                if entries > MAX_ENTRIES {
                    return Err(too_many());
                }
                for inner in &directory.directories {
                    next.insert(digest_of(inner.digest.as_ref())?);
                }
            }
            known.extend(fetched);
            next.retain(|digest| !known.contains_key(digest));
            level = next;
        }
        Ok(known)
    }

    async fn fetch_level(
        &self,
        cas: &Cas,
        level: &HashSet<Digest>,
    ) -> Result<HashMap<Digest, Arc<reapi::Directory>>, Failure> {
        let mut fetched: HashMap<_, _> = {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            level.iter().filter_map(|digest| Some((*digest, Arc::clone(kept.by_digest.get(digest)?)))).collect()
        };
        let wanted: Vec<Digest> = level.iter().filter(|digest| !fetched.contains_key(*digest)).copied().collect();
        if let Some(large) = wanted.iter().find(|digest| !is_small(digest)) {
            return Err(Failure::TooLarge(format!("the directory {large} is larger than 4 MiB")));
        }
        for batch in batches(wanted) {
            for (digest, blob) in cas.fetch_batch(&batch).await? {
                let directory = reapi::Directory::decode(blob);
                let directory =
                    directory.map_err(|error| Failure::Invalid(format!("{digest} is no Directory: {error}")))?;
                check_names(&directory)?;
                fetched.insert(digest, Arc::new(directory));
            }
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (digest, directory) in &fetched {
            let bytes = memory(directory);
            if kept.bytes + bytes > MAX_DIRECTORIES_BYTES {
                *kept = Kept::default();
            }
            if kept.by_digest.insert(*digest, Arc::clone(directory)).is_none() {
                kept.bytes += bytes;
            }
        }
        Ok(fetched)
    }
}

fn too_many() -> Failure {
    Failure::TooLarge(format!("the input root has more than {MAX_ENTRIES} files"))
}

fn too_deep() -> Failure {
    Failure::TooLarge(format!("the input root is more than {MAX_DEPTH} directories deep"))
}

/// A digest that has to be there.
pub(crate) fn digest_of(digest: Option<&reapi::Digest>) -> Result<Digest, Failure> {
    Ok(Digest::try_from(digest.ok_or_else(|| Failure::Invalid("a digest is missing".to_owned()))?)?)
}

/// Every name is one component of a path, and there once.
fn check_names(directory: &reapi::Directory) -> Result<(), Failure> {
    let files = directory.files.iter().map(|file| &file.name);
    let links = directory.symlinks.iter().map(|link| &link.name);
    let directories = directory.directories.iter().map(|inner| &inner.name);
    let mut seen = HashSet::new();
    for name in files.chain(links).chain(directories) {
        if !is_component(name) {
            return Err(Failure::Invalid(format!("{name:?} is no name of a file")));
        }
        if !seen.insert(name) {
            return Err(Failure::Invalid(format!("a directory has {name:?} twice")));
        }
    }
    Ok(())
}

fn is_component(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME_BYTES && !name.contains(['/', '\0'])
}

fn join(directory: &str, name: &str) -> Result<String, Failure> {
    let path = if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
    check_length(&path)?;
    Ok(path)
}

/// Of a path below the input root.
pub(crate) fn check_length(path: &str) -> Result<(), Failure> {
    match path.len() {
        ..=MAX_PATH_BYTES => Ok(()),
        _ => Err(Failure::Invalid(format!("a path has more than {MAX_PATH_BYTES} bytes: {path:?}"))),
    }
}

/// A path below the input root, from the command: `what` says which. Empty: the root itself.
pub(crate) fn relative_path<'a>(what: &str, path: &'a str) -> Result<&'a str, Failure> {
    let is_relative = path.is_empty() || path.split('/').all(is_component);
    if !is_relative || path.len() > MAX_PATH_BYTES {
        return Err(Failure::Invalid(format!("{what}: {path:?} is no relative path without \".\" and \"..\"")));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_single_components() {
        for name in ["a", "...", "ü", "a b", "-"] {
            assert!(is_component(name), "{name:?}");
        }
        for name in ["", ".", "..", "/", "a/b", "/a", "a\0", &"a".repeat(256)] {
            assert!(!is_component(name), "{name:?}");
            let file = reapi::FileNode { name: name.to_owned(), ..Default::default() };
            assert!(check_names(&reapi::Directory { files: vec![file], ..Default::default() }).is_err());
        }
    }

    #[test]
    fn no_name_is_there_twice() {
        let file = reapi::FileNode { name: "a".to_owned(), ..Default::default() };
        let link = reapi::SymlinkNode { name: "a".to_owned(), ..Default::default() };
        assert!(
            check_names(&reapi::Directory { files: vec![file], symlinks: vec![link], ..Default::default() }).is_err()
        );
    }

    #[test]
    fn paths_stay_below_the_root() {
        for path in ["", "a", "a/b.c/d"] {
            assert_eq!(relative_path("x", path).unwrap(), path);
        }
        for path in ["/", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a/.", "a\0b"] {
            assert!(matches!(relative_path("x", path), Err(Failure::Invalid(_))), "{path:?}");
        }
    }
}
