//! The agent's duties as a process: reaping orphans, and acting as init where it is the first process.

pub mod machine;
pub mod orphans;
