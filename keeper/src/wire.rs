//! What the agent and its keeper say to each other, in messages of a Unix socket that keeps their boundaries (SOCK_SEQPACKET).
//!
//! A message is a byte for its kind and its fields: numbers with the least significant byte first, texts with their length
//! before them. Descriptors go with it. Whatever does not read as exactly one message is an error: neither side guesses.

use std::ffi::CString;
use std::fmt;
use std::time::Duration;

use telexec_spawn::exit::Exit;
use telexec_spawn::{Credentials, Step};

/// Another one cannot be spoken to.
pub const VERSION: u32 = 9;
/// A longer message is in a file (memfd_create(2)) that goes with it, as its last descriptor.
pub const MAX_INLINE_BYTES: usize = 32 * 1024;
/// Of a start: more than the kernel takes of arguments and environment together, see execve(2).
pub const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Of one list of texts: as many as there are bytes for their addresses in what the kernel takes.
pub const MAX_TEXTS: usize = 768 * 1024;
/// Of a message: streams, cgroups to enter, what is held, and a file.
pub const MAX_DESCRIPTORS: usize = 16;

/// What an agent asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// It serves.
    Ready,
    /// It ends because it was asked to.
    Stopping,
    /// What is to be started is in the file that goes with this.
    InFile {
        /// By which it is named.
        id: u64,
        /// The message in the file is so long.
        length: u64,
    },
    /// Start this.
    Start(Box<Start>),
    /// It need not end with the agent, nor with the keeper.
    Outlives(u64),
    /// It is not to run: kill it, if it has not become its program.
    Cancel(u64),
    /// Its exit status is known: take it from the process table, and close all that is held for it but the first descriptor.
    Release(u64),
    /// Close a descriptor that is held for it.
    Close {
        /// What was started.
        id: u64,
        /// The number of the descriptor.
        number: u8,
    },
    /// Hold nothing for it any more.
    Forget(u64),
    /// It ends so that the program which is on disk now takes its place.
    HandsOver,
    /// As [`Release`](Self::Release), but nothing is closed before it is released.
    Reap(u64),
    /// The next start is likely to be in the cgroup of this directory (version 2): make its process ahead, which waits there for
    /// that start. If there is to be none, the agent ends it. Without effect while another one waits.
    Prepare(CString),
    /// Send this signal, by its number, to the process whose descriptor (pidfd_open(2)) goes with this. For an agent that is
    /// another user than the keeper, and only if the process is in a cgroup that this agent may divide, or in a session or
    /// process group of a child.
    Signal(i32),
}

/// A process to be made. Its descriptors come in the order of these fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// By which all that follows names it; used once.
    pub id: u64,
    /// One descriptor, a terminal, for all three streams.
    pub terminal: bool,
    /// Without a terminal: there is a descriptor for standard input. There are always two for the others.
    pub stdin: bool,
    /// There is a file to run, in place of the candidates.
    pub executable: bool,
    /// There is a file of the agent's user, whose owner is to be the user that the process runs as.
    pub chown: bool,
    /// So many `cgroup.procs` files to enter.
    pub joins: u8,
    /// It does not end with the agent, if there is to be another one.
    pub survives: bool,
    /// So many descriptors are held for the next agent, which gets them with a process that survives.
    pub held: u8,
    /// The keeper kills it so long after its start, unless it has ended. In microseconds; what does not fit in 64 bits is as `None`:
    /// no limit.
    pub time_limit: Option<Duration>,
    /// It is not started after this, since the machine was booted: nobody waits for it any more. As `time_limit` otherwise.
    pub start_by: Option<Duration>,
    /// What this is for, as the agent says: for the log.
    pub purpose: CString,
    /// `None`: those of the keeper.
    pub credentials: Option<Credentials>,
    /// It has directories for temporary files of its own, of so many bytes together.
    pub private_directories: Option<u64>,
    /// Nothing that it executes gives it privileges.
    pub no_new_privileges: bool,
    /// See [`Image`](telexec_spawn::Image).
    pub candidates: Vec<CString>,
    /// Its arguments, from the zeroth on.
    pub argv: Vec<CString>,
    /// All of its environment.
    pub environment: Vec<CString>,
    /// Where it starts.
    pub working_directory: CString,
    /// The directory of the cgroup (version 2) to be born in; empty: that of the keeper.
    pub cgroup: CString,
}

impl Start {
    /// How many of its descriptors are streams.
    pub fn streams(&self) -> usize {
        if self.terminal { 1 } else { 2 + usize::from(self.stdin) }
    }

    /// How many descriptors come with it.
    pub fn descriptors(&self) -> usize {
        let files = usize::from(self.joins) + usize::from(self.held);
        let single = [self.executable, self.chown];
        self.streams() + single.into_iter().filter(|is_there| *is_there).count() + files
    }
}

/// What the keeper reports of what was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It runs its program.
    Started {
        /// What was started.
        id: u64,
        /// Its process.
        pid: i32,
    },
    /// It could not be started: nothing is left of it.
    NotStarted {
        /// What was to be started.
        id: u64,
        /// The step that failed.
        step: Step,
        /// Its error number.
        errno: i32,
    },
    /// It has ended, and is in the process table until it is released.
    Exited {
        /// What was started.
        id: u64,
        /// How it ended.
        exit: Exit,
        /// When, since the machine was booted, to the microsecond.
        at: Duration,
    },
    /// To a new agent: an earlier one has started this, and what is held for it goes with this.
    Held {
        /// What was started.
        id: u64,
        /// Its process; 0: it was released.
        pid: i32,
        /// Which of its descriptors go with this: the bit with the number of each.
        present: u16,
    },
    /// To a new agent: nothing else is held.
    AllHeld,
}

/// Not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a message of this protocol")
    }
}

impl std::error::Error for Malformed {}

impl Request {
    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let mut message = Vec::new();
        match self {
            Self::Ready => message.push(0),
            Self::Stopping => message.push(1),
            Self::InFile { id, length } => {
                number(&mut message, 2, *id);
                message.extend(length.to_le_bytes());
            }
            Self::Start(start) => {
                message.push(3);
                start.encode(&mut message);
            }
            Self::Outlives(id) => number(&mut message, 4, *id),
            Self::Cancel(id) => number(&mut message, 5, *id),
            Self::Release(id) => number(&mut message, 6, *id),
            Self::Close { id, number: which } => {
                number(&mut message, 7, *id);
                message.push(*which);
            }
            Self::Forget(id) => number(&mut message, 8, *id),
            Self::HandsOver => message.push(9),
            Self::Reap(id) => number(&mut message, 10, *id),
            Self::Signal(signal) => {
                message.push(11);
                message.extend(signal.to_le_bytes());
            }
            Self::Prepare(cgroup) => {
                message.push(12);
                text(&mut message, cgroup);
            }
        }
        message
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(message);
        let request = match fields.byte()? {
            0 => Self::Ready,
            1 => Self::Stopping,
            2 => Self::InFile { id: fields.u64()?, length: fields.u64()? },
            3 => Self::Start(Box::new(Start::decode(&mut fields)?)),
            4 => Self::Outlives(fields.u64()?),
            5 => Self::Cancel(fields.u64()?),
            6 => Self::Release(fields.u64()?),
            7 => Self::Close { id: fields.u64()?, number: fields.byte()? },
            8 => Self::Forget(fields.u64()?),
            9 => Self::HandsOver,
            10 => Self::Reap(fields.u64()?),
            11 => Self::Signal(fields.i32()?),
            12 => Self::Prepare(fields.text()?),
            _ => return Err(Malformed),
        };
        fields.end().map(|()| request)
    }
}

const TERMINAL: u8 = 1;
const STDIN: u8 = 2;
const NO_NEW_PRIVILEGES: u8 = 4;
const CREDENTIALS: u8 = 8;
const EXECUTABLE: u8 = 16;
const SURVIVES: u8 = 32;
const CHOWN: u8 = 64;
const PRIVATE_DIRECTORIES: u8 = 128;
/// In place of a time limit.
const NO_LIMIT: u64 = u64::MAX;

impl Start {
    fn encode(&self, message: &mut Vec<u8>) {
        message.extend(self.id.to_le_bytes());
        let flags = [
            (self.terminal, TERMINAL),
            (self.stdin, STDIN),
            (self.no_new_privileges, NO_NEW_PRIVILEGES),
            (self.credentials.is_some(), CREDENTIALS),
            (self.executable, EXECUTABLE),
            (self.survives, SURVIVES),
            (self.chown, CHOWN),
            (self.private_directories.is_some(), PRIVATE_DIRECTORIES),
        ];
        message.push(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
        message.extend([self.joins, self.held]);
        for time in [self.time_limit, self.start_by] {
            message.extend(time.map_or(NO_LIMIT, micros).to_le_bytes());
        }
        message.extend(self.private_directories.iter().flat_map(|bytes| bytes.to_le_bytes()));
        if let Some(credentials) = &self.credentials {
            let groups = credentials.groups.iter();
            let count = u32::try_from(groups.len()).unwrap_or(u32::MAX);
            for number in [credentials.uid, credentials.gid, count].iter().chain(groups) {
                message.extend(number.to_le_bytes());
            }
        }
        text(message, &self.purpose);
        text(message, &self.working_directory);
        text(message, &self.cgroup);
        for texts in [&self.candidates, &self.argv, &self.environment] {
            message.extend(u32::try_from(texts.len()).unwrap_or(u32::MAX).to_le_bytes());
            texts.iter().for_each(|one| text(message, one));
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (id, flags, joins, held) = (fields.u64()?, fields.byte()?, fields.byte()?, fields.byte()?);
        let has = |flag| flags & flag != 0;
        let mut time = || Ok(Some(fields.u64()?).filter(|micros| *micros != NO_LIMIT).map(Duration::from_micros));
        let (time_limit, start_by) = (time()?, time()?);
        let private_directories = if has(PRIVATE_DIRECTORIES) { Some(fields.u64()?) } else { None };
        let credentials = match has(CREDENTIALS) {
            true => {
                let (uid, gid, count) = (fields.u32()?, fields.u32()?, fields.u32()?);
                let groups = fields.several(count, Fields::u32)?;
                Some(Credentials { name: String::new(), uid, gid, groups })
            }
            false => None,
        };
        let (purpose, working_directory, cgroup) = (fields.text()?, fields.text()?, fields.text()?);
        let mut texts = || {
            let count = fields.u32()?;
            fields.several(count, Fields::text)
        };
        let [candidates, argv, environment] = [texts()?, texts()?, texts()?];
        let start = Self {
            id,
            terminal: has(TERMINAL),
            stdin: has(STDIN),
            executable: has(EXECUTABLE),
            chown: has(CHOWN),
            joins,
            survives: has(SURVIVES),
            held,
            time_limit,
            start_by,
            purpose,
            credentials,
            private_directories,
            no_new_privileges: has(NO_NEW_PRIVILEGES),
            candidates,
            argv,
            environment,
            working_directory,
            cgroup,
        };
        if start.descriptors() >= MAX_DESCRIPTORS || (start.terminal && start.stdin) {
            return Err(Malformed);
        }
        Ok(start)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn number(message: &mut Vec<u8>, kind: u8, number: u64) {
    message.push(kind);
    message.extend(number.to_le_bytes());
}

fn text(message: &mut Vec<u8>, text: &CString) {
    let bytes = text.as_bytes();
    message.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    message.extend(bytes);
}

/// The longest report.
pub const REPORT_BYTES: usize = 1 + 8 + 2 + 4 + 4 * 8;

impl Report {
    /// As it is sent: into this buffer, since it may be sent where no memory can be had. Returns what is used of it.
    pub fn encode<'a>(&self, buffer: &'a mut [u8; REPORT_BYTES]) -> &'a [u8] {
        let mut length = 0;
        let mut put = |bytes: &[u8]| {
            for (to, from) in buffer.iter_mut().skip(length).zip(bytes) {
                *to = *from;
            }
            length += bytes.len();
        };
        match self {
            Self::Started { id, pid } => {
                put(&[0]);
                put(&id.to_le_bytes());
                put(&pid.to_le_bytes());
            }
            Self::NotStarted { id, step, errno } => {
                put(&[1]);
                put(&id.to_le_bytes());
                put(&[*step as u8]);
                put(&errno.to_le_bytes());
            }
            Self::Exited { id, exit, at } => {
                put(&[2]);
                put(&id.to_le_bytes());
                put(&[u8::from(exit.exited), u8::from(exit.core_dumped)]);
                put(&exit.status.to_le_bytes());
                for time in [exit.user_time, exit.system_time, *at] {
                    put(&micros(time).to_le_bytes());
                }
                put(&exit.max_rss_bytes.to_le_bytes());
            }
            Self::Held { id, pid, present } => {
                put(&[3]);
                put(&id.to_le_bytes());
                put(&pid.to_le_bytes());
                put(&present.to_le_bytes());
            }
            Self::AllHeld => put(&[4]),
        }
        buffer.get(..length).unwrap_or_default()
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(message);
        let report = match fields.byte()? {
            0 => Self::Started { id: fields.u64()?, pid: fields.i32()? },
            1 => {
                let id = fields.u64()?;
                let step = Step::from_number(fields.byte()?).ok_or(Malformed)?;
                Self::NotStarted { id, step, errno: fields.i32()? }
            }
            2 => {
                let id = fields.u64()?;
                let (exited, core_dumped) = (fields.flag()?, fields.flag()?);
                let status = fields.i32()?;
                let mut time = || fields.u64().map(Duration::from_micros);
                let (user_time, system_time, at) = (time()?, time()?, time()?);
                let max_rss_bytes = fields.u64()?;
                let exit = Exit { exited, status, core_dumped, user_time, system_time, max_rss_bytes };
                Self::Exited { id, exit, at }
            }
            3 => Self::Held { id: fields.u64()?, pid: fields.i32()?, present: fields.u16()? },
            4 => Self::AllHeld,
            _ => return Err(Malformed),
        };
        fields.end().map(|()| report)
    }
}

/// What is left of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, left) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<CString, Malformed> {
        let length = usize::try_from(self.u32()?).map_err(|_| Malformed)?;
        CString::new(self.take(length)?).map_err(|_| Malformed)
    }

    /// Each takes four bytes at least: no more memory is set aside than the message could fill.
    fn several<T>(&mut self, count: u32, one: impl Fn(&mut Self) -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
        let count = usize::try_from(count).map_err(|_| Malformed)?;
        if count > MAX_TEXTS || count > self.0.len() / 4 {
            return Err(Malformed);
        }
        (0..count).map(|_| one(self)).collect()
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests;
