//! Finding files below a directory, by their names or by what is in them.
//!
//! The directories are walked here, each held open, so that nothing is opened but what was asked about; ripgrep's
//! libraries do the rest: `pattern` compiles what is looked for, `ignored` is what git ignores, `content` searches a file,
//! and `results` sends what was found.

pub mod message;

mod content;
mod ignored;
mod pattern;
mod results;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque, btree_set};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use rustix::io::Errno;
use telexec_executor::FileOperation;

use self::content::{Content, Seen};
use self::ignored::Ignored;
use self::message::{Found, SearchTask};
use self::pattern::FileGlob;
use self::results::Results;
use crate::list::names;
use crate::message::{Access, Outcome};
use crate::place::{Links, Place, is_own_process};
use crate::session::{Refusal, Session, failure};

/// The most questions that are sent before their answers are read: an answer takes longer than a decision.
pub const MAX_QUESTIONS: usize = 64;

/// Each holds a directory open.
const MAX_DEPTH: usize = 256;
/// Names of a directory that are in memory at once.
const NAMES_AT_ONCE: usize = 50_000;
/// Directories that are remembered where links are followed; what comes after them is not walked.
const MAX_VISITED: usize = 1_000_000;
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// As rg(1). The directory itself must be permitted; of what is below it, what is not is left out, and counted.
pub(crate) fn search<I: Read, O: Write>(session: &mut Session<I, O>, task: &SearchTask) -> Result<Outcome, Refusal> {
    let compiled = FileGlob::compile(task).and_then(|glob| Ok((glob, pattern::regex(task)?)));
    let (glob, regex) = match compiled {
        Ok(compiled) => compiled,
        Err(malformed) => return Ok(Outcome::Malformed(malformed)),
    };
    let failed = failure(FileOperation::Open, &task.path);
    let place = Place::of(&task.path, Links::Follow).map_err(&failed)?;
    session.permitted(Access::List, &place)?;
    let stat = place.stat().map_err(&failed)?;
    let mut search = Search {
        task,
        glob,
        content: regex.map(|regex| Content::new(task, regex)),
        results: Results::new(task),
        outer: Vec::new(),
        visited: HashSet::new(),
    };
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        let real = place.real();
        let directory = place.open(OFlags::RDONLY | OFlags::DIRECTORY).map_err(&failed)?;
        let root = Level::new(directory, real, task.path.clone(), Vec::new()).map_err(&failed)?;
        session.answer(Outcome::Found(Found::default()))?;
        search.visited.insert((stat.st_dev, stat.st_ino));
        search.walk(session, root)?;
    } else {
        search.one_file(session, &place, &stat)?;
    }
    search.results.send(session)?;
    Ok(Outcome::Searched(search.results.counts))
}

/// A path in a directory.
pub(crate) fn below(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.is_empty() || directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

/// A directory that is being walked.
struct Level {
    directory: OwnedFd,
    /// Its path without symbolic links.
    real: Vec<u8>,
    /// As the caller sees it.
    shown: Vec<u8>,
    /// Below the directory that is searched.
    relative: Vec<u8>,
    ignored: Ignored,
    names: btree_set::IntoIter<Vec<u8>>,
    last: Vec<u8>,
    has_more: bool,
    /// Those that are to be visited next. A directory is the last one, so nobody waits long for the others.
    next: VecDeque<Candidate>,
}

/// A name that is neither hidden nor ignored.
struct Candidate {
    name: Vec<u8>,
    stat: Stat,
    /// Whether its content may be searched, if that was asked.
    permitted: Option<bool>,
}

impl Level {
    fn new(directory: OwnedFd, real: Vec<u8>, shown: Vec<u8>, relative: Vec<u8>) -> Result<Self, Errno> {
        let (names, has_more) = names(&directory, b"", NAMES_AT_ONCE)?;
        let (names, ignored, last) = (names.into_iter(), Ignored::default(), Vec::new());
        Ok(Self { directory, real, shown, relative, ignored, names, last, has_more, next: VecDeque::new() })
    }

    /// In the order of the names' bytes.
    fn next_name(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        let mut name = self.names.next();
        if name.is_none() && std::mem::take(&mut self.has_more) {
            let (names, has_more) = names(&self.directory, &self.last, NAMES_AT_ONCE)?;
            (self.names, self.has_more) = (names.into_iter(), has_more);
            name = self.names.next();
        }
        if let Some(name) = &name {
            self.last.clone_from(name);
        }
        Ok(name)
    }
}

/// Something in a directory. Where links are followed, its place is where the link leads.
struct Entry<'a> {
    directory: &'a OwnedFd,
    name: &'a OsStr,
    stat: Stat,
    real: Vec<u8>,
    shown: Vec<u8>,
    relative: Vec<u8>,
    permitted: Option<bool>,
}

impl Entry<'_> {
    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        openat(self.directory, self.name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }
}

struct Search<'a> {
    task: &'a SearchTask,
    glob: FileGlob,
    /// `None`: names are enough.
    content: Option<Content>,
    results: Results,
    /// What the directories above say, as far up as the repository goes; the nearest is the last.
    outer: Vec<Ignored>,
    /// Directories, where links are followed.
    visited: HashSet<(u64, u64)>,
}

impl Search<'_> {
    /// The path of the search is no directory.
    fn one_file<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        place: &Place,
        stat: &Stat,
    ) -> Result<(), Refusal> {
        let failed = failure(FileOperation::Open, &self.task.path);
        let kind = FileType::from_raw_mode(stat.st_mode);
        if self.content.is_some() && kind != FileType::RegularFile {
            return Err(failure(FileOperation::Read, &self.task.path)(Errno::INVAL).into());
        }
        if !self.glob.finds(place.name().as_bytes(), false) {
            session.answer(Outcome::Found(Found::default()))?;
            return Ok(());
        }
        if self.content.is_some() {
            session.permitted(Access::Read, place)?;
            let file = place.open(FILE).map_err(&failed)?;
            session.answer(Outcome::Found(Found::default()))?;
            let path = self.task.path.clone();
            match self.read(session, file, &path)? {
                Seen::Failed(error) => Err(failure(FileOperation::Read, &path)(error).into()),
                seen => {
                    self.count(&seen);
                    Ok(())
                }
            }
        } else {
            self.results.counts.files_searched = 1;
            session.answer(Outcome::Found(Found::default()))?;
            let info = session.describe(&self.task.path, stat, None);
            Ok(self.results.file(session, info)?)
        }
    }

    fn walk<I: Read, O: Write>(&mut self, session: &mut Session<I, O>, mut root: Level) -> Result<(), Refusal> {
        if !self.task.include_ignored {
            self.outer = self.ignored_above(session, &root)?;
            root.ignored = self.ignored(session, &root)?;
        }
        let mut levels = vec![root];
        while let Some(level) = levels.last_mut() {
            if self.results.is_full() {
                break;
            }
            self.results.send_old(session)?;
            let candidate = level.next.pop_front();
            let deeper = match (candidate, levels.last()) {
                (Some(candidate), Some(level)) => self.visit(session, levels.len(), level, candidate)?,
                _ => {
                    if !self.look_ahead(session, &mut levels)? {
                        levels.pop();
                    }
                    None
                }
            };
            levels.extend(deeper);
        }
        Ok(())
    }

    /// Finds the next candidates in the last directory, and asks about them. Returns whether there may be any.
    fn look_ahead<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        levels: &mut [Level],
    ) -> Result<bool, Refusal> {
        let (mut next, mut asked, mut has_more) = (VecDeque::new(), Vec::new(), true);
        while next.len() < MAX_QUESTIONS {
            let name = match levels.last_mut().map(Level::next_name) {
                Some(Ok(Some(name))) => name,
                ended => {
                    self.results.counts.skipped_unreadable += u64::from(matches!(ended, Some(Err(_))));
                    has_more = !next.is_empty();
                    break;
                }
            };
            let Some((stat, real, relative)) = self.candidate(levels, &name) else { continue };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let is_taken = self.content.as_ref().is_some_and(|content| content.takes(stat.st_size));
            let is_searched = is_taken && kind == FileType::RegularFile && self.glob.finds(&relative, false);
            if is_searched && self.task.asks_each {
                asked.push((next.len(), real));
            }
            next.push_back(Candidate { name, stat, permitted: None });
            if kind == FileType::Directory {
                break;
            }
        }
        let verdicts = session.asked_all(Access::Read, asked.iter().map(|(_, real)| &real[..]))?;
        for ((place, _), verdict) in asked.iter().zip(verdicts) {
            if let Some(candidate) = next.get_mut(*place) {
                candidate.permitted = Some(verdict);
            }
        }
        if let Some(level) = levels.last_mut() {
            level.next = next;
        }
        Ok(has_more)
    }

    /// What is known of a name in the last directory, with its real path and that below the search; `None`: it is left out.
    fn candidate(&self, levels: &[Level], name: &[u8]) -> Option<(Stat, Vec<u8>, Vec<u8>)> {
        let is_hidden = !self.task.include_hidden && name.starts_with(b".");
        let is_git = !self.task.include_ignored && name == b".git";
        if is_hidden || is_git {
            return None;
        }
        let level = levels.last()?;
        // what is gone by now is not found
        let stat = statat(&level.directory, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let real = below(&level.real, name);
        let is_ignored = !self.task.include_ignored && self.is_ignored(levels, &real, is_directory);
        (!is_ignored).then(|| (stat, real, below(&level.relative, name)))
    }

    /// Looks at a name in a directory; one to be walked is returned.
    fn visit<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        depth: usize,
        level: &Level,
        candidate: Candidate,
    ) -> Result<Option<Level>, Refusal> {
        let Candidate { name, stat, permitted } = candidate;
        let (real, relative) = (below(&level.real, &name), below(&level.relative, &name));
        let (shown, name) = (below(&level.shown, &name), OsStr::from_bytes(&name));
        let entry = Entry { directory: &level.directory, name, stat, real, shown, relative, permitted };
        if self.task.follow_links && entry.kind() == FileType::Symlink {
            // one that leads nowhere stands for itself
            if let Ok(place) = Place::of(&entry.real, Links::Follow)
                && let Ok(stat) = place.stat()
            {
                let (directory, name, real) = (place.directory(), place.name(), place.real());
                return self.entry(session, depth, Entry { directory, name, stat, real, ..entry });
            }
        }
        self.entry(session, depth, entry)
    }

    fn entry<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        depth: usize,
        entry: Entry<'_>,
    ) -> Result<Option<Level>, Refusal> {
        let is_directory = entry.kind() == FileType::Directory;
        if self.glob.finds(&entry.relative, is_directory) {
            if self.content.is_none() {
                let target = readlinkat(entry.directory, entry.name, Vec::new()).ok();
                let info = session.describe(&entry.shown, &entry.stat, target.map(std::ffi::CString::into_bytes));
                self.results.counts.files_searched += 1;
                self.results.file(session, info)?;
            } else if entry.kind() == FileType::RegularFile {
                self.content(session, &entry)?;
            }
        } else if self.content.is_none() && !is_directory {
            self.results.counts.files_searched += 1;
        }
        match is_directory {
            true => self.descend(session, depth, entry),
            false => Ok(None),
        }
    }

    fn content<I: Read, O: Write>(&mut self, session: &mut Session<I, O>, entry: &Entry<'_>) -> Result<(), Refusal> {
        if !self.content.as_ref().is_some_and(|content| content.takes(entry.stat.st_size)) {
            self.count(&Seen::TooLarge);
            return Ok(());
        }
        let is_permitted = match entry.permitted {
            Some(verdict) => verdict,
            None => self.permitted(session, Access::Read, &entry.real)?,
        };
        if !is_permitted {
            self.results.counts.skipped_denied += 1;
            return Ok(());
        }
        let seen = match entry.open(FILE) {
            Ok(file) => self.read(session, file, &entry.shown)?,
            Err(error) => Seen::Failed(error),
        };
        self.count(&seen);
        Ok(())
    }

    fn read<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        file: OwnedFd,
        shown: &[u8],
    ) -> io::Result<Seen> {
        match &mut self.content {
            Some(content) => content.search(session, &mut self.results, file, shown),
            None => Ok(Seen::Other),
        }
    }

    fn count(&mut self, seen: &Seen) {
        let counts = &mut self.results.counts;
        match seen {
            Seen::Searched => counts.files_searched += 1,
            Seen::Binary => counts.skipped_binary += 1,
            Seen::TooLarge => counts.skipped_too_large += 1,
            // it is gone by now, or is something else
            Seen::Other | Seen::Failed(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::SRCH) => {}
            Seen::Failed(_) => counts.skipped_unreadable += 1,
        }
    }

    /// A directory that is to be walked, if it may be.
    fn descend<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        depth: usize,
        entry: Entry<'_>,
    ) -> Result<Option<Level>, Refusal> {
        if is_own_process(&entry.real) || self.results.is_full() {
            return Ok(None);
        }
        // those that links lead to a second time, or round and round
        if self.task.follow_links && !self.visited.insert((entry.stat.st_dev, entry.stat.st_ino)) {
            return Ok(None);
        }
        if depth >= MAX_DEPTH || self.visited.len() > MAX_VISITED {
            self.results.counts.skipped_too_large += 1;
            return Ok(None);
        }
        if !self.permitted(session, Access::List, &entry.real)? {
            self.results.counts.skipped_denied += 1;
            return Ok(None);
        }
        let opened = entry.open(OFlags::RDONLY | OFlags::DIRECTORY);
        match opened.and_then(|directory| Level::new(directory, entry.real, entry.shown, entry.relative)) {
            Ok(mut level) => {
                if !self.task.include_ignored {
                    level.ignored = self.ignored(session, &level)?;
                }
                Ok(Some(level))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::SRCH) => Ok(None),
            Err(_) => {
                self.results.counts.skipped_unreadable += 1;
                Ok(None)
            }
        }
    }

    fn permitted<I: Read, O: Write>(
        &self,
        session: &mut Session<I, O>,
        access: Access,
        real: &[u8],
    ) -> io::Result<bool> {
        if self.task.asks_each { session.asked(access, real) } else { Ok(true) }
    }

    fn ignored<I: Read, O: Write>(&self, session: &mut Session<I, O>, level: &Level) -> io::Result<Ignored> {
        Ignored::read(&level.directory, &level.real, |path| self.permitted(session, Access::Read, &path))
    }

    /// The nearest directory that says anything of it decides.
    fn is_ignored(&self, levels: &[Level], real: &[u8], is_directory: bool) -> bool {
        let inner = levels.iter().map(|level| &level.ignored);
        let mut all = self.outer.iter().chain(inner).rev();
        all.find_map(|ignored| ignored.says(real, is_directory)).unwrap_or_default()
    }

    /// What is said in the directories of a repository above the one that is searched.
    fn ignored_above<I: Read, O: Write>(&self, session: &mut Session<I, O>, root: &Level) -> io::Result<Vec<Ignored>> {
        let has_git = |path: &[u8]| {
            let git = below(path, b".git");
            statat(CWD, OsStr::from_bytes(&git), AtFlags::SYMLINK_NOFOLLOW).is_ok()
        };
        let (mut above, mut path) = (Vec::new(), &root.real[..]);
        while !has_git(path) {
            let Some(slash) = path.iter().rposition(|byte| *byte == b'/').filter(|_| path != b"/") else {
                return Ok(Vec::new());
            };
            path = path.get(..slash.max(1)).unwrap_or_default();
            above.push(path);
        }
        let mut all = Vec::new();
        for path in above.into_iter().rev() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(directory) = openat(CWD, OsStr::from_bytes(path), flags, Mode::empty()) {
                all.push(Ignored::read(&directory, path, |path| self.permitted(session, Access::Read, &path))?);
            }
        }
        Ok(all)
    }
}
