//! What processes' environments say, read by threads of their own.
//!
//! A process can make reading its memory take forever, by what it has mapped there: a file on a dead network file
//! system, for example. `environ`, `cmdline` and `maps` below /proc/PID are its memory; `stat`, `status` and `cgroup`
//! are not. So each read has a limit, and all of one scan have another; what does not answer is not read again until it
//! does, or runs another program. A scan says which processes it has not read.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use rustix::thread::gettid;
use tracing::warn;

use super::table::{Process, read_all, read_file};
use crate::lock::{lock, wait_timeout};
use crate::workers::Workers;

/// The variable that every process of an execution inherits; its value is the execution's key.
pub(crate) const MARKER: &str = "TELEXEC_EXECUTION_KEY";

/// How long one environment may take.
const READ_TIMEOUT: Duration = Duration::from_millis(200);
/// How long all environments of one scan may take together.
const SCAN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a reader may wait for nothing but a processor.
const PROCESSOR_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a reader that has not answered is checked: a read that is faster does not count.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How many times what was unclear is read again: an execve(2) is over by then.
const SETTLE_READS: usize = 20;
/// Readers that are there from the start.
const READERS: usize = 2;
/// Readers that may be stuck; where all are, no environment is read.
const MAX_READERS: usize = 16;

/// The memory of a process, at one time: it has another one when it runs another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    pub(crate) pid: i32,
    start_ticks: u64,
    environ_address: u64,
}

impl Memory {
    pub(crate) fn of(process: &Process) -> Self {
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

/// The reads of one scan: the time that is left for them, and which have failed.
pub(crate) struct EnvironScan {
    /// How long environments may still be waited for. Zero: no more are read.
    left: Duration,
    unread: HashSet<Memory>,
}

impl EnvironScan {
    pub(crate) fn begin() -> Self {
        Self { left: SCAN_TIMEOUT, unread: HashSet::new() }
    }

    /// The processes whose environments were not read.
    pub(crate) fn unread(&self) -> impl Iterator<Item = i32> {
        self.unread.iter().map(|memory| memory.pid)
    }
}

/// Reads environments.
pub(crate) struct EnvironReader {
    readers: Workers,
    stuck: Arc<Stuck>,
    /// Where proc(5) is.
    proc: Arc<str>,
}

/// What readers are stuck in, each in another.
type Stuck = Mutex<HashSet<Memory>>;

impl EnvironReader {
    /// # Errors
    /// Its first threads cannot be made.
    pub(crate) fn new() -> io::Result<Self> {
        Self::of("/proc", MAX_READERS)
    }

    fn of(proc: &str, max_readers: usize) -> io::Result<Self> {
        let readers = Workers::new("telexec-environ", READERS, max_readers)?;
        Ok(Self { readers, stuck: Arc::default(), proc: proc.into() })
    }

    /// Gives `note` the keys in the environments of these processes, each as soon as it was read; returns those that
    /// said nothing, for [`Self::settle`].
    ///
    /// # Errors
    /// They cannot be read now, for want of descriptors or memory.
    pub(crate) fn keys(
        &self,
        of: Vec<Memory>,
        scan: &mut EnvironScan,
        mut note: impl FnMut(i32, String),
    ) -> io::Result<Vec<Memory>> {
        let mut unclear = Vec::new();
        self.read(of, scan, |memory, marker| match marker {
            Marker::Is(Some(key)) => note(memory.pid, key),
            Marker::Is(None) => {}
            Marker::Unclear => unclear.push(memory),
        })?;
        Ok(unclear)
    }

    /// Reads again what said nothing, a limited number of times.
    ///
    /// # Errors
    /// As [`Self::keys`].
    pub(crate) fn settle(
        &self,
        mut unclear: Vec<Memory>,
        scan: &mut EnvironScan,
        mut note: impl FnMut(i32, String),
    ) -> io::Result<()> {
        for _ in 0..SETTLE_READS {
            if unclear.is_empty() {
                break;
            }
            thread::sleep(Duration::from_micros(100));
            unclear = self.keys(unclear, scan, &mut note)?;
        }
        Ok(())
    }

    fn read(
        &self,
        mut of: Vec<Memory>,
        scan: &mut EnvironScan,
        mut note: impl FnMut(Memory, Marker),
    ) -> io::Result<()> {
        loop {
            let stuck = lock(&self.stuck).clone();
            scan.unread.extend(of.extract_if(.., |memory| stuck.contains(memory)));
            if of.is_empty() || scan.left.is_zero() {
                scan.unread.extend(of);
                return Ok(());
            }
            let reading = Asker(Arc::new(Reading::new(of, Arc::clone(&self.stuck), Arc::clone(&self.proc))));
            let reader = Arc::clone(&reading.0);
            // what no reader has begun is taken out of the queue with this
            let mut queued = pin!(self.readers.run("", move || reader.run()));
            let _ = queued.as_mut().now_or_never();
            if self.readers.threads() <= stuck.len() {
                scan.left = Duration::ZERO;
            }
            while let Some((memory, marker)) = reading.0.next(scan) {
                scan.unread.remove(&memory);
                note(memory, marker?);
            }
            let mut rest = reading.0.rest().into_iter();
            // the first is what was given up
            scan.unread.extend(rest.next());
            of = rest.collect();
        }
    }
}

/// What one thread reads for one caller.
struct Reading {
    of: Vec<Memory>,
    stuck: Arc<Stuck>,
    proc: Arc<str>,
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
    /// No more is awaited.
    given_up: bool,
}

/// The caller that waits for a reading. Dropping it gives that up.
struct Asker(Arc<Reading>);

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.give_up(&mut lock(&self.0.progress));
    }
}

impl Reading {
    fn new(of: Vec<Memory>, stuck: Arc<Stuck>, proc: Arc<str>) -> Self {
        Self { of, stuck, proc, progress: Mutex::default(), changed: Condvar::new() }
    }

    /// The reader's part.
    fn run(&self) {
        let mut progress = lock(&self.progress);
        if progress.given_up {
            return;
        }
        progress.reader = gettid().as_raw_nonzero().get();
        drop(progress);
        for memory in &self.of {
            let marker = read_marker(&self.proc, memory.pid);
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

    /// The next answer; `None`: there are no more, or they are not waited for.
    fn next(&self, scan: &mut EnvironScan) -> Option<(Memory, io::Result<Marker>)> {
        let mut progress = lock(&self.progress);
        let (mut left, mut processor_left) = (READ_TIMEOUT, PROCESSOR_TIMEOUT);
        loop {
            if let Some(answer) = progress.answers.pop_front() {
                return Some(answer);
            }
            let memory = self.of.get(progress.read)?;
            if scan.left.is_zero() || left.is_zero() || processor_left.is_zero() {
                let is_new = self.give_up(&mut progress);
                if progress.reader == 0 {
                    // nor would the next one be read
                    scan.left = Duration::ZERO;
                } else if is_new && (left.is_zero() || processor_left.is_zero()) {
                    warn!(pid = memory.pid, "a process's environment cannot be read, since its memory does not answer");
                }
                return None;
            }
            let (locked, timed_out) = wait_timeout(&self.changed, progress, POLL_INTERVAL);
            progress = locked;
            if !timed_out || !progress.answers.is_empty() {
                continue;
            }
            match waits_for_processor(progress.reader) {
                true => processor_left = processor_left.saturating_sub(POLL_INTERVAL),
                false => {
                    left = left.saturating_sub(POLL_INTERVAL);
                    scan.left = scan.left.saturating_sub(POLL_INTERVAL);
                }
            }
        }
    }

    /// No more is awaited. A reader that has begun is in the midst of the next one, until that answers; whether that
    /// was not known before.
    fn give_up(&self, progress: &mut Progress) -> bool {
        progress.given_up = true;
        let next = self.of.get(progress.read).filter(|_| progress.reader != 0);
        next.is_some_and(|memory| lock(&self.stuck).insert(*memory))
    }

    /// What was not read.
    fn rest(&self) -> Vec<Memory> {
        self.of.get(lock(&self.progress).read..).unwrap_or_default().to_vec()
    }
}

/// A thread of this process waits for nothing but a processor, or does not run yet.
fn waits_for_processor(thread: i32) -> bool {
    thread == 0 || read_all(&format!("/proc/self/task/{thread}/stat")).is_ok_and(|stat| is_running(&stat))
}

fn is_running(stat: &[u8]) -> bool {
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    name_end.and_then(|end| stat.get(end + 2)) == Some(&b'R')
}

fn read_marker(proc: &str, pid: i32) -> io::Result<Marker> {
    Ok(match read_file(&format!("{proc}/{pid}/environ"))? {
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

    use super::*;

    #[test]
    fn the_marker_is_a_whole_variable() {
        assert_eq!(find_marker(b"A=1\0TELEXEC_EXECUTION_KEY=x\0B=2\0"), Some("x".into()));
        assert_eq!(find_marker(b"A=TELEXEC_EXECUTION_KEY=x\0XTELEXEC_EXECUTION_KEY=x\0"), None);
        assert_eq!(find_marker(b""), None);
    }

    #[test]
    fn a_thread_that_waits_for_a_processor_is_known_by_its_state() {
        assert!(is_running(b"42 (a) S (b) R 1 2"));
        assert!(!is_running(b"42 (a) R (b) D 1 2") && !is_running(b"42"));
    }

    /// Stands for /proc.
    struct Proc(tempfile::TempDir);

    impl Proc {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn environs(&self, max_readers: usize) -> EnvironReader {
            EnvironReader::of(self.0.path().to_str().unwrap(), max_readers).unwrap()
        }

        fn environ(&self, pid: i32) -> PathBuf {
            self.0.path().join(pid.to_string()).join("environ")
        }

        fn process(&self, pid: i32) -> Memory {
            std::fs::create_dir(self.environ(pid).parent().unwrap()).unwrap();
            Memory { pid, start_ticks: 0, environ_address: 0 }
        }

        fn that_answers(&self, pid: i32) -> Memory {
            let process = self.process(pid);
            std::fs::write(self.environ(pid), format!("{MARKER}={pid}\0")).unwrap();
            process
        }

        /// A reader of its environment waits for one who writes to it.
        fn that_is_stuck(&self, pid: i32) -> Memory {
            let process = self.process(pid);
            mknodat(CWD, self.environ(pid), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            process
        }

        /// Answers the waiting reader; false: none waits.
        fn answer(&self, pid: i32) -> bool {
            rustix::fs::open(self.environ(pid), OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).is_ok()
        }
    }

    fn keys(environs: &EnvironReader, of: Vec<Memory>) -> (Vec<String>, HashSet<i32>) {
        let (mut keys, mut scan) = (Vec::new(), EnvironScan::begin());
        environs.keys(of, &mut scan, |_, key| keys.push(key)).unwrap();
        (keys, scan.unread().collect())
    }

    fn wait_until_all_answer(environs: &EnvironReader) {
        while !lock(&environs.stuck).is_empty() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_look_does_not_wait_for_many_that_do_not_answer() {
        let proc = Proc::new();
        let environs = proc.environs(MAX_READERS);
        let mut all: Vec<_> = (1..=10).map(|pid| proc.that_is_stuck(pid)).collect();
        all.push(proc.that_answers(11));
        assert_eq!(keys(&environs, all.clone()), (Vec::new(), (1..=11).collect()));
        let waited_for = (1..=10).filter(|pid| proc.answer(*pid)).count();
        assert!((1..=5).contains(&waited_for), "{waited_for}");
        wait_until_all_answer(&environs);
        all.drain(..10);
        assert_eq!(keys(&environs, all), (vec!["11".to_owned()], HashSet::new()));
    }

    #[test]
    fn where_all_readers_are_stuck_nothing_is_read_nor_queued() {
        let proc = Proc::new();
        let environs = proc.environs(READERS);
        let stuck = (1..=2).map(|pid| proc.that_is_stuck(pid)).collect();
        assert_eq!(keys(&environs, stuck), (Vec::new(), (1..=2).collect()));
        let others = vec![proc.that_is_stuck(3), proc.that_answers(4)];
        for _ in 0..READERS {
            assert_eq!(keys(&environs, others.clone()), (Vec::new(), (3..=4).collect()));
        }
        assert!(proc.answer(1) && proc.answer(2));
        wait_until_all_answer(&environs);
        assert_eq!(keys(&environs, others[1..].to_vec()), (vec!["4".to_owned()], HashSet::new()));
        assert!(!proc.answer(3), "it was not to be read any more");
    }
}
