//! What the tools of one family share: where commands run, and how far the output of each task was read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use telexec_executor::{ExecutionId, Executor};

use crate::summary::shorten;

/// Marks the commands that `exec_command` starts.
pub(super) const LABEL: (&str, &str) = ("telexec.tool", super::NAME);

/// As many tasks as agents remember, unless configured otherwise.
const MAX_POSITIONS: usize = 1_000;

pub(super) struct Tasks {
    pub(super) executor: Arc<dyn Executor>,
    /// By id, which sorts by the time it was made.
    positions: Mutex<BTreeMap<ExecutionId, u64>>,
}

impl Tasks {
    pub(super) fn new(executor: Arc<dyn Executor>) -> Self {
        Self { executor, positions: Mutex::default() }
    }

    /// Bytes of both streams that were read already; of a task that is not known, none.
    pub(super) fn position(&self, id: &ExecutionId) -> u64 {
        self.positions().get(id).copied().unwrap_or_default()
    }

    /// The output was read up to here. The oldest tasks are forgotten.
    pub(super) fn remember(&self, id: &ExecutionId, position: u64) {
        let mut positions = self.positions();
        positions.insert(id.clone(), position);
        if positions.len() > MAX_POSITIONS {
            positions.pop_first();
        }
    }

    fn positions(&self) -> MutexGuard<'_, BTreeMap<ExecutionId, u64>> {
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call in one short line: the tool and its task.
pub(super) fn summary(tool: &str, params: &Value) -> String {
    let task = params.get("task_id").and_then(Value::as_str);
    task.map_or_else(|| format!("[{tool}]"), |task| format!("[{tool}: {}]", shorten(task)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, State};

    #[test]
    fn summaries_name_the_task() {
        assert_eq!(summary("task_stop", &serde_json::json!({ "task_id": "a" })), "[task_stop: a]");
        assert_eq!(summary("task_stop", &Value::Null), "[task_stop]");
    }

    #[test]
    fn positions_of_the_oldest_tasks_are_forgotten() {
        let tasks = Tasks::new(Fake::new(State::default()));
        let ids: Vec<ExecutionId> = (0..=MAX_POSITIONS).map(|n| format!("task_{n:05}").parse().unwrap()).collect();
        ids.iter().for_each(|id| tasks.remember(id, 7));
        assert_eq!((tasks.position(&ids[0]), tasks.position(&ids[1])), (0, 7));
        tasks.remember(&ids[1], 9);
        assert_eq!(tasks.position(&ids[1]), 9);
    }
}
