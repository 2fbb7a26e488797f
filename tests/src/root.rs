//! What only root can try.

/// The user of an agent that may do nothing special.
pub const NOBODY: u32 = 65534;

/// Prints it if the rest of the test is left out because this user is not root.
pub fn is_root() -> bool {
    let is_root = rustix::process::getuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can start processes of other users");
    }
    is_root
}
