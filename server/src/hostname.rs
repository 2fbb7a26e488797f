//! The name of this machine.

/// As uname(2) has it.
pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
