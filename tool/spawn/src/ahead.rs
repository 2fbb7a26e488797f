//! A child that is made ahead of time, before it is known what it becomes: it takes the first steps, and waits.
//!
//! It has a copy of its parent's memory, as that of [`fork`](crate::fork), but for one part that both share. There its parent
//! puts what it becomes, and sends it the descriptors.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use rustix::io::{Errno, IoSlice};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::child::{Ids, MAX_PASSED, SharedWithChild, Waiting, wait_and_become_program};
use crate::{Chown, Image, clone, private, rlimits};

/// A process that waits for what it becomes. Dropping this ends it, at latest when it is killed; it is its parent's to reap.
#[derive(Debug)]
pub struct Waiter {
    socket: OwnedFd,
    report: OwnedFd,
    memory: Memory,
}

/// Makes such a process, which is to have these limits, in this cgroup (version 2) if one is given. As [`fork`](crate::fork):
/// only by the one thread of this process that makes any.
///
/// # Errors
/// There is no process, for want of what this error number says.
pub fn fork_ahead(
    birthplace: Option<&OwnedFd>,
    rlimits: &[libc::rlimit64; rlimits::KINDS],
) -> Result<(Waiter, rustix::process::Pid, OwnedFd), Errno> {
    let memory = Memory::new()?;
    let (report, written) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut waiting = Waiting {
        socket: theirs.as_raw_fd(),
        report: written.as_raw_fd(),
        rlimits: rlimits.as_ptr(),
        image: memory.start.as_ptr().cast(),
    };
    let (pid, pidfd) = clone::fork(wait_and_become_program, ptr::from_mut(&mut waiting).cast(), birthplace)?;
    Ok((Waiter { socket, report, memory }, pid, pidfd))
}

impl Waiter {
    /// Has it become this, in the cgroup where it is: a birthplace in the image is not heeded, nor is a fault. Returns where it
    /// reports, see [`Forked::outcome`](crate::Forked::outcome); `None`: it has ended, or this is too much for it. Then it does not run its program.
    pub fn become_program(self, image: &Image<'_>) -> Option<OwnedFd> {
        let mut content = Content { memory: &self.memory, used: size_of::<SharedWithChild>(), files: Vec::new() };
        let shared = content.image(image)?;
        let files: Vec<_> = content.files;
        if files.len() > MAX_PASSED {
            return None;
        }
        // SAFETY: it is at the start of the memory, which is aligned as a page; the child waits, and reads it later.
        unsafe { self.memory.start.as_ptr().cast::<SharedWithChild>().write(shared) };
        // SAFETY: the caller has them open while it has the image.
        let files: Vec<_> = files.into_iter().map(|file| unsafe { BorrowedFd::borrow_raw(file) }).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
            return None;
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(&[0])], &mut ancillary, flags).ok()?;
        Some(self.report)
    }
}

/// Memory that parent and child share.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
}

// SAFETY: it is memory alone, of no thread in particular.
unsafe impl Send for Memory {}

impl Memory {
    /// Enough for what most commands have; pages that are not used take none.
    const BYTES: usize = 256 * 1024;

    fn new() -> Result<Self, Errno> {
        // SAFETY: a new mapping, where there is none.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), Self::BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
        }?;
        NonNull::new(start.cast()).map(|start| Self { start }).ok_or(Errno::NOMEM)
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
    fn image(&mut self, image: &Image<'_>) -> Option<SharedWithChild> {
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
        let chowns: Vec<_> =
            image.chowns.iter().map(|chown| Chown { file: self.pass(chown.file), ..*chown }).collect();
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
            report: -1,
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
