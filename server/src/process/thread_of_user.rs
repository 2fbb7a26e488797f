//! Work that is done as another user, in a thread of its own: only that becomes this user.

use std::io;
use std::thread::Builder;

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use telexec_keeper::users::Credentials;

/// Does this as a user with these groups. Blocks.
///
/// # Errors
/// There can be no thread, or this process may not become the user.
pub(crate) fn as_user<T: Send>(user: &Credentials, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let groups: Vec<_> = user.groups.iter().copied().map(Gid::from_raw).collect();
    let become_user = move || -> io::Result<T> {
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        Ok(work())
    };
    std::thread::scope(|scope| {
        let thread = Builder::new().name("as-user".into()).spawn_scoped(scope, become_user)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread has failed")))
    })
}
