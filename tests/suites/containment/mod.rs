//! Agents that keep the processes of their commands together in different ways, or cannot.

mod degraded;
mod held_up;
mod killed;
mod requirements;
mod reuse;
mod same_id;
mod stuck;
mod threads;
mod traced;
mod unprivileged;
