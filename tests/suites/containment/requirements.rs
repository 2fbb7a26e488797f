//! Machines that lack what no execution can be ended without.

use std::os::unix::fs::chown;

use telexec_executor::{Command, Executor};
use telexec_tests::{Agent, AgentBuilder, MARK, NOBODY, is_root, marker, processes_with, program, until, until_output};

/// A filter that answers ENOSYS, as an older kernel does, to the call of this number; if a second number is not 0, only if
/// its first argument has that flag.
const WITHOUT: &str = "
import ctypes, os, struct, sys
number, flag = int(sys.argv[1]), int(sys.argv[2])
LOAD, IS, HAS, RETURN = 0x20, 0x15, 0x45, 0x06
CALL, FIRST, NOSYS, ALLOW = 0, 16, 0x50000 | 38, 0x7fff0000
steps = [(LOAD, 0, 0, CALL), (IS, 0 if flag else 2, 3, number), (LOAD, 0, 0, FIRST), (HAS, 0, 1, flag),
    (RETURN, 0, 0, NOSYS), (RETURN, 0, 0, ALLOW)]
steps = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack('HP', 6, ctypes.addressof(steps)))
NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
libc = ctypes.CDLL(None)
assert libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and libc.prctl(SECCOMP, FILTER, program) == 0
os.execvp(sys.argv[3], sys.argv[3:])
";

fn without(call: u32, flag: u32) -> AgentBuilder {
    Agent::builder().through(["python3", "-c", WITHOUT, &call.to_string(), &flag.to_string()])
}

/// An agent in a mount namespace of its own in which this was done before.
fn after(shell_text: &str) -> AgentBuilder {
    Agent::builder().through(["unshare", "--mount", "sh", "-c", &format!("{shell_text} && exec \"$@\""), "sh"])
}

fn refuses(builder: AgentBuilder, why: &str) {
    let refused = builder.try_start().expect_err("it serves");
    assert!(!refused.status.success() && refused.log.contains(why), "{why}: {refused}");
}

#[test]
fn on_an_older_kernel_it_does_not_start() {
    let (clone, clone_pidfd) = (if cfg!(target_arch = "x86_64") { 56 } else { 220 }, 0x1000);
    refuses(without(436, 0), "close_range(2) does not work here: Function not implemented");
    refuses(without(434, 0), "pidfd_open(2) does not work here");
    refuses(without(424, 0), "pidfd_send_signal(2) does not work here");
    refuses(without(clone, clone_pidfd), "clone(2) with CLONE_PIDFD does not work here");
}

#[test]
fn without_a_proc_of_its_own_it_does_not_start() {
    if !is_root() {
        eprintln!("skipped: only root can mount");
        return;
    }
    refuses(after("umount -l /proc"), "/proc cannot be used: it is not mounted");
    refuses(after("mount -t tmpfs none /proc"), "/proc cannot be used: it is not mounted");
    refuses(after("mount -t proc -o subset=pid none /proc"), "/proc cannot be used: /proc/loadavg");
    let inside = Agent::builder().through(["unshare", "--pid", "--fork", "--kill-child"]);
    refuses(inside, "/proc cannot be used: it is of another pid namespace");
    let mut local = std::process::Command::new("unshare");
    local.args(["--pid", "--fork", "--kill-child"]).arg(program("telexec")).args(["exec", "local", "true"]);
    let said = String::from_utf8(local.output().unwrap().stderr).unwrap();
    assert!(said.contains("/proc cannot be used: it is of another pid namespace"), "{said}");
    // root is of the group that sees all by default
    let blind = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"];
    refuses(
        after("mount -t proc -o hidepid=2,gid=65534 none /proc").through(blind),
        "/proc cannot be used: it hides process 1",
    );
}

/// It runs commands as itself, and sees those.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_root_needs_no_processes_of_others() {
    if !is_root() {
        eprintln!("skipped: only root can mount");
        return;
    }
    let mut agent = after("mount -t proc -o hidepid=2 none /proc").user(NOBODY).start();
    let (executor, mark) = (agent.executor().await, marker());
    let command = Command::shell("setsid sleep 300 & sleep 300").env(MARK, &mark).build().unwrap();
    let execution = executor.execute(command).await.unwrap();
    until("both run", async || processes_with(&mark).iter().filter(|p| p.name == "sleep").count() == 2).await;
    drop(execution);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    assert!(agent.terminate().await.success());
}

/// Whose /proc hides the first one: a process of its user that cannot be looked into (PR_SET_DUMPABLE) is hidden too.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_another_cannot_see_is_not_taken_for_dead() {
    if !is_root() {
        eprintln!("skipped: only root can mount");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    chown(directory.path(), Some(NOBODY), None).unwrap();
    let state = directory.path().join("state");
    let agent = || {
        let agent = after("mount -t proc -o hidepid=2 none /proc").user(NOBODY);
        agent.args(["--state-dir", state.to_str().unwrap()]).start()
    };
    let (first, mark) = (agent(), marker());
    let command = Command::shell("echo ready; sleep 300; :").env(MARK, &mark).build().unwrap();
    let mut execution = first.executor().await.execute(command).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    let second = agent();
    assert!(!second.log().contains("killed agent"), "{}", second.log());
    assert!(!processes_with(&mark).is_empty(), "its agent lives");
    let directories = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(directories.filter(|name| name.starts_with("spool-")).count(), 2);
}
