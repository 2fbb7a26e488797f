//! Whether commands can run as dynamic users.

use telexec_engine::try_dynamic_users;
use telexec_executor::SpawnError;
use telexec_keeper::users::DYNAMIC;

/// They cannot.
#[derive(Debug, thiserror::Error)]
#[error(
    "users = \"dynamic\": commands cannot run as dynamic users here (that takes root with CAP_SYS_ADMIN, CAP_CHOWN, CAP_SETUID and CAP_SETGID, a directory /tmp, and in a container the user IDs {first} to {last})",
    first = DYNAMIC.start(),
    last = DYNAMIC.end()
)]
pub struct DynamicUsersError(#[source] SpawnError);

/// Tries whether this process, or a keeper that it becomes, can start commands as dynamic users.
///
/// # Errors
/// It cannot.
pub fn check() -> Result<(), DynamicUsersError> {
    try_dynamic_users().map_err(DynamicUsersError)
}
