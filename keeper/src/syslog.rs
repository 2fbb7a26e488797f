//! Starts, sent to the system's log by a socket of this process's own: standard error is the agent's too, which could shut it down.

use std::ffi::{CStr, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};
use rustix::process::Pid;

use crate::log;

/// LOG_AUTHPRIV and LOG_INFO, see syslog(3).
const PRIORITY: u32 = 10 << 3 | 6;
/// Of what the agent says that a start is for.
const MAX_PURPOSE_BYTES: usize = 384;

/// A log of starts, at a Unix socket that takes messages as of syslog(3). Dropping it reports what it has not taken.
pub(crate) struct StartLog {
    address: SocketAddrUnix,
    /// `None`: there was none to be had yet.
    socket: Option<OwnedFd>,
    /// How many starts it has not taken since the last one that it has.
    lost: u64,
}

impl StartLog {
    /// `lost`: how many it has not taken before. `None`: the path is too long for a socket, which is logged.
    pub(crate) fn new(path: &OsStr, lost: u64) -> Option<Self> {
        let address = SocketAddrUnix::new(path.as_bytes());
        let address = address.inspect_err(|error| log::line(&format!("starts are not logged: {error}")));
        Some(Self { address: address.ok()?, socket: None, lost })
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Logs a start, if the log takes that now: nobody who does not read it holds up the rest. The purpose is quoted.
    pub(crate) fn start(&mut self, pid: Pid, uid: u32, purpose: &CStr) {
        let purpose = purpose.to_bytes();
        let purpose = String::from_utf8_lossy(purpose.get(..MAX_PURPOSE_BYTES).unwrap_or(purpose));
        let start = format!("start of process {} as uid {uid} for {purpose:?}", pid.as_raw_nonzero());
        if let Err(error) = self.report_lost().and_then(|()| self.send(&start)) {
            self.lost += 1;
            if self.lost == 1 {
                log::line(&format!("cannot log the start of process {}: {error}", pid.as_raw_nonzero()));
            }
        }
    }

    fn report_lost(&mut self) -> Result<(), Errno> {
        if self.lost > 0 {
            self.send(&format!("{} starts were not logged", self.lost))?;
            self.lost = 0;
        }
        Ok(())
    }

    fn send(&mut self, text: &str) -> Result<(), Errno> {
        let message = format!("<{PRIORITY}>telexec-keeper[{}]: {text}", std::process::id());
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?,
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendto(self.socket.insert(socket), message.as_bytes(), flags, &self.address).map(drop)
    }
}

impl Drop for StartLog {
    fn drop(&mut self) {
        if self.report_lost().is_err() {
            log::line(&format!("{} starts were not logged", self.lost));
        }
    }
}
