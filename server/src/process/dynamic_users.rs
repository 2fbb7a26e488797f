//! Whether commands can have users of their own.

use std::io;

use telexec_engine::try_dynamic_users;

/// They cannot.
#[derive(Debug, thiserror::Error)]
#[error(
    "users = \"dynamic\": requires root with CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID, and in a user namespace the IDs 2013265920 to 2147352575"
)]
pub struct DynamicUsersError(#[source] io::Error);

/// Tries whether this process, or a keeper that it becomes, can start commands as dynamic users.
///
/// # Errors
/// It cannot.
pub fn check() -> Result<(), DynamicUsersError> {
    try_dynamic_users().map_err(DynamicUsersError)
}
