//! What this machine must have, tried out before anything is started: without it executions could not be ended
//! reliably.

use std::{fs, io};

use rustix::fs::{PROC_SUPER_MAGIC, statfs};
use rustix::process::{Pid, PidfdFlags, geteuid, getpid, pidfd_open};

use super::{control, table, vfork};

/// `keeper`: by whom commands are started, in place of this process.
///
/// # Errors
/// The error says what is missing.
pub(crate) fn check(keeper: Option<Pid>) -> io::Result<()> {
    check_proc(keeper).map_err(|fault| {
        io::Error::other(format!(
            "/proc cannot be used: {fault}; the agent needs it whole, of its own pid namespace, and with all processes, if commands run as other users"
        ))
    })?;
    check_kernel().map_err(|(call, error)| {
        io::Error::other(format!(
            "{call} does not work here: {error}; Linux 5.9 or later has it, unless a seccomp filter forbids it"
        ))
    })
}

fn check_proc(keeper: Option<Pid>) -> Result<(), String> {
    let text = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| format!("{what}: {error}")
    };
    let file_system = statfs("/proc").map_err(|errno| errno.to_string())?;
    if file_system.f_type != PROC_SUPER_MAGIC {
        return Err("it is not mounted".into());
    }
    let this = getpid().as_raw_nonzero().get();
    let link = fs::read_link("/proc/self").map_err(text("/proc/self"))?;
    if link.to_str() != Some(&this.to_string()) {
        return Err("it is of another pid namespace".into());
    }
    table::last_pid().map_err(text("/proc/loadavg"))?;
    table::listed().map_err(text("the list of processes"))?;
    let mut wanted = vec![this];
    if geteuid().is_root() {
        // commands may run as any user; those of another agent run as its own, whom no option hides
        wanted.push(1);
    }
    wanted.extend(keeper.map(|keeper| keeper.as_raw_nonzero().get()));
    for pid in wanted {
        if table::read(pid).map_err(text("the state of a process"))?.is_none() {
            return Err(format!("it hides process {pid} (see hidepid= in proc(5)), or another file system does"));
        }
    }
    Ok(())
}

/// Which system call does not work, and why.
fn check_kernel() -> Result<(), (&'static str, io::Error)> {
    let of = |call| move |error: io::Error| (call, error);
    vfork::try_out().map_err(|(call, errno)| (call, errno.into()))?;
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|errno| ("pidfd_open(2)", errno.into()))?;
    control::try_to_signal(&pidfd).map_err(of("pidfd_send_signal(2)"))
}
