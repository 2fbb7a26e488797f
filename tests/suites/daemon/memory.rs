//! The agent's memory, and whom it is for.

use telexec_executor::Command;
use telexec_tests::{Agent, NOBODY, Scrape, is_root, run};

/// Of an agent that is not root, commands are the same user.
fn agent_of_a_user() -> Agent {
    let builder = Agent::builder().args(["--metrics-listen", "tcp://127.0.0.1:0"]);
    if is_root() { builder.user(NOBODY).start() } else { builder.start() }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_agents_own_user_cannot_look_into_it() {
    let agent = agent_of_a_user();
    let executor = agent.executor().await;
    let pid = agent.pid();
    for (text, refused) in [
        ("cat /proc/$PPID/environ", format!("cat: /proc/{pid}/environ: Permission denied\n")),
        (
            "dd if=/proc/$PPID/mem of=/dev/null count=1",
            format!("dd: failed to open '/proc/{pid}/mem': Permission denied\n"),
        ),
        ("cat /proc/$PPID/maps", format!("cat: /proc/{pid}/maps: Permission denied\n")),
        ("ls /proc/$PPID/fd/", format!("ls: cannot open directory '/proc/{pid}/fd/': Permission denied\n")),
    ] {
        let outcome = run(&executor, Command::shell(text).env("LC_ALL", "C")).await.unwrap();
        assert_eq!((String::from_utf8_lossy(&outcome.stderr).into_owned(), outcome.text()), (refused, ""), "{text}");
    }
    // process_vm_readv(2), of the page that its program begins with; PTRACE_SEIZE
    let calls = "import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
class Vec(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
own = ctypes.create_string_buffer(16)
here, there = Vec(ctypes.addressof(own), 16), Vec(0x400000, 16)
for call in [lambda: libc.process_vm_readv(os.getppid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0),
             lambda: libc.ptrace(0x4206, os.getppid(), 0, 0)]:
    print(call(), errno.errorcode[ctypes.get_errno()])
print(libc.prctl(3, 0, 0, 0, 0))";
    let outcome = run(&executor, Command::argv(["python3", "-c", calls])).await.unwrap();
    // and the command itself can be looked into, as any process
    assert_eq!(outcome.text(), "-1 EPERM\n-1 EPERM\n1\n", "{outcome:?}");
    // what it reports of itself it still knows
    let scrape = Scrape::of(&agent).await;
    assert!(scrape.value("process_open_fds") > 0.0 && scrape.value("process_resident_memory_bytes") > 0.0);
}
