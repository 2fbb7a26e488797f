//! `--keeper on`: the process that starts the agent and all commands, and outlives the agent's crashes.

mod agents;
mod crashes;
mod protocol;
