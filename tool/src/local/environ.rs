//! What processes' environments say, read by threads of their own.
//!
//! A process can make reading its memory take for ever, by what it has mapped there: a file on a dead network file system, for
//! example. `environ`, `cmdline` and `maps` below /proc/PID are its memory; `stat`, `status` and `cgroup` are not. So each
//! read has a limit, and what could not be read is not read again until it answers, or runs another program. Nothing
//! follows from it: such a process carries no key, and is whose its session, its parents or its cgroup say.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::thread::gettid;
use tracing::warn;

use super::processes::{Process, read_all, read_file};
use crate::Workers;

/// The variable that every process of an execution inherits; its value is the execution's key.
pub(super) const MARKER: &str = "TELEXEC_EXECUTION_KEY";

/// How long one environment may take.
const LIMIT: Duration = Duration::from_millis(200);
/// How many times that for a reader which waits for nothing but a processor.
const PATIENCE: u32 = 10;
/// What was unclear is read again so many times: an execve(2) is over by then.
const SETTLE_READS: usize = 20;
/// Readers that are there from the start.
const READERS: usize = 2;
/// Readers that may be stuck; where so many are, no environment is read.
const MAX_READERS: usize = 16;

/// The memory of a process, at one time: it has another one when it runs another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Memory {
    pub(super) pid: i32,
    start_ticks: u64,
    environ_address: u64,
}

impl Memory {
    pub(super) fn of(process: &Process) -> Self {
        let Process { pid, start_ticks, environ_address, .. } = *process;
        Self { pid, start_ticks, environ_address }
    }
}

/// What a process's environment says.
#[derive(Debug)]
enum Marker {
    /// This key, or none.
    Is(Option<String>),
    /// Nothing: it is in the midst of an execve(2), or has no environment at all.
    Unclear,
}

/// Reads environments.
pub(super) struct Environs {
    readers: Workers,
    stuck: Arc<Stuck>,
}

/// What a reader is stuck in.
type Stuck = Mutex<HashSet<Memory>>;

impl Environs {
    /// # Errors
    /// Its first threads cannot be made.
    pub(super) fn new() -> io::Result<Self> {
        let readers = Workers::new("telexec-environ", READERS, MAX_READERS)?;
        Ok(Self { readers, stuck: Arc::default() })
    }

    /// Gives `note` the keys in the environments of these processes, each as soon as it was read; returns those that said
    /// nothing, for [`Self::settle`].
    ///
    /// # Errors
    /// They cannot be read now, for want of descriptors or memory.
    pub(super) fn keys(&self, of: Vec<Memory>, mut note: impl FnMut(i32, String)) -> io::Result<Vec<Memory>> {
        let mut unclear = Vec::new();
        self.read(of, |memory, marker| match marker {
            Marker::Is(Some(key)) => note(memory.pid, key),
            Marker::Is(None) => {}
            Marker::Unclear => unclear.push(memory),
        })?;
        Ok(unclear)
    }

    /// Reads again what said nothing, until it does, or hardly will.
    ///
    /// # Errors
    /// As [`Self::keys`].
    pub(super) fn settle(&self, mut unclear: Vec<Memory>, mut note: impl FnMut(i32, String)) -> io::Result<()> {
        for _ in 0..SETTLE_READS {
            if unclear.is_empty() {
                break;
            }
            thread::sleep(Duration::from_micros(100));
            unclear = self.keys(unclear, &mut note)?;
        }
        Ok(())
    }

    fn read(&self, mut of: Vec<Memory>, mut note: impl FnMut(Memory, Marker)) -> io::Result<()> {
        loop {
            let stuck = lock(&self.stuck).clone();
            of.retain(|memory| !stuck.contains(memory));
            if of.is_empty() || stuck.len() >= MAX_READERS {
                return Ok(());
            }
            let reading = Asker(Arc::new(Reading::new(of, Arc::clone(&self.stuck))));
            let reader = Arc::clone(&reading.0);
            drop(self.readers.spawn("", move || reader.run()));
            while let Some((memory, marker)) = reading.0.next() {
                note(memory, marker?);
            }
            // without those that were read, and the one that was not
            of = reading.0.rest();
        }
    }
}

/// What one thread reads for one who asks.
struct Reading {
    of: Vec<Memory>,
    stuck: Arc<Stuck>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// The thread that reads; 0 until it has begun.
    reader: i32,
    /// How many were read.
    read: usize,
    /// Those of them that were not taken yet.
    answers: VecDeque<(Memory, io::Result<Marker>)>,
    /// Nobody waits for more.
    given_up: bool,
}

/// Who waits for a reading. Dropping it gives that up.
struct Asker(Arc<Reading>);

impl Drop for Asker {
    fn drop(&mut self) {
        lock(&self.0.progress).given_up = true;
    }
}

impl Reading {
    fn new(of: Vec<Memory>, stuck: Arc<Stuck>) -> Self {
        Self { of, stuck, progress: Mutex::default(), changed: Condvar::new() }
    }

    /// The reader's part.
    fn run(&self) {
        lock(&self.progress).reader = gettid().as_raw_nonzero().get();
        for memory in &self.of {
            let marker = read_marker(memory.pid);
            let mut progress = lock(&self.progress);
            if progress.given_up {
                // it answers after all
                lock(&self.stuck).remove(memory);
                return;
            }
            progress.read += 1;
            progress.answers.push_back((*memory, marker));
            self.changed.notify_one();
        }
    }

    /// The next answer; `None`: there are no more, or the reader is stuck.
    fn next(&self) -> Option<(Memory, io::Result<Marker>)> {
        let mut progress = lock(&self.progress);
        let mut patience = PATIENCE;
        loop {
            if let Some(answer) = progress.answers.pop_front() {
                return Some(answer);
            }
            let memory = self.of.get(progress.read)?;
            let waited = self.changed.wait_timeout(progress, LIMIT);
            let (locked, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            progress = locked;
            if !timeout.timed_out() || !progress.answers.is_empty() {
                continue;
            }
            patience -= 1;
            if patience > 0 && waits_for_processor(progress.reader) {
                continue;
            }
            progress.given_up = true;
            // if there was no thread to read it, it is not to blame
            if progress.reader != 0 && lock(&self.stuck).insert(*memory) {
                warn!(pid = memory.pid, "a process's environment cannot be read, since its memory does not answer");
            }
            return None;
        }
    }

    /// What was not read, if a thread has begun to.
    fn rest(&self) -> Vec<Memory> {
        let progress = lock(&self.progress);
        match progress.reader {
            0 => Vec::new(),
            _ => self.of.get(progress.read..).unwrap_or_default().to_vec(),
        }
    }
}

/// A thread of this process has not come to wait for anything else, or does not run yet.
fn waits_for_processor(thread: i32) -> bool {
    thread == 0 || read_all(&format!("/proc/self/task/{thread}/stat")).is_ok_and(|stat| is_running(&stat))
}

fn is_running(stat: &[u8]) -> bool {
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    name_end.and_then(|end| stat.get(end + 2)) == Some(&b'R')
}

fn read_marker(pid: i32) -> io::Result<Marker> {
    Ok(match read_file(&format!("/proc/{pid}/environ"))? {
        Some(environ) if environ.is_empty() => Marker::Unclear,
        environ => Marker::Is(environ.and_then(|environ| find_marker(&environ))),
    })
}

fn find_marker(environ: &[u8]) -> Option<String> {
    environ.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

/// A panic while the lock was held leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marker_is_a_whole_variable() {
        assert_eq!(find_marker(b"A=1\0TELEXEC_EXECUTION_KEY=x\0B=2\0"), Some("x".into()));
        assert_eq!(find_marker(b"A=TELEXEC_EXECUTION_KEY=x\0XTELEXEC_EXECUTION_KEY=x\0"), None);
        assert_eq!(find_marker(b""), None);
    }

    #[test]
    fn a_thread_that_waits_for_a_processor_is_told_by_its_state() {
        assert!(is_running(b"42 (a) S (b) R 1 2"));
        assert!(!is_running(b"42 (a) R (b) D 1 2") && !is_running(b"42"));
    }
}
