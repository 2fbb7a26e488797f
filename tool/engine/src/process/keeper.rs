//! A keeper: the process whose children commands are, where that is not this one. See the crate `telexec-keeper`.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::SocketType;
use rustix::net::sockopt::{socket_peercred, socket_type};
use rustix::process::{Pid, geteuid};
use telexec_executor::Signal;
use telexec_keeper::channel::{Channel, ReceiveError, Received};
use telexec_keeper::given::Given;
use telexec_keeper::wire::{Report, Request, Start, VERSION};
use telexec_spawn::Step;
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::control;
use super::kept_child::{KeptChild, State};
use super::responding::{Responding, is_stopped, stays};
use crate::boot_time::boot_time;
use crate::lock::{lock, wait};
use crate::wait::RETRY_DELAY;

/// Until it takes a start: less than what waits for that does, before it gives up.
const START_LIMIT: Duration = Duration::from_secs(12);

/// The keeper of this process, if it has one: it starts what an engine runs, and knows how that ended. See
/// [`LocalConfig::keeper`](crate::LocalConfig::keeper). For one engine.
#[derive(Clone, Debug)]
pub struct Keeper {
    channel: Arc<Channel>,
}

impl Keeper {
    /// The one that has started this process; `None`: none has. To be called once.
    ///
    /// # Errors
    /// It speaks another version, or what it has passed is no such socket.
    pub fn inherited() -> io::Result<Option<Self>> {
        let Some(value) = std::env::var_os(telexec_keeper::VARIABLE) else { return Ok(None) };
        let value = value.to_string_lossy();
        let (socket, version) = value.split_once(':').unwrap_or_default();
        if version != VERSION.to_string() {
            return Err(io::Error::other(format!(
                "the keeper is of another version: stop it, and start telexecd again ({value:?}, not version {VERSION})"
            )));
        }
        let wrong = || io::Error::other(format!("{}: is not what a keeper sets", telexec_keeper::VARIABLE));
        let socket: RawFd = socket.parse().ok().filter(|number| *number > 2).ok_or_else(wrong)?;
        // SAFETY: it is positive, and borrowed for this question alone, which one that is not open answers with an error.
        let kind = socket_type(unsafe { BorrowedFd::borrow_raw(socket) });
        if kind != Ok(SocketType::SEQPACKET) {
            return Err(wrong());
        }
        // SAFETY: it is open; the keeper has made it for this process alone, and it is taken once.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        Ok(Some(Self { channel: Arc::new(Channel::new(socket)) }))
    }

    /// Says that this process serves, so that it is started again if it crashes.
    pub fn ready(&self) {
        self.ask(&Request::Ready);
    }

    /// Says that this process ends since it was asked to.
    pub fn stopping(&self) {
        self.ask(&Request::Stopping);
    }

    /// Says that this process ends so that the program on disk takes its place, and continues what it runs.
    pub fn hands_over(&self) {
        self.ask(&Request::HandsOver);
    }

    /// Its process, if that can be told.
    pub(crate) fn pid(&self) -> Option<Pid> {
        socket_peercred(&*self.channel).ok().map(|peer| peer.pid)
    }

    /// Its process; 0: not known.
    pub fn process_id(&self) -> i32 {
        self.pid().map_or(0, |pid| pid.as_raw_nonzero().get())
    }

    /// The user that it runs as: also what it starts, where nothing else is asked for.
    pub(crate) fn uid(&self) -> u32 {
        socket_peercred(&*self.channel).map_or_else(|_| geteuid().as_raw(), |peer| peer.uid.as_raw())
    }

    /// It runs as another user, and does as root what this process may not.
    pub fn is_of_another_user(&self) -> bool {
        self.uid() != geteuid().as_raw()
    }

    /// It has not read all that it was asked. SIOCOUTQ is as in tcp(7); of a Unix socket, it is the memory that this takes.
    fn has_unread(&self) -> bool {
        // SAFETY: the request writes one int.
        let unread = unsafe { ioctl(&*self.channel, Getter::<{ libc::TIOCOUTQ as Opcode }, libc::c_int>::new()) };
        unread.is_ok_and(|bytes| bytes > 0)
    }

    /// Whether it is stopped, or does not read what it is asked, for a second. Blocks.
    pub fn is_stuck(&self) -> bool {
        stays(|| self.has_unread() || self.pid().is_some_and(is_stopped))
    }

    /// Waits until there is room. One that is gone is seen elsewhere.
    fn ask(&self, request: &Request) {
        let _ = self.channel.request(request, &[]);
    }
}

/// What a keeper has of one engine.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) keeper: Keeper,
    children: Mutex<HashMap<u64, Arc<KeptChild>>>,
    next: AtomicU64,
    /// For what the keeper had no room for, with the descriptor that goes with it: a thread waits for that.
    later: mpsc::Sender<(Request, Option<OwnedFd>)>,
    /// How many of those there are: nothing overtakes them.
    queued: Arc<AtomicUsize>,
    /// Cancelled when the keeper is gone.
    pub(crate) lost: CancellationToken,
    pub(crate) responding: Responding,
}

/// An execution that an earlier agent has left with the keeper.
pub(crate) struct Left {
    pub(crate) child: Arc<KeptChild>,
    /// Its main process; `None`: it is reaped.
    pub(crate) main: Option<Pid>,
    pub(crate) state: HeldState,
    /// What is held for it, by numbers.
    pub(crate) files: BTreeMap<u8, OwnedFd>,
}

/// What the keeper holds for one execution. Dropping it has that forgotten, unless it is an earlier agent's that nobody has
/// claimed: then it is for the agent after this one.
#[derive(Debug)]
pub(crate) struct HeldState {
    kept: Arc<Kept>,
    id: u64,
    is_claimed: AtomicBool,
}

impl HeldState {
    pub(crate) fn new(kept: &Arc<Kept>, child: &KeptChild) -> Self {
        Self { kept: Arc::clone(kept), id: child.id, is_claimed: AtomicBool::new(true) }
    }

    /// This agent continues it.
    pub(crate) fn claim(&self) {
        self.is_claimed.store(true, Ordering::Relaxed);
    }

    /// Closes the descriptor with this number.
    pub(crate) fn close(&self, number: u8) {
        if self.is_claimed.load(Ordering::Relaxed) {
            self.kept.ask(Request::Close { id: self.id, number });
        }
    }
}

impl Drop for HeldState {
    fn drop(&mut self) {
        if self.is_claimed.load(Ordering::Relaxed) {
            self.kept.ask(Request::Forget(self.id));
        }
    }
}

impl Kept {
    /// Waits for the keeper to hand over what earlier agents have left. In a tokio runtime, which takes what it reports.
    ///
    /// # Errors
    /// There is no thread for what has to wait, or the keeper is gone.
    pub(crate) fn new(keeper: Keeper) -> io::Result<(Arc<Self>, Vec<Left>)> {
        let (later, requests) = mpsc::channel::<(Request, Option<OwnedFd>)>();
        let (slow, queued) = (keeper.clone(), Arc::new(AtomicUsize::new(0)));
        let to_send = Arc::clone(&queued);
        let ask_all = move || {
            for (request, file) in requests {
                let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
                let _ = slow.channel.request(&request, &files);
                to_send.fetch_sub(1, Ordering::AcqRel);
            }
        };
        std::thread::Builder::new().name("telexec-later".into()).spawn(ask_all)?;
        let this = Arc::new(Self {
            keeper,
            later,
            queued,
            children: Mutex::default(),
            next: AtomicU64::new(1),
            lost: CancellationToken::new(),
            responding: Responding::new(),
        });
        let left = this.receive_left()?;
        let socket = control::watch(this.keeper.channel.as_fd().try_clone_to_owned()?)?;
        tokio::spawn(Arc::clone(&this).follow(socket));
        Ok((this, left))
    }

    fn receive_left(self: &Arc<Self>) -> io::Result<Vec<Left>> {
        let mut left = Vec::new();
        loop {
            match self.keeper.channel.next_report() {
                Ok(Received::Message(Report::AllHeld, _)) => return Ok(left),
                Ok(Received::Message(Report::Held { id, pid, present }, files)) => {
                    self.next.fetch_max(id.saturating_add(1), Ordering::Relaxed);
                    let numbers = (0..16).filter(|number| present & (1 << number) != 0);
                    if files.len() != present.count_ones() as usize {
                        warn!("what an earlier agent has left running is not continued, for want of descriptors");
                        continue;
                    }
                    let files = numbers.zip(files.into_iter().filter_map(Given::into_inner)).collect();
                    let main = Pid::from_raw(pid);
                    let child = self.insert(id, main.map_or(State::Unwanted, State::Running));
                    left.push(Left {
                        child,
                        main,
                        state: HeldState { kept: Arc::clone(self), id, is_claimed: AtomicBool::new(false) },
                        files,
                    });
                }
                Ok(Received::Message(report, _)) => self.take(report),
                Ok(Received::End) | Err(_) => return Err(io::Error::other("the keeper is gone")),
            }
        }
    }

    fn insert(&self, id: u64, state: State) -> Arc<KeptChild> {
        let child = Arc::new(KeptChild::new(id, state));
        lock(&self.children).insert(id, Arc::clone(&child));
        child
    }

    fn take(&self, report: Report) {
        let id = match report {
            Report::Started { id, .. } | Report::NotStarted { id, .. } | Report::Exited { id, .. } => id,
            // only at the beginning
            Report::Held { .. } | Report::AllHeld => return,
        };
        let child = lock(&self.children).get(&id).cloned();
        child.into_iter().for_each(|child| child.take(report));
    }

    /// A child that is about to be made.
    pub(crate) fn expect(&self) -> Arc<KeptChild> {
        self.insert(self.next.fetch_add(1, Ordering::Relaxed), State::Expected)
    }

    /// Returns when the keeper does not respond, and has reported nothing since there were so many reports.
    pub(crate) async fn does_not_respond(&self, reports: u64) {
        self.responding.lost(reports, || self.has_unread()).await;
    }

    /// It has not read all that it was asked.
    pub(crate) fn has_unread(&self) -> bool {
        self.keeper.has_unread()
    }

    /// Makes the child; returns once it runs its program.
    ///
    /// # Errors
    /// The step that failed and its error number; nothing of it is left.
    pub(crate) fn start(
        &self,
        child: &KeptChild,
        start: Start,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Pid, (Step, Errno)> {
        let mut state = lock(&child.state);
        if matches!(*state, State::Unwanted) {
            return Err((Step::Clone, Errno::CANCELED));
        }
        let start_by = Some(boot_time().saturating_add(START_LIMIT));
        let request = Request::Start(Box::new(Start { id: child.id, start_by, ..start }));
        let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        self.keeper.channel.request(&request, descriptors).map_err(|error| (Step::Clone, errno(error)))?;
        loop {
            match *state {
                State::Running(pid) | State::Ended(pid, _) => return Ok(pid),
                State::NotStarted(step, errno) => return Err((step, errno)),
                State::Expected | State::Unwanted => state = wait(&child.changed, state),
            }
        }
    }

    /// Keeps it from being made, or kills it on its way to its program.
    pub(crate) fn cancel(&self, child: &KeptChild) {
        if let Ok(mut state) = child.state.try_lock()
            && matches!(*state, State::Expected)
        {
            *state = State::Unwanted;
        }
        // it is repeated, where there is no room now
        let _ = self.keeper.channel.try_request(&Request::Cancel(child.id), &[]);
    }

    /// Without waiting.
    fn ask(&self, request: Request) {
        // there is no descriptor that could be wanting
        let _ = self.ask_with(request, None);
    }

    /// The same, with a descriptor.
    ///
    /// # Errors
    /// The keeper is gone, or descriptors have run out.
    fn ask_with(&self, request: Request, file: Option<&OwnedFd>) -> io::Result<()> {
        if self.queued.load(Ordering::Acquire) == 0 {
            let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
            match self.keeper.channel.try_request(&request, &files) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent,
            }
        }
        let file = file.map(OwnedFd::try_clone).transpose()?;
        self.queued.fetch_add(1, Ordering::AcqRel);
        let _ = self.later.send((request, file));
        Ok(())
    }

    /// Whether it has this process as a child that is not released.
    pub(crate) fn has_child(&self, pid: i32) -> bool {
        let children: Vec<_> = lock(&self.children).values().cloned().collect();
        children.iter().any(|child| child.pid() == Pid::from_raw(pid))
    }

    /// Sends a signal to the process whose descriptor it is, without waiting.
    ///
    /// # Errors
    /// It is gone, or descriptors have run out.
    pub(crate) fn signal(&self, pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
        self.ask_with(Request::Signal(signal.number()), Some(pidfd))
    }

    /// The next start is likely to be in this cgroup. Without waiting: it need not be known.
    pub(crate) fn prepare(&self, cgroup: CString) {
        let _ = self.keeper.channel.try_request(&Request::Prepare(cgroup), &[]);
    }

    /// It need not end with this process.
    pub(crate) fn outlives(&self, child: &KeptChild) {
        self.ask(Request::Outlives(child.id));
    }

    /// How it ended is known, and what is held for it is still needed.
    pub(crate) fn reap(&self, child: &KeptChild) {
        self.ask(Request::Reap(child.id));
    }

    /// How it ended is known, or nobody wants to know.
    pub(crate) fn release(&self, child: &KeptChild) {
        lock(&self.children).remove(&child.id);
        self.ask(Request::Release(child.id));
    }

    /// Takes what it reports, until it is gone.
    async fn follow(self: Arc<Self>, socket: AsyncFd<OwnedFd>) {
        while self.take_reports(&socket).await {}
        error!("the keeper is gone: it started all commands, and knew how they ended");
        self.lost.cancel();
        let left: Vec<_> = lock(&self.children).drain().map(|(_, child)| child).collect();
        for child in left {
            // it runs on, until somebody ends it
            let Some(pidfd) = child.lose() else { continue };
            tokio::spawn(async move {
                let watched = loop {
                    match pidfd.try_clone().and_then(control::watch) {
                        Ok(watched) => break watched,
                        // descriptors have run out
                        Err(_) => tokio::time::sleep(RETRY_DELAY).await,
                    }
                };
                control::ended(&watched).await;
                child.end_unknown();
            });
        }
    }

    /// Takes what was reported, once that is something. False: the keeper is gone.
    async fn take_reports(&self, socket: &AsyncFd<OwnedFd>) -> bool {
        // an error here can only be that the runtime is shutting down, and with it this task
        let Ok(mut ready) = socket.readable().await else { return std::future::pending().await };
        loop {
            match self.keeper.channel.try_next_report() {
                Ok(Received::Message(report, _)) => {
                    self.responding.reported();
                    self.take(report);
                }
                Err(ReceiveError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    return true;
                }
                Ok(Received::End) | Err(_) => return false,
            }
            tokio::task::coop::consume_budget().await;
        }
    }
}
