//! A socket with messages and the descriptors that go with them.

use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::given::Given;
use crate::wire::{MAX_BYTES, MAX_DESCRIPTORS, MAX_INLINE_BYTES, Malformed, REPORT_BYTES, Report, Request, Start};

/// As many as one message takes: SCM_MAX_FD, see unix(7).
const MAX_PASSED: usize = 253;

/// One end of it.
#[derive(Debug)]
pub struct Channel {
    socket: Given,
}

/// What was received.
#[derive(Debug)]
pub enum Received<T> {
    /// A message, and its descriptors.
    Message(T, Vec<Given>),
    /// The other side is gone.
    End,
}

/// Why nothing was received.
#[derive(Debug)]
pub enum ReceiveError {
    /// The system does not give it; `WouldBlock`: there is nothing now.
    Io(io::Error),
    /// The other side does not hold to the protocol.
    Malformed,
}

impl From<Errno> for ReceiveError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<Malformed> for ReceiveError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl Channel {
    /// Both ends; neither is inherited.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self::new(one), Self::new(other)))
    }

    /// An end that was inherited.
    pub fn new(socket: OwnedFd) -> Self {
        // what waits in it is closed with it
        Self { socket: socket.into() }
    }

    /// Sends a request with these descriptors, and waits until there is room for it.
    ///
    /// # Errors
    /// The other side is gone, or there is no memory.
    pub fn request(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let message = request.encode();
        if message.len() <= MAX_INLINE_BYTES {
            return Ok(self.send(&message, descriptors, SendFlags::NOSIGNAL)?);
        }
        let Request::Start(start) = request else { return Err(io::ErrorKind::InvalidInput.into()) };
        let file = in_file(&message)?;
        let length = u64::try_from(message.len()).unwrap_or(u64::MAX);
        let descriptors: Vec<_> = descriptors.iter().copied().chain([file.as_fd()]).collect();
        Ok(self.send(&Request::InFile { id: start.id, length }.encode(), &descriptors, SendFlags::NOSIGNAL)?)
    }

    /// Sends a request that is not long with these descriptors, unless there is no room for it now.
    ///
    /// # Errors
    /// `WouldBlock`; or the other side is gone.
    pub fn try_request(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        Ok(self.send(&request.encode(), descriptors, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
    }

    /// Sends a report with these descriptors, unless there is no room for it now.
    ///
    /// # Errors
    /// `AGAIN`; or the other side is gone.
    pub(crate) fn report(&self, report: &Report, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut buffer = [0; REPORT_BYTES];
        self.send(report.encode(&mut buffer), descriptors, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>], flags: SendFlags) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::TOOBIG);
        }
        rustix::io::retry_on_intr(|| sendmsg(self.socket.as_fd(), &[IoSlice::new(message)], &mut ancillary, flags))
            .map(drop)
    }

    /// The next request, without waiting for it.
    ///
    /// # Errors
    /// There is none now, or it is not one.
    pub(crate) fn next_request(&self) -> Result<Received<Request>, ReceiveError> {
        let mut buffer = [0; MAX_INLINE_BYTES];
        let Received::Message(length, mut descriptors) = self.receive(&mut buffer, RecvFlags::DONTWAIT)? else {
            return Ok(Received::End);
        };
        match Request::decode(buffer.get(..length).unwrap_or_default())? {
            Request::InFile { id, length } => {
                let Some(file) = descriptors.pop() else {
                    // there was no room for it: a start without its descriptors is refused for that
                    let start = Start { id, ..Start::default() };
                    return Ok(Received::Message(Request::Start(Box::new(start)), Vec::new()));
                };
                match Request::decode(&from_file(&file, length)?)? {
                    start @ Request::Start(_) => Ok(Received::Message(start, descriptors)),
                    _ => Err(ReceiveError::Malformed),
                }
            }
            request => Ok(Received::Message(request, descriptors)),
        }
    }

    /// The next report, which is waited for.
    ///
    /// # Errors
    /// The socket fails, or it is not one.
    pub fn next_report(&self) -> Result<Received<Report>, ReceiveError> {
        self.receive_report(RecvFlags::empty())
    }

    /// The next report, without waiting for it.
    ///
    /// # Errors
    /// There is none now, or it is not one.
    pub fn try_next_report(&self) -> Result<Received<Report>, ReceiveError> {
        self.receive_report(RecvFlags::DONTWAIT)
    }

    fn receive_report(&self, flags: RecvFlags) -> Result<Received<Report>, ReceiveError> {
        let mut buffer = [0; REPORT_BYTES];
        match self.receive(&mut buffer, flags)? {
            Received::Message(length, descriptors) => {
                Ok(Received::Message(Report::decode(buffer.get(..length).unwrap_or_default())?, descriptors))
            }
            Received::End => Ok(Received::End),
        }
    }

    fn receive(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<Received<usize>, ReceiveError> {
        // for all that can come: what has no room the kernel closes, and that may take as long as the other side likes
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(self.socket.as_fd(), &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)
        })?;
        let mut descriptors: Vec<Given> = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights.map(Given::from));
            }
        }
        if received.flags.contains(ReturnFlags::TRUNC) || descriptors.len() > MAX_DESCRIPTORS {
            return Err(ReceiveError::Malformed);
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            // some of them had no room: the rest alone mean something else
            descriptors.clear();
        }
        // no message is empty
        Ok(if received.bytes == 0 { Received::End } else { Received::Message(received.bytes, descriptors) })
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

fn in_file(message: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("telexec-start", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(message)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// Reads a file in memory, which no longer changes: any other one might not answer.
fn from_file(file: &Given, length: u64) -> Result<Vec<u8>, ReceiveError> {
    let length = usize::try_from(length).map_err(|_| ReceiveError::Malformed)?;
    if length > MAX_BYTES || !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(ReceiveError::Malformed);
    }
    let mut message = vec![0; length];
    let mut filled = 0;
    while let Some(rest) = message.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, filled as u64)? {
            0 => return Err(ReceiveError::Malformed),
            read => filled += read,
        }
    }
    Ok(message)
}
