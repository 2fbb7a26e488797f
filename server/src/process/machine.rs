//! What the first process of a machine owes to it, as in a virtual machine that is there to be told what to run.

use rustix::process::{Pid, getpid};
use rustix::system::{RebootCommand, reboot};

use crate::logging;

/// The first pid namespace's, which is a machine's own and not a container's: PROC_PID_INIT_INO of the kernel.
const OF_MACHINE: &str = "pid:[4026531836]";

/// Whether this is the first process of a machine, and not just that of a container.
fn is_init() -> bool {
    let is_machines =
        || std::fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace.as_os_str() == OF_MACHINE);
    getpid() == Pid::INIT && is_machines()
}

/// If this is the first process of a machine, powers that off: the kernel panics if it exits.
pub fn power_off_if_init() {
    if !is_init() {
        return;
    }
    rustix::fs::sync();
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        logging::line(&format!("telexecd: cannot power off: {error}"));
        logging::flush();
    }
}
