//! Commands that a debugger traces: the kernel reports their ends to it first, see ptrace(2).

use std::thread;

use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use telexec_executor::{Command, Executor, Signal};
use telexec_tests::{Agent, children, collect, is_root, run, until};
use tokio::sync::oneshot;

/// Traces a process from a thread of its own; sees its end only when asked to.
fn trace(pid: i32) -> (oneshot::Receiver<()>, oneshot::Sender<()>, thread::JoinHandle<WaitStatus>) {
    let pid = Pid::from_raw(pid);
    let (traced, is_traced) = oneshot::channel();
    let (go_on, may_go_on) = oneshot::channel::<()>();
    let tracer = thread::spawn(move || {
        ptrace::seize(pid, ptrace::Options::empty()).unwrap();
        traced.send(()).unwrap();
        may_go_on.blocking_recv().unwrap();
        waitpid(pid, None).unwrap()
    });
    (is_traced, go_on, tracer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_traced_command_does_not_hold_up_the_agent() {
    if !is_root() {
        eprintln!("skipped: only root can trace any process");
        return;
    }
    for (containment, kept) in
        [("cgroup-v2", false), ("cgroup-v1", false), ("process-group", false), ("cgroup-v2", true)]
    {
        let builder = Agent::builder().config(format!("containment = \"{containment}\"\nworker_threads = 1"));
        let builder = if kept { builder.kept() } else { builder };
        let Ok(mut agent) = builder.try_start() else { continue };
        let executor = agent.executor().await;
        let execution = executor.execute(Command::argv(["sleep", "300"]).build().unwrap()).await.unwrap();
        let (id, pid) = (execution.id().clone(), i32::try_from(execution.started().pid).unwrap());
        let (is_traced, go_on, tracer) = trace(pid);
        is_traced.await.unwrap();

        executor.signal(&id, Signal::KILL).await.unwrap();
        let zombie = || children(agent.pid()).iter().any(|child| child.pid == pid && child.state == 'Z');
        until("it has ended, and is not reaped", async || zombie()).await;
        // the only thread of the agent serves others
        assert_eq!(run(&executor, Command::argv(["true"])).await.unwrap().exited.exit_code(), 0);
        let exited = collect(execution).await.unwrap().exited;
        assert_eq!(exited.cause.as_str(), "signaled", "{containment}");
        assert!(zombie());

        go_on.send(()).unwrap();
        assert_eq!(tracer.join().unwrap(), WaitStatus::Signaled(Pid::from_raw(pid), nix::sys::signal::SIGKILL, false));
        until("it is reaped", async || children(agent.pid()).len() == usize::from(kept)).await;
        assert!(agent.terminate().await.success());
    }
}
