//! What the first process of a machine, or of a container, owes all others.

use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid};
use rustix::system::{RebootCommand, reboot};
use telexec_spawn::exit;

use crate::{log, signals};

/// The inode of the initial pid namespace, which is the machine's and not a container's: the kernel's PROC_PID_INIT_INO.
const OF_MACHINE: &str = "pid:[4026531836]";
/// From SIGTERM until all are killed: the agent has had its own time for what it ran.
const GRACE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// If this is the first process: ends all others, and switches the machine off if it is one. The kernel panics if its init
/// exits.
pub(crate) fn end_if_init() {
    if getpid() != Pid::INIT {
        return;
    }
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        signals::send_to_all(signal);
        let until = Instant::now() + GRACE;
        while !is_alone() && Instant::now() < until {
            std::thread::sleep(PAUSE);
        }
    }
    if !std::fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace.as_os_str() == OF_MACHINE) {
        return;
    }
    rustix::fs::sync();
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        log::line(&format!("cannot power off: {error}"));
    }
}

/// Every process that has lost its parent is a child of the first one.
fn is_alone() -> bool {
    while let Ok(Some(pid)) = exit::any_ended() {
        let _ = exit::reap(pid);
    }
    exit::any_ended().is_err()
}
