//! Commands that hold the locks of their pipes, as splice(2) does from a socket on which nothing arrives, or to one that nobody
//! reads: whoever reads or writes the other end waits in the kernel, and no signal ends that.

use std::time::Duration;

use futures_util::future::join_all;
use telexec_executor::{Command, CommandBuilder, ExecutionState, ExitCause, Signal};
use telexec_tests::{MARK, directory, marker, processes_with, run, until, within};

use super::{Machine, start};

/// More than an agent has threads for its calls.
const MANY: usize = 24;
const PRELUDE: &str = "import os, socket\nhere, there = socket.socketpair()\n";

fn python(text: &str) -> CommandBuilder {
    Command::argv(["python3", "-c", &format!("{PRELUDE}{text}")])
}

/// Others are served while these run, and each ends when it is no longer wanted.
async fn hold_up_nobody(machine: Machine, command: CommandBuilder) {
    let (mark, directory) = (marker(), directory());
    let command = command.env(MARK, &mark).working_directory(directory.path().to_str().unwrap());
    let holders = join_all((0..MANY).map(|_| start(&machine, command.clone()))).await;
    until("all have begun", async || std::fs::read_dir(directory.path()).unwrap().count() == MANY).await;
    for _ in 0..20 {
        let outcome = within(run(&machine, Command::argv(["cat"]).stdin("hi"))).await.unwrap();
        assert_eq!(outcome.text(), "hi");
    }
    let timed = run(&machine, command.timeout(Duration::from_secs(1)));
    assert_eq!(within(timed).await.unwrap().exited.cause, ExitCause::TimedOut);
    drop(holders);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

pub(super) async fn who_locks_its_output_holds_up_nobody(machine: Machine) {
    let text = "os.write(1, b'before')\nopen(str(os.getpid()), 'w')\nos.splice(here.fileno(), 1, 65536)";
    hold_up_nobody(machine, python(text)).await;
}

/// After much output, all of which was read.
pub(super) async fn who_locks_what_was_read_holds_up_no_other_stream(machine: Machine) {
    let text = "
import fcntl, struct, termios, threading, time
def wait_until_read(stream):
    while struct.unpack('i', fcntl.ioctl(stream, termios.FIONREAD, bytes(4)))[0]: time.sleep(0.001)
os.write(1, bytes(1 << 20))
wait_until_read(1)
threading.Thread(target=lambda: os.splice(here.fileno(), 1, 65536)).start()
for number in range(200):
    os.write(2, b'x')
    wait_until_read(2)
os._exit(3)";
    let outcome = within(run(&machine, python(text))).await.unwrap();
    assert_eq!((outcome.stdout.len(), outcome.stderr.len()), (1 << 20, 200));
    assert_eq!(outcome.exited.cause, ExitCause::Exited(3));
}

pub(super) async fn who_locks_its_input_holds_up_nobody(machine: Machine) {
    let text = "open(str(os.getpid()), 'w')\nwhile True: os.splice(0, here.fileno(), 65536)";
    hold_up_nobody(machine, python(text).stdin(vec![b'x'; 2 << 20])).await;
}

pub(super) async fn a_survivor_that_locks_the_output_does_not_hold_the_call(machine: Machine) {
    let text = "
read, write = os.pipe()
child = os.fork()
if child == 0:
    there.send(b'x')
    os.splice(here.fileno(), 1, 1)
    os.write(write, b'x')
    os.splice(here.fileno(), 1, 1)
os.read(read, 1)
is_asleep = lambda: open(f'/proc/{child}/stat').read().rpartition(')')[2].split()[0] == 'S'
while not is_asleep(): pass
os._exit(3)";
    let outcome = run(&machine, python(text)).await.unwrap();
    let exited = &outcome.exited;
    assert_eq!((exited.cause, exited.surviving_processes), (ExitCause::Exited(3), 1));
    assert!(exited.stdout.incomplete);
    let id = &outcome.started.id;
    machine.signal(id, Signal::KILL).await.unwrap();
    until("it has ended", async || machine.get(id).await.unwrap().state == ExecutionState::Exited).await;
}
