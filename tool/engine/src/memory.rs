//! The allocator's memory.
#![allow(unsafe_code)]

/// Gives back to the system what the allocator keeps for later, of all threads; elsewhere than with glibc that is left
/// to the allocator. It takes milliseconds: for after a flood.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, and touches nothing that is in use. See malloc_trim(3).
    unsafe {
        libc::malloc_trim(0);
    }
}
