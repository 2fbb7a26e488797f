//! The engine in a process whose threads come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use telexec_engine::{LocalConfig, LocalExecutor};
use telexec_executor::{Command, ExecutionState, Executor, Signal};
use telexec_tests::{MARK, marker, processes_with, until};

/// A parent's death signal, see prctl(2), would come from the thread that made the child.
#[test]
fn a_command_outlives_the_thread_that_started_it() {
    const WORKERS: usize = 2;
    let running = Arc::new(AtomicUsize::new(0));
    let (starts, stops) = (Arc::clone(&running), Arc::clone(&running));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(WORKERS)
        .thread_keep_alive(Duration::from_millis(1))
        .on_thread_start(move || {
            starts.fetch_add(1, Ordering::SeqCst);
        })
        .on_thread_stop(move || {
            stops.fetch_sub(1, Ordering::SeqCst);
        })
        .build()
        .unwrap();
    runtime.block_on(async {
        let (engine, mark) = (LocalExecutor::new(LocalConfig::default()).unwrap(), marker());
        let command = Command::argv(["sleep", "300"]).env(MARK, &mark).build().unwrap();
        let execution = engine.execute(command).await.unwrap();
        until("only the workers are left", async || running.load(Ordering::SeqCst) == WORKERS).await;
        // execve(2) gives it its environment a moment after the start is reported
        until("it runs", async || processes_with(&mark).len() == 1).await;
        assert_eq!(engine.get(execution.id()).await.unwrap().state, ExecutionState::Running);
        let info = engine.signal(execution.id(), Signal::KILL).await.unwrap();
        assert_eq!(info.pid, execution.started().pid);
        engine.shutdown().await;
        assert_eq!(processes_with(&mark), []);
    });
}
