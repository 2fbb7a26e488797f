//! A starter: a small process that makes children for the one that has made it, ahead of time. Each takes the steps that are the
//! same for all, and waits for what it becomes.
//!
//! They are made as by [`vfork`](crate::vfork), in the memory of the starter, which waits for each until it runs its program:
//! for as long as that takes, while the process that has made the starter does not wait. To that one they are children as those
//! of [`fork`](crate::fork), its to reap. What a child becomes is put into memory that is shared with the starter, and the
//! descriptors are sent.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, pidfd_send_signal};

use crate::child::{Ids, SharedWithChild};
use crate::clone::{STACK_BYTES, clone3};
use crate::serve::{ANSWER_BYTES, MAX_FILES, MESSAGE_BYTES, Message, Starting, make_children};
use crate::{Chown, Image, clone, exit, private, rlimits};

/// How long it may take to end once it is killed.
const END_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The process that makes children. Dropping this kills it; a child of it that waits ends, too. It is its caller's to reap.
#[derive(Debug)]
pub struct Starter {
    pid: Pid,
    pidfd: OwnedFd,
    socket: OwnedFd,
    memory: Memory,
    /// Of the child that was asked for last.
    number: u32,
}

impl Starter {
    /// Makes it; its children are to have these limits. As [`fork`](crate::fork): only by the one thread of this process that
    /// makes any. The signals that this thread blocks are blocked there, too.
    ///
    /// # Errors
    /// There is no process, for want of what this error number says; ENOSYS: the kernel has no clone3(2).
    pub fn new(rlimits: &[libc::rlimit64; rlimits::KINDS]) -> Result<Self, Errno> {
        if !clone3::is_there() {
            return Err(Errno::NOSYS);
        }
        let memory = Memory::new()?;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // it has a copy of these
        let mut stack = Vec::<u128>::with_capacity(STACK_BYTES / size_of::<u128>());
        let mut starting = Starting {
            socket: theirs.as_raw_fd(),
            rlimits,
            pid: memory.pid(),
            is_begun: memory.is_begun(),
            image: memory.image(),
            stack: ptr::from_mut::<[MaybeUninit<u128>]>(stack.spare_capacity_mut()),
            number: 0,
            is_known: false,
        };
        let (pid, pidfd) = clone::fork(make_children, ptr::from_mut(&mut starting).cast(), None)?;
        Ok(Self { pid, pidfd, socket, memory, number: 0 })
    }

    /// Ends it, and takes it from the process table, if it ends soon: it does, unless the kernel holds it up.
    pub fn end(self) {
        self.kill();
        let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&END_TIMEOUT));
        let _ = exit::reap(self.pid);
    }

    /// Kills it, also if it is stopped; a child of it that waits ends, too.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Has it make a child in this cgroup (version 2): once the last one runs its program or has ended, and not
    /// before. See [`made`](Self::made).
    ///
    /// # Errors
    /// It is gone, or cannot be asked.
    pub fn make(&mut self, birthplace: &OwnedFd) -> Result<(), Errno> {
        self.number = self.number.wrapping_add(1);
        // the last one has left it, or reads nothing in it any more
        self.memory.give_back();
        self.memory.clear_notes();
        self.send(Message::Make, &[birthplace.as_fd()])
    }

    /// The child that was made last, which may have ended; `None`: none was, for want of processes or since the cgroup is gone.
    /// This socket can be read when there is an answer.
    ///
    /// # Errors
    /// `AGAIN`: there is no answer yet. Otherwise the starter is gone.
    pub fn made(&self) -> Result<Option<Pid>, Errno> {
        let mut answer = [0; ANSWER_BYTES];
        match recv(&self.socket, &mut answer, RecvFlags::DONTWAIT) {
            Ok((ANSWER_BYTES, _)) => {
                let [a, b, c, d, e, f, g, h] = answer;
                match u32::from_le_bytes([a, b, c, d]) == self.number {
                    true => Ok(Pid::from_raw(i32::from_le_bytes([e, f, g, h]))),
                    // a second one about an earlier child
                    false => Err(Errno::AGAIN),
                }
            }
            Ok(_) => Err(Errno::PIPE),
            Err(Errno::INTR) => Err(Errno::AGAIN),
            Err(errno) => Err(errno),
        }
    }

    /// The child that is being made, if there is one yet, also if it has not got to saying so. It may have ended.
    pub fn child(&self) -> Option<Pid> {
        // SAFETY: it is aligned, and whoever writes to it does so at once.
        Pid::from_raw(unsafe { AtomicI32::from_ptr(self.memory.pid()) }.load(Ordering::SeqCst))
    }

    /// The last child has got what it was to become. Without that its end is that of a process which never ran its program.
    pub fn has_begun(&self) -> bool {
        // SAFETY: as in `child`.
        unsafe { AtomicI32::from_ptr(self.memory.is_begun()) }.load(Ordering::SeqCst) != 0
    }

    /// Has the child that waits become this, where it is: neither a birthplace nor a fault in the image is heeded. Returns where
    /// it reports, see [`Forked::outcome`](crate::Forked::outcome); `None`: this is too much for it, or the starter is gone. Then
    /// it waits on, or has ended.
    pub fn start(&mut self, image: &Image<'_>) -> Option<OwnedFd> {
        let (report, written) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        let mut content = Content { memory: &self.memory, used: Memory::CONTENT, files: Vec::new() };
        let shared = content.image(image, &written);
        let (used, files) = (content.used, content.files);
        self.memory.has_used(used);
        let shared = shared?;
        // SAFETY: each is open: the image borrows those who have them.
        let files: Vec<_> = files.into_iter().map(|file| unsafe { BorrowedFd::borrow_raw(file) }).collect();
        // SAFETY: it is aligned, in memory that is used for nothing else; the child reads it after the message.
        unsafe { self.memory.image().write(shared) };
        self.send(Message::Become, &files).ok().map(|()| report)
    }

    fn send(&self, message: Message, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(Errno::TOOBIG);
        }
        let [a, b, c, d] = self.number.to_le_bytes();
        let bytes: [u8; MESSAGE_BYTES] = [message as u8, a, b, c, d];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, flags).map(drop)
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        self.kill();
    }
}

impl AsFd for Starter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Memory that is shared with the starter and its children.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    /// So much of it was used by the last child, and may still be.
    used: usize,
}

// SAFETY: it is memory alone, of no thread in particular.
unsafe impl Send for Memory {}

impl Memory {
    /// More than the kernel takes of arguments and environment together, with their addresses: see execve(2). What is not used
    /// takes no memory.
    const BYTES: usize = 32 * 1024 * 1024;
    /// What is not given back after its use.
    const KEPT_BYTES: usize = 256 * 1024;

    fn new() -> Result<Self, Errno> {
        // SAFETY: a new mapping, where there is none.
        let start = unsafe {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE;
            mmap_anonymous(ptr::null_mut(), Self::BYTES, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        NonNull::new(start.cast()).map(|start| Self { start, used: 0 }).ok_or(Errno::NOMEM)
    }

    /// Where the image is. Before it are the id of the process and whether it has begun, and its content is behind it.
    const IMAGE: usize = 64;
    const CONTENT: usize = Self::IMAGE + size_of::<SharedWithChild>();

    fn pid(&self) -> *mut i32 {
        self.start.as_ptr().cast()
    }

    fn is_begun(&self) -> *mut i32 {
        // SAFETY: within the memory.
        unsafe { self.pid().add(1) }
    }

    fn image(&self) -> *mut SharedWithChild {
        // SAFETY: within the memory, which is aligned as a page.
        unsafe { self.start.as_ptr().add(Self::IMAGE).cast() }
    }

    fn clear_notes(&self) {
        for note in [self.pid(), self.is_begun()] {
            // SAFETY: it is aligned, and no child is being made.
            unsafe { AtomicI32::from_ptr(note) }.store(0, Ordering::SeqCst);
        }
    }

    /// So much of it is used now.
    fn has_used(&mut self, bytes: usize) {
        self.used = bytes;
    }

    /// Gives back what a large command has used. Only when its process has left this memory.
    fn give_back(&mut self) {
        if std::mem::take(&mut self.used) > Self::KEPT_BYTES {
            // SAFETY: nothing here refers to what is in it.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), Self::BYTES, Advice::LinuxRemove) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nothing here refers to it any more; a child has a mapping of its own.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), Self::BYTES) };
    }
}

/// What was put into the memory, and the descriptors that go with it: by their numbers in this list.
struct Content<'a> {
    memory: &'a Memory,
    used: usize,
    files: Vec<RawFd>,
}

impl Content<'_> {
    fn image(&mut self, image: &Image<'_>, report: &OwnedFd) -> Option<SharedWithChild> {
        let credentials = match image.credentials {
            Some(user) => {
                let groups = self.put(&user.groups)?;
                self.put(&[Ids { uid: user.uid, gid: user.gid, groups, group_count: user.groups.len() }])?
            }
            None => ptr::null(),
        };
        let private_directories = match image.private_directories {
            Some(bytes) => self.text(&private::options(bytes))?,
            None => ptr::null(),
        };
        let joins: Vec<_> = image.cgroups.joins.iter().map(|join| self.pass(join.as_raw_fd())).collect();
        let chowns: Vec<_> = image.chowns.iter().map(|chown| Chown { file: self.pass(chown.file), ..*chown }).collect();
        Some(SharedWithChild {
            candidates: self.texts(image.candidates)?,
            argv: self.texts(image.argv)?,
            environment: self.texts(image.environment)?,
            working_directory: self.text(image.working_directory)?,
            streams: image.streams.map(|stream| self.pass(stream)),
            terminal: image.terminal,
            joins: self.put(&joins)?,
            join_count: joins.len(),
            chowns: self.put(&chowns)?,
            chown_count: chowns.len(),
            // it has them
            rlimits: ptr::null(),
            credentials,
            private_directories,
            no_new_privileges: image.no_new_privileges,
            pending: ptr::null(),
            fault: None,
            report: self.pass(report.as_raw_fd()),
            executable: image.executable.map_or(-1, |file| self.pass(file)),
            failure: None,
        })
    }

    /// The number of a descriptor in the list.
    fn pass(&mut self, file: RawFd) -> RawFd {
        self.files.push(file);
        RawFd::try_from(self.files.len() - 1).unwrap_or(-1)
    }

    /// Strings as C wants them: pointers, then a null.
    fn texts(&mut self, texts: &[CString]) -> Option<*const *const c_char> {
        let mut pointers = Vec::with_capacity(texts.len() + 1);
        for text in texts {
            pointers.push(self.text(text)?);
        }
        pointers.push(ptr::null());
        self.put(&pointers)
    }

    fn text(&mut self, text: &CStr) -> Option<*const c_char> {
        self.put(text.to_bytes_with_nul()).map(<*const u8>::cast)
    }

    /// `None`: there is no room for them.
    fn put<T: Copy>(&mut self, items: &[T]) -> Option<*const T> {
        let start = self.used.next_multiple_of(align_of::<T>());
        let end = start.checked_add(size_of_val(items)).filter(|end| *end <= Memory::BYTES)?;
        self.used = end;
        // SAFETY: within the memory, aligned since that is aligned as a page, and used for nothing else.
        unsafe {
            let place = self.memory.start.as_ptr().add(start).cast::<T>();
            ptr::copy_nonoverlapping(items.as_ptr(), place, items.len());
            Some(place)
        }
    }
}
