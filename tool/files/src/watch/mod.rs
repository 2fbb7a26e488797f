//! Following the changes of a file or a directory, with inotify(7).
//!
//! No directory is held open, since one that is has no end and cannot be unmounted: those below the one that was asked for
//! are found again from that, name by name and never through a link. What the agent does not take stays in the kernel's
//! queue, which has a limit: beyond it events are lost, and that is reported.

pub mod message;

mod directories;

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;
use telexec_executor::{FileError, FileOperation};

use self::directories::Directories;
use self::message::{Change, Event, Events, WatchTask};
use crate::descend::entries;
use crate::message::{Access, Done, Outcome};
use crate::place::{Links, MAX_PATH_BYTES, Place, is_own_process, real_path};
use crate::search::{MAX_QUESTIONS, below};
use crate::session::{Refusal, Session, failure, malformed};

/// Directories of one watch, with those that are still to be looked at.
const MAX_DIRECTORIES: usize = 100_000;
/// So many events are sent at once.
const BATCH: usize = 256;
/// What is read from the kernel at once.
const BUFFER_BYTES: usize = 16 * 1024;
const OPEN: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

/// Watches until the input ends, or what is watched is gone: it has no outcome but a refusal.
pub(crate) fn watch<I: Read, O: Write>(session: &mut Session<I, O>, task: &WatchTask) -> Result<Outcome, Refusal> {
    let failed = failure(FileOperation::Watch, &task.path);
    let place = Place::of(&task.path, Links::Follow).map_err(&failed)?;
    session.permitted(Access::Watch, &place)?;
    let opened = place.open(OPEN).map_err(&failed)?;
    let root = fstat(&opened).map_err(&failed)?;
    let real = real_path(&opened).map_err(&failed)?;
    let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(&failed)?;
    let root_watch = add_watch(&queue, &opened).map_err(&failed)?;
    drop((opened, place));
    let mut directories = Directories::default();
    directories.add(root_watch, Vec::new());
    let mut watch = Watch { task, queue, root, real, root_watch, directories, events: Vec::new() };
    if watch.is_recursive() {
        watch.rescan(session)?;
    }
    session.answer(Outcome::Watching(Done {}))?;
    watch.follow(session)
}

struct Watch<'a> {
    task: &'a WatchTask,
    /// Of inotify.
    queue: OwnedFd,
    /// What was asked for.
    root: Stat,
    /// Its path without symbolic links.
    real: Vec<u8>,
    root_watch: i32,
    directories: Directories,
    /// To be sent.
    events: Vec<Event>,
}

/// An event of the kernel.
struct KernelEvent {
    watch: i32,
    what: ReadFlags,
    name: Option<Vec<u8>>,
}

impl Watch<'_> {
    fn follow<I: Read, O: Write>(&mut self, session: &mut Session<I, O>) -> Result<Outcome, Refusal> {
        loop {
            self.wait(session)?;
            for event in self.read().map_err(|error| self.failed(error))? {
                let taken = self.take(session, event);
                if taken.is_err() {
                    self.send(session, false)?;
                }
                taken?;
            }
            self.send(session, false)?;
        }
    }

    /// Returns when there are events.
    fn wait<I: Read, O: Write>(&self, session: &mut Session<I, O>) -> Result<(), Refusal> {
        let input = std::io::stdin();
        loop {
            let mut ready = [PollFd::new(&self.queue, PollFlags::IN), PollFd::new(&input, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(self.failed(error)),
            }
            let [queue, input] = ready.map(|ready| !ready.revents().is_empty());
            if input {
                // the agent ends a watch by ending the input; it sends nothing
                session.piece()?;
                return Err(malformed("a frame to a watch").into());
            }
            if queue {
                return Ok(());
            }
        }
    }

    fn read(&self) -> Result<Vec<KernelEvent>, Errno> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(self.queue.as_fd(), &mut buffer);
        let mut all = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_bytes().to_vec());
                    all.push(KernelEvent { watch: event.wd(), what: event.events(), name });
                }
                Err(Errno::AGAIN | Errno::INTR) => return Ok(all),
                Err(error) => return Err(error),
            }
            if reader.is_buffer_empty() {
                return Ok(all);
            }
        }
    }

    fn take<I: Read, O: Write>(&mut self, session: &mut Session<I, O>, event: KernelEvent) -> Result<(), Refusal> {
        let KernelEvent { watch, what, name } = event;
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.lost(session);
        }
        match (name, self.directories.path(watch)) {
            (Some(name), Some(directory)) => {
                let path = below(directory, &name);
                self.entry(session, what, path)
            }
            (None, Some(_)) if watch == self.root_watch => self.root(session, what),
            (None, Some(_)) if what.contains(ReadFlags::IGNORED) => {
                self.directories.remove(watch);
                Ok(())
            }
            // its directory reports the same, or it is no longer watched
            _ => Ok(()),
        }
    }

    /// Something about what was asked for itself.
    fn root<I: Read, O: Write>(&mut self, session: &mut Session<I, O>, what: ReadFlags) -> Result<(), Refusal> {
        let root = Vec::new();
        if what.contains(ReadFlags::UNMOUNT) {
            return Err(self.failed(Errno::NODEV));
        }
        if what.contains(ReadFlags::MOVE_SELF) {
            self.report(session, Change::Renamed, root)?;
            return Err(self.failed(Errno::NOENT));
        }
        // a file that others have open has no name any more, but is not deleted yet
        let is_unlinked = what.contains(ReadFlags::ATTRIB) && matches!(self.open_root(), Err(Errno::NOENT));
        if is_unlinked || what.intersects(ReadFlags::DELETE_SELF | ReadFlags::IGNORED) {
            self.report(session, Change::Removed, root)?;
            return Err(self.failed(Errno::NOENT));
        }
        match change(what) {
            Some(change) => self.report(session, change, root),
            None => Ok(()),
        }
    }

    /// Something about a name in a directory.
    fn entry<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        what: ReadFlags,
        path: Vec<u8>,
    ) -> Result<(), Refusal> {
        let Some(change) = change(what) else { return Ok(()) };
        let is_directory = self.task.recursive && what.contains(ReadFlags::ISDIR);
        if is_directory && matches!(change, Change::Removed | Change::Renamed) {
            for watch in self.directories.take(&path) {
                // it may be gone itself
                let _ = inotify::remove_watch(&self.queue, watch);
            }
        }
        self.report(session, change, path.clone())?;
        let may_be_new = match change {
            Change::Created => true,
            // with other permissions it may be within reach now
            Change::Attributes => !self.directories.has(&path),
            Change::Written | Change::Removed | Change::Renamed => false,
        };
        if is_directory && may_be_new { self.scan(session, path, true) } else { Ok(()) }
    }

    /// The kernel's queue was full. Directories may have come and gone.
    fn lost<I: Read, O: Write>(&mut self, session: &mut Session<I, O>) -> Result<(), Refusal> {
        self.send(session, false)?;
        // it may be what was lost
        self.open_root().map_err(|error| self.failed(error))?;
        if self.is_recursive() {
            self.rescan(session)?;
        }
        self.send(session, true)
    }

    /// Watches the directories that there are now, and no others.
    fn rescan<I: Read, O: Write>(&mut self, session: &mut Session<I, O>) -> Result<(), Refusal> {
        let old = std::mem::take(&mut self.directories);
        self.directories.add(self.root_watch, Vec::new());
        self.scan(session, Vec::new(), false)?;
        for watch in old.watches() {
            if self.directories.path(watch).is_none() {
                let _ = inotify::remove_watch(&self.queue, watch);
            }
        }
        Ok(())
    }

    /// Watches this directory and those below it. With `reports`, what they contain is reported as created.
    fn scan<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        directory: Vec<u8>,
        reports: bool,
    ) -> Result<(), Refusal> {
        let mut waiting = vec![directory];
        while !waiting.is_empty() {
            let next = waiting.split_off(waiting.len().saturating_sub(MAX_QUESTIONS));
            for (path, opened) in self.permitted(session, next)? {
                if !self.add(&path, &opened)? {
                    continue;
                }
                // what cannot be read is not there
                for (name, is_directory) in entries(&opened).into_iter().flatten().map_while(Result::ok) {
                    let path = below(&path, &name);
                    if reports {
                        self.report(session, Change::Created, path.clone())?;
                    }
                    if is_directory {
                        self.may_be_named(&path)?;
                        waiting.push(path);
                    }
                    if self.directories.len() + waiting.len() > MAX_DIRECTORIES {
                        return Err(self.failed(Errno::NOSPC));
                    }
                }
            }
        }
        Ok(())
    }

    /// What is in a directory that is too deep could not be asked for by its path, and finding it again takes longer with each
    /// name of that.
    fn may_be_named(&self, path: &[u8]) -> Result<(), Refusal> {
        match below(&self.real, path).len() {
            ..=MAX_PATH_BYTES => Ok(()),
            _ => Err(failure(FileOperation::Watch, &below(&self.task.path, path))(Errno::NAMETOOLONG).into()),
        }
    }

    /// Those of these directories that are there and that the agent permits, open.
    fn permitted<I: Read, O: Write>(
        &self,
        session: &mut Session<I, O>,
        paths: Vec<Vec<u8>>,
    ) -> Result<Vec<(Vec<u8>, OwnedFd)>, Refusal> {
        let (mut opened, mut asked) = (Vec::new(), Vec::new());
        for path in paths {
            // what is gone by now, or is out of the user's reach, is not watched
            let Some(directory) = self.open(&path)? else { continue };
            let real = if path.is_empty() { self.real.clone() } else { below(&self.real, &path) };
            if !is_own_process(&real) {
                opened.push((path, directory));
                asked.push(real);
            }
        }
        if self.task.asks_each {
            // of what was asked for itself it was asked before
            let is_root = |real: &[u8]| real == self.real;
            let questions = asked.iter().filter(|real| !is_root(real)).map(Vec::as_slice);
            let mut verdicts = session.asked_all(Access::Watch, questions)?.into_iter();
            let mut asked = asked.iter();
            opened.retain(|_| asked.next().is_some_and(|real| is_root(real) || verdicts.next() == Some(true)));
        }
        Ok(opened)
    }

    /// Watches a directory. Returns whether it was not watched before, so that there may be something new in it.
    fn add(&mut self, path: &[u8], opened: &OwnedFd) -> Result<bool, Refusal> {
        match add_watch(&self.queue, opened) {
            Ok(watch) if watch == self.root_watch => Ok(path.is_empty()),
            Ok(watch) => Ok(self.directories.add(watch, path.to_vec())),
            Err(error @ (Errno::NOSPC | Errno::NOMEM)) => {
                Err(failure(FileOperation::Watch, &below(&self.task.path, path))(error).into())
            }
            Err(_) => Ok(false),
        }
    }

    /// Opens a directory below the one that was asked for; `None`: it is none, is gone or is out of reach.
    fn open(&self, path: &[u8]) -> Result<Option<OwnedFd>, Refusal> {
        let mut directory = self.open_root().map_err(|error| self.failed(error))?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            match openat(&directory, OsStr::from_bytes(name), OPEN | OFlags::DIRECTORY, Mode::empty()) {
                Ok(opened) => directory = opened,
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(self.failed(error)),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(directory))
    }

    /// Opens what was asked for; something else in its place is not it.
    fn open_root(&self) -> Result<OwnedFd, Errno> {
        let opened = openat(CWD, OsStr::from_bytes(&self.real), OPEN, Mode::empty())?;
        let stat = fstat(&opened)?;
        let is_same = (stat.st_dev, stat.st_ino) == (self.root.st_dev, self.root.st_ino);
        if is_same { Ok(opened) } else { Err(Errno::NOENT) }
    }

    fn is_recursive(&self) -> bool {
        self.task.recursive && FileType::from_raw_mode(self.root.st_mode) == FileType::Directory
    }

    fn failed(&self, errno: Errno) -> Refusal {
        let failed: FileError = failure(FileOperation::Watch, &self.task.path)(errno);
        failed.into()
    }

    fn report<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        change: Change,
        path: Vec<u8>,
    ) -> Result<(), Refusal> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let directory = slash.and_then(|slash| path.get(..slash)).filter(|_| self.task.asks_each);
        let below_root = directory.map(|directory| below(&self.real, directory)).unwrap_or_default();
        let path = if path.is_empty() { self.task.path.clone() } else { below(&self.task.path, &path) };
        self.events.push(Event { change: change.into(), path, below: below_root });
        if self.events.len() >= BATCH { self.send(session, false) } else { Ok(()) }
    }

    fn send<I: Read, O: Write>(&mut self, session: &mut Session<I, O>, lost: bool) -> Result<(), Refusal> {
        if lost || !self.events.is_empty() {
            let events = std::mem::take(&mut self.events);
            session.answer(Outcome::Events(Events { events, lost }))?;
        }
        Ok(())
    }
}

/// By the open file, whatever has its name now.
fn add_watch(queue: &OwnedFd, opened: &OwnedFd) -> Result<i32, Errno> {
    inotify::add_watch(queue, format!("/proc/self/fd/{}", opened.as_raw_fd()), CHANGES)
}

fn change(what: ReadFlags) -> Option<Change> {
    Some(match what {
        _ if what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) => Change::Created,
        _ if what.contains(ReadFlags::MODIFY) => Change::Written,
        _ if what.contains(ReadFlags::DELETE) => Change::Removed,
        _ if what.contains(ReadFlags::MOVED_FROM) => Change::Renamed,
        _ if what.contains(ReadFlags::ATTRIB) => Change::Attributes,
        _ => return None,
    })
}
