//! `--reconnect`: connections that break, clients that die or stop, terminals without a connection.

use std::fmt::Write as _;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use telexec_tests::{Agent, MARK, Proxy, Tmux, marker, processes_with, rounds, until, within};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{Said, telexec};

/// An agent, and a network before it that fails.
struct Line {
    _agent: Agent,
    proxy: Proxy,
    directory: tempfile::TempDir,
}

impl Line {
    async fn new() -> Self {
        let agent = Agent::start();
        let proxy = Proxy::before(&agent).await;
        Self { _agent: agent, proxy, directory: tempfile::tempdir().unwrap() }
    }

    fn exec(&self, args: &[&str]) -> tokio::process::Command {
        let (flags, rest) = args.split_at(args.iter().position(|word| *word == "TARGET").unwrap());
        telexec(["exec"].iter().chain(flags).chain(&[self.proxy.uri()]).chain(&rest[1..]))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_and_code_are_exact_through_cuts() {
    let line = Line::new().await;
    let text = "for i in $(seq 40); do seq ${i}000 ${i}799; seq ${i}000 ${i}899 >&2; done; exit 7";
    let numbers = |last| {
        (1..=40).flat_map(move |i| (0..=last).map(move |n| (i, n))).fold(String::new(), |mut all, (i, n)| {
            let _ = writeln!(all, "{i}{n:03}");
            all
        })
    };
    let (stdout, stderr) = (numbers(799), numbers(899));
    for round in 1..=rounds(5) {
        let before = line.proxy.accepted();
        line.proxy.cut_each_after(1..60_000, round.into());
        let said = Said::by(line.exec(&["TARGET", "-c", text])).await;
        assert_eq!(said.code, 7, "round {round}: {}", said.stderr().lines().last().unwrap_or_default());
        for (stream, arrived, written) in [("output", said.stdout(), &stdout), ("error", said.stderr(), &stderr)] {
            let same = arrived.bytes().zip(written.bytes()).take_while(|(one, other)| one == other).count();
            let lengths = (arrived.len(), written.len());
            assert!(
                arrived == written,
                "round {round}: standard {stream} differs from byte {same} on, lengths {lengths:?}"
            );
        }
        assert!(line.proxy.accepted() > before + 2, "there were cuts");
    }
}

/// Each connection carries less than a chunk of output.
#[tokio::test(flavor = "multi_thread")]
async fn output_is_exact_through_connections_that_carry_little() {
    let line = Line::new().await;
    line.proxy.cut_each_after(6_000..12_000, 1);
    let said = Said::by(line.exec(&["TARGET", "-c", "seq 100000 129999; exit 7"])).await;
    let expected: String = (100_000..130_000).map(|number| format!("{number}\n")).collect();
    assert!((said.code, said.stdout() == expected) == (7, true), "{}", said.stderr());
    assert!(line.proxy.accepted() > 15, "there were cuts");
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_exact_through_cuts() {
    let line = Line::new().await;
    let input: Vec<u8> = (0..3_000_000u32).flat_map(|number| number.to_le_bytes()).collect();
    let file = line.directory.path().join("input");
    std::fs::write(&file, &input).unwrap();
    line.proxy.cut_each_after(1..200_000, 1);
    let mut exec = line.exec(&["-i", "TARGET", "--", "cat"]);
    let said = Said::by_child(exec.stdin(std::fs::File::open(&file).unwrap()).spawn().unwrap()).await;
    assert_eq!(said.code, 0, "{}", said.stderr());
    assert!(said.stdout == input);
    assert!(line.proxy.accepted() > 5, "there were cuts");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_killed_leaves_nothing_for_longer_than_that() {
    let line = Line::new().await;
    let mark = marker();
    let mut exec =
        line.exec(&["--reconnect", "2s", "-e", &format!("{MARK}={mark}"), "TARGET", "-c", "echo; sleep 300"]);
    let mut child = exec.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    within(stdout.next_line()).await.unwrap();
    child.kill().await.unwrap();
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_ends_leaves_nothing_at_once() {
    let line = Line::new().await;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mark = marker();
        let mark_flag = format!("{MARK}={mark}");
        let mut exec = line.exec(&["--reconnect", "5m", "-e", &mark_flag, "TARGET", "-c", "echo; sleep 300"]);
        let mut child = exec.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        within(stdout.next_line()).await.unwrap();
        kill_process(Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap(), signal).unwrap();
        assert_eq!(within(child.wait()).await.unwrap().code(), Some(128 + signal.as_raw()));
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_it_a_cut_is_the_end() {
    let line = Line::new().await;
    let mark = marker();
    let mark_flag = format!("{MARK}={mark}");
    let mut exec = line.exec(&["--reconnect", "0", "-e", &mark_flag, "TARGET", "-c", "echo ready; sleep 300"]);
    let mut child = exec.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(within(stdout.next_line()).await.unwrap().as_deref(), Some("ready"));
    line.proxy.cut();
    let said = Said::by_child(child).await;
    assert_eq!(said.code, 255, "{said:?}");
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// It is given up after that time, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_come_back_is_255() {
    let line = Line::new().await;
    let mut exec = line.exec(&["--reconnect", "500ms", "TARGET", "-c", "echo ready; sleep 300"]);
    let mut child = exec.stdin(Stdio::null()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    within(stdout.next_line()).await.unwrap();
    line.proxy.down();
    let said = Said::by_child(child).await;
    assert_eq!(said.code, 255, "{said:?}");
    assert!(said.remark().contains("it ends the command 500ms after it notices the loss"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_logs_and_wait_survive_cuts() {
    let line = Line::new().await;
    let direct = line._agent.uri().to_owned();
    let text = "for i in $(seq 300); do seq ${i}000 ${i}799; done; exit 9";
    let started = Said::by(telexec(["exec", "-d", &direct, "-c", text])).await;
    let id = started.answer().trim();
    // a piece of kept output is up to 64 KiB
    line.proxy.cut_each_after(1..400_000, 1);
    let waited = Said::by(telexec(["wait", line.proxy.uri(), id])).await;
    let attached = Said::by(telexec(["attach", line.proxy.uri(), id])).await;
    let logs = Said::by(telexec(["logs", "-f", line.proxy.uri(), id])).await;
    assert_eq!((waited.code, attached.code, logs.code), (9, 9, 0), "{waited:?}");
    let expected: String = (1..=300).flat_map(|i| (0..=799).map(move |n| format!("{i}{n:03}\n"))).collect();
    assert!(attached.stdout() == expected && logs.stdout() == expected);
    assert!(line.proxy.accepted() > 6, "there were cuts");
}

// terminals

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_says_that_the_connection_is_lost_and_goes_on_when_it_is_back() {
    let line = Line::new().await;
    let tmux = Tmux::open(&[("T", line.proxy.uri())]).await;
    let settings = tmux.settings().await;
    tmux.line("clear; telexec exec -it -e PS1=remote: $T -- bash --norc --noprofile -i; echo code=$?");
    until("the line is taken", async || !tmux.screen().contains("clear;")).await;
    tmux.shows("remote:").await;
    line.proxy.down();
    tmux.shows("connection lost, reconnecting for up to 30s; to leave, type ~. on a new line").await;
    tmux.line("echo typed meanwhile");
    line.proxy.up();
    tmux.shows("reconnected").await;
    tmux.shows("\ntyped meanwhile").await;
    tmux.line("exit 5");
    tmux.shows("code=5\n").await;
    assert_eq!(tmux.settings().await, settings);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tilde_and_a_dot_leave_a_session_without_a_connection() {
    let line = Line::new().await;
    let tmux = Tmux::open(&[("T", line.proxy.uri())]).await;
    let settings = tmux.settings().await;
    tmux.line(
        "clear; telexec exec -it $T -- sh -c 'stty raw -echo; echo re\"\"ady; dd bs=1 count=3 status=none; exec cat'",
    );
    tmux.shows("ready").await;
    tmux.press("Enter");
    tmux.write("~.");
    tmux.shows("~.").await;
    line.proxy.down();
    tmux.shows("connection lost").await;
    tmux.press("Enter");
    tmux.write("~.");
    tmux.shows("left while the connection was lost").await;
    tmux.shows("the command ends unless it is followed again within 30s").await;
    tmux.shows("telexec attach -i --kill-on-disconnect").await;
    tmux.line("echo code=$?");
    tmux.shows("code=255\n").await;
    assert_eq!(tmux.settings().await, settings);
}

/// Nothing reports the loss but that no answer comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_tilde_and_a_dot_leave_a_session_whose_connection_is_silent() {
    let line = Line::new().await;
    let tmux = Tmux::open(&[("T", line.proxy.uri())]).await;
    // what is typed must not look like what is waited for
    tmux.line("clear; telexec exec -it $T -- sh -c 'stty raw -echo; echo re\"\"ady; exec cat'");
    tmux.shows("ready").await;
    line.proxy.freeze();
    tmux.press("Enter");
    tmux.write("~.");
    tmux.shows("left while the connection was lost").await;
    assert!(!tmux.screen().contains("reconnecting"), "{}", tmux.screen());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_two_type_at_once_arrives_whole() {
    let line = Line::new().await;
    let file = line.directory.path().join("typed");
    let id = marker();
    let text = format!("cat > {}", file.display());
    Said::by(line.exec(&["-di", "--id", &id, "TARGET", "-c", &text])).await.answer();
    let typing = ["a", "b"].map(|letter| {
        let mut attach = telexec(["attach", "-i", line.proxy.uri(), &id]);
        let mut child = attach.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        tokio::spawn(async move {
            for _ in 0..200 {
                within(stdin.write_all(letter.as_bytes())).await.unwrap();
                tokio::task::yield_now().await;
            }
            (child, stdin)
        })
    });
    let [a, b] = typing;
    let open = (a.await.unwrap(), b.await.unwrap());
    let count = |letter: u8| std::fs::read(&file).unwrap_or_default().iter().filter(|byte| **byte == letter).count();
    until("all has arrived", async || count(b'a') == 200 && count(b'b') == 200).await;
    drop(open);
}

/// The full-screen program runs on, and what it did to this terminal is undone.
#[tokio::test(flavor = "multi_thread")]
async fn detaching_from_a_full_screen_program_restores_the_screen() {
    let line = Line::new().await;
    let tmux = Tmux::open(&[("T", line.proxy.uri())]).await;
    tmux.line(
        "clear; echo before; telexec exec -it --on-disconnect=detach --id editor $T -- vim -u NONE -N; echo code=$?",
    );
    tmux.shows("VIM - Vi IMproved").await;
    tmux.press("C-p");
    tmux.press("C-q");
    tmux.shows("code=0\n").await;
    let screen = tmux.screen();
    assert!(screen.contains("before") && !screen.contains("Vi IMproved"), "{screen}");
    let hint = format!("telexec attach -i {} editor", line.proxy.uri());
    assert!(screen.replace('\n', "").contains(&hint), "{screen}");
    // as it says
    tmux.line(&format!("clear; {hint}; echo again=$?"));
    until("the line is taken", async || !tmux.screen().contains("clear;")).await;
    tmux.shows("~\n").await;
    tmux.line(":q");
    tmux.shows("again=0\n").await;
}
