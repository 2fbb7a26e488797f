//! The agent's duties as a process: reaping orphans, and acting as init where it is the first process; or having a keeper,
//! whose duties these are then.

pub mod agent_user;
pub mod dynamic_users;
pub mod keeper;
pub mod machine;
pub mod orphans;
pub mod restrictions;
pub(crate) mod thread_of_user;
pub mod upgrade;
