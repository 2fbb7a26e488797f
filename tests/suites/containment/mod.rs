//! Agents that keep the processes of their commands together in different ways, or cannot.

mod degraded;
mod reuse;
mod threads;
mod unprivileged;
