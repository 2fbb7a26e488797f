//! Hosts that fail, readers that go, and interrupts.

use std::process::Stdio;

use telexec_tests::{Agent, MARK, Proxy, marker, processes_with, program, until, within};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;

use super::super::{Said, interrupt, next_line};
use super::{Fleet, sorted, summary};

#[tokio::test]
async fn a_tenth_that_is_unreachable_does_not_stop_the_others() {
    let fleet = Fleet::of(18);
    fleet.add("gone1", "127.0.0.1:1");
    fleet.add("gone2", "127.0.0.1:1");
    let said = fleet.say(&["-b", "-w", "@web,gone[1-2]", "--", "echo", "hi"]).await;
    assert_eq!(said.code, 1);
    assert!(said.stdout().contains("web[01-18] (18)"), "{said:?}");
    let lines = [
        "18 of 20 ok, 2 unreachable",
        "  gone[1-2]: unreachable: Connection refused (os error 111)",
        "no agent is listening there: check the port, and that telexecd is running",
    ];
    assert_eq!(summary(&said), lines);
}

#[tokio::test]
async fn a_host_that_fails_is_named_while_others_run() {
    let fleet = Fleet::of(1);
    fleet.add("gone", "127.0.0.1:1");
    let gate = fleet.path().join("gate");
    let text = format!("[ \"$KIND\" = other ] && exit 3; until [ -e {} ]; do sleep 0.01; done", gate.display());
    let mut child = fleet.telexec(&["-w", "web01,other,gone", "-c", &text]).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = String::new();
    for _ in 0..2 {
        within(stderr.read_line(&mut lines)).await.unwrap();
    }
    // before web01 has ended
    std::fs::write(gate, "").unwrap();
    let failed =
        ["telexec: gone: unreachable: Connection refused (os error 111)", "telexec: other: failed: exit code 3"];
    assert_eq!(sorted(&lines), failed);
    let mut rest = String::new();
    within(stderr.read_to_string(&mut rest)).await.unwrap();
    assert!(rest.starts_with("telexec: 1 of 3 ok, 1 failed, 1 unreachable, in "), "{rest}");
    assert_eq!(Said::by_child(child).await.stdout(), "");
}

#[tokio::test]
async fn output_that_an_agent_dropped_is_reported() {
    let fleet = Fleet::of(1);
    let small = Agent::builder().config("max_output_bytes = 4").start();
    fleet.add("small", small.uri());
    for flags in [&["-q"][..], &["-qL"], &["-qb"]] {
        let said = fleet.say(&[flags, &["-w", "web01,small", "--", "echo", "1234567"]].concat()).await;
        assert_eq!(said.code, 1);
        assert!(said.remark().starts_with("telexec: small: 4 bytes of the output were dropped"), "{said:?}");
    }
}

#[tokio::test]
async fn a_host_that_hangs_in_the_handshake_is_given_up() {
    let fleet = Fleet::of(2);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    fleet.add("silent", &silent.local_addr().unwrap().to_string());
    let said = fleet.say(&["-t", "500ms", "-w", "@web,silent", "-c", "true"]).await;
    let lines = ["2 of 3 ok, 1 unreachable", "  silent: unreachable: no answer within 500ms"];
    assert_eq!((said.code, &*summary(&said)), (1, &lines.map(str::to_owned)[..]));
}

#[tokio::test]
async fn a_host_that_dies_in_mid_stream_is_lost() {
    let fleet = Fleet::of(1);
    let proxy = Proxy::before(&fleet.agent).await;
    fleet.add("dying", proxy.uri());
    let gate = fleet.path().join("gate");
    let text = format!("echo begun; until [ -e {} ]; do sleep 0.01; done", gate.display());
    let mut child = fleet.telexec(&["-w", "web01,dying", "-c", &text]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..2 {
        assert!(next_line(&mut stdout).await.ends_with(": begun\n"));
    }
    proxy.down();
    std::fs::write(gate, "").unwrap();
    let said = Said::by_child(child).await;
    assert_eq!((said.code, &*summary(&said)[0]), (1, "1 of 2 ok, 1 lost"));
}

#[tokio::test]
async fn much_output_takes_little_memory() {
    let fleet = Fleet::of(1);
    for (flags, bytes) in [(&["-q"][..], 1 << 29), (&["-q", "-b"], 1 << 28), (&["-q", "--json"], 1 << 26)] {
        let mut command = Command::new("sh");
        let limited = "ulimit -d 300000; exec \"$0\" \"$@\" > /dev/null";
        command.args(["-c", limited]).arg(program("telexec")).arg("fleet").args(flags);
        command.args(["-w", "@web", "-c", &format!("head -c {bytes} /dev/zero")]);
        command.env("TELEXEC_CONFIG", fleet.path().join("config.toml"));
        command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        assert_eq!(Said::by(command).await.code, 0, "{flags:?}");
    }
}

#[tokio::test]
async fn a_reader_that_leaves_ends_it_everywhere() {
    let fleet = Fleet::of(3);
    let mark = marker();
    let env = format!("{MARK}={mark}");
    let mut child = fleet.telexec(&["-e", &env, "-w", "@web", "--", "yes"]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    assert!(next_line(&mut stdout).await.ends_with(": y\n"));
    drop(stdout);
    let said = Said::by_child(child).await;
    assert_eq!((said.code, said.stderr()), (141, ""));
    assert!(processes_with(&mark).is_empty());
}

#[tokio::test]
async fn ctrl_c_tells_what_still_runs_and_twice_ends_it_for_certain() {
    let fleet = Fleet::of(3);
    let mark = marker();
    let env = format!("{MARK}={mark}");
    let text = "[ \"$KIND\" = other ] && exit; echo begun; exec sleep 300";
    let mut child = fleet.telexec(&["-e", &env, "-w", "@web,other", "-c", text]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..3 {
        assert!(next_line(&mut stdout).await.ends_with(": begun\n"));
    }
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    interrupt(&child);
    let mut line = String::new();
    within(stderr.read_line(&mut line)).await.unwrap();
    assert!(line.contains("still run") && line.contains("web[01-03]"), "{line}");
    let mut status = None;
    until("it has ended", async || {
        status = child.try_wait().unwrap();
        if status.is_none() {
            interrupt(&child);
        }
        status.is_some()
    })
    .await;
    let status = status.unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(processes_with(&mark).is_empty());
    let mut rest = String::new();
    within(tokio::io::AsyncReadExt::read_to_string(&mut stderr, &mut rest)).await.unwrap();
    // the other one may not have ended by itself
    assert!(rest.lines().any(|line| line.ends_with("web[01-03]: cancelled")), "{rest}");
}

#[tokio::test]
async fn a_termination_signal_ends_it_at_once() {
    let fleet = Fleet::of(2);
    let mut child = fleet.telexec(&["-w", "@web", "-c", "echo begun; exec sleep 300"]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..2 {
        assert!(next_line(&mut stdout).await.ends_with(": begun\n"));
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let said = Said::by_child(child).await;
    assert_eq!((said.code, &*summary(&said)[0]), (143, "0 of 2 ok, 2 cancelled"));
}
