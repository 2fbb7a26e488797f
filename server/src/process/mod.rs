//! What the agent owes to others as a process: to orphans, and to a machine whose first process it is.

pub mod machine;
pub mod orphans;
