//! What the benches share.

use std::time::Duration;

use crate::{Agent, AgentBuilder};

/// An agent with the containment that `TELEXEC_BENCH_CONTAINMENT` names, or with its own choice.
pub fn bench_agent() -> AgentBuilder {
    match std::env::var("TELEXEC_BENCH_CONTAINMENT") {
        Ok(containment) => Agent::builder().env("TELEXECD_CONTAINMENT", containment),
        Err(_) => Agent::builder(),
    }
}

/// The time that this part of them, in percent, stayed below.
pub fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}
