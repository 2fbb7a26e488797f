//! Powers the machine off at the end if the agent is its init, as in a virtual machine that only runs commands.

use rustix::process::{Pid, getpid};
use rustix::system::{RebootCommand, reboot};

use crate::logging;

/// The inode of the initial pid namespace, which is the machine's and not a container's: the kernel's PROC_PID_INIT_INO.
const OF_MACHINE: &str = "pid:[4026531836]";

/// Whether this is the init of a machine, and not just of a container.
fn is_init() -> bool {
    let is_machines =
        || std::fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace.as_os_str() == OF_MACHINE);
    getpid() == Pid::INIT && is_machines()
}

/// Powers the machine off if this is its init: the kernel panics if init exits.
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
