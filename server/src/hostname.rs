//! The name of this machine.

/// The node name of uname(2).
pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
