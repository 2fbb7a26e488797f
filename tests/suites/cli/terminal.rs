//! `telexec exec -t` and `attach -i`: real programs in a real terminal.

use rustix::process::{Pid, Signal, kill_process};
use telexec_tests::{Agent, MARK, TMUX_TERM, Tmux, marker, processes_with, until};

use super::{Said, Site, telexec};

/// An agent, and a terminal whose shell knows it as `$T`.
struct Desk {
    agent: Agent,
    tmux: Tmux,
    /// Of the terminal, before anything was done to it.
    settings: String,
}

impl Desk {
    async fn new() -> Self {
        let agent = Agent::start();
        let tmux = Tmux::open(&[("T", agent.uri())]).await;
        let settings = tmux.settings().await;
        Self { agent, tmux, settings }
    }

    /// Types `telexec`, with these arguments, and something that prints the exit code; what is typed is then not seen any
    /// more.
    async fn telexec(&self, args: &str) {
        self.line(&format!("telexec {args}; echo code=$?")).await;
    }

    async fn line(&self, line: &str) {
        self.tmux.line(&format!("clear; {line}"));
        until("the line is taken", async || !self.tmux.screen().contains("clear;")).await;
    }

    /// Waits for the end with this code, and sees that the terminal is as it was.
    async fn ends(&self, code: i32) {
        self.tmux.shows(&format!("code={code}\n")).await;
        assert_eq!(self.tmux.settings().await, self.settings);
    }
}

// programs

#[tokio::test]
async fn vim_edits_a_file() {
    let desk = Desk::new().await;
    let file = desk.tmux.directory().join("file");
    desk.telexec(&format!("exec -it $T -- vim -u NONE -N {}", file.display())).await;
    desk.tmux.shows("[New]").await;
    desk.tmux.write("ihello");
    desk.tmux.press("Enter");
    desk.tmux.write("world");
    desk.tmux.shows("world").await;
    desk.tmux.press("Escape");
    desk.tmux.line(":set laststatus=2 statusline=size=%{&columns}x%{&lines}");
    desk.tmux.shows("size=80x24").await;
    desk.tmux.resize(100, 30);
    desk.tmux.shows("size=100x30").await;
    desk.tmux.line(":wq");
    desk.ends(0).await;
    assert_eq!(std::fs::read_to_string(file).unwrap(), "hello\nworld\n");
}

#[tokio::test]
async fn top_fills_the_window() {
    let desk = Desk::new().await;
    desk.telexec("exec -it $T -- top -d 0.3").await;
    desk.tmux.shows("PID USER").await;
    desk.tmux.resize(100, 40);
    until("top fills the window", async || desk.tmux.screen().trim_end().lines().count() > 24).await;
    desk.tmux.press("C-c");
    desk.ends(0).await;
}

#[tokio::test]
async fn less_pages_through_a_file() {
    let desk = Desk::new().await;
    let file = desk.tmux.directory().join("file");
    let lines: Vec<String> = (1..=1000).map(|n| format!("line {n}\n")).collect();
    std::fs::write(&file, lines.concat()).unwrap();
    desk.telexec(&format!("exec -it $T -- less {}", file.display())).await;
    desk.tmux.shows("line 23\n").await;
    assert!(!desk.tmux.screen().contains("line 24\n"));
    desk.tmux.write("G");
    desk.tmux.shows("line 1000\n").await;
    desk.tmux.line("/line 50");
    desk.tmux.write("g");
    desk.tmux.shows("line 1\n").await;
    desk.tmux.write("q");
    desk.ends(0).await;
}

#[tokio::test]
async fn a_shell_has_jobs_and_ends_with_its_input() {
    let desk = Desk::new().await;
    desk.telexec("exec -it -e PS1=remote: $T -- bash --norc --noprofile -i").await;
    desk.tmux.shows("remote:").await;
    // it says when it is the one that the keys go to
    let job = "trap \"echo a\"\"gain\" CONT; trap \"exit 9\" INT; echo r\"unning\"; while :; do sleep 0.05; done";
    desk.tmux.line(&format!("sh -c '{job}'"));
    desk.tmux.shows("running\n").await;
    desk.tmux.press("C-z");
    desk.tmux.shows("Stopped").await;
    desk.tmux.line("jobs | wc -l");
    desk.tmux.shows("\n1\n").await;
    desk.tmux.line("fg");
    desk.tmux.shows("again\n").await;
    desk.tmux.press("C-c");
    desk.tmux.line("exit 7");
    desk.ends(7).await;
    desk.telexec("exec -it $T -- cat").await;
    desk.tmux.line("line");
    desk.tmux.shows("line\nline\n").await;
    desk.tmux.press("C-d");
    desk.ends(0).await;
}

#[tokio::test]
async fn without_a_program_the_users_login_shell_starts() {
    let desk = Desk::new().await;
    let home = desk.tmux.directory().display().to_string();
    std::fs::write(desk.tmux.directory().join(".profile"), "echo profile read by $SHELL\n").unwrap();
    for flags in ["", "--shell sh"] {
        desk.telexec(&format!("exec -it {flags} -e HOME={home} $T")).await;
        desk.tmux.shows("profile read by /").await;
        desk.tmux.line("exit 7");
        desk.ends(7).await;
    }
}

// keys and the window

#[tokio::test]
async fn ctrl_c_goes_to_the_command() {
    let desk = Desk::new().await;
    let text = "trap \"echo caught; exit 7\" INT; echo ready; while :; do sleep 0.05; done";
    desk.telexec(&format!("exec -it $T -c '{text}'")).await;
    desk.tmux.shows("ready\n").await;
    desk.tmux.press("C-c");
    desk.tmux.shows("caught\n").await;
    desk.ends(7).await;
}

#[tokio::test]
async fn the_window_is_followed() {
    let desk = Desk::new().await;
    let text = "trap \"stty size\" WINCH; stty size; while :; do sleep 0.05; done";
    desk.telexec(&format!("exec -it $T -c '{text}'")).await;
    desk.tmux.shows("24 80\n").await;
    for (columns, rows) in [(100, 30), (50, 20), (80, 24)] {
        desk.tmux.resize(columns, rows);
        until("the new size is shown", async || desk.tmux.screen().trim_end().ends_with(&format!("{rows} {columns}")))
            .await;
    }
    desk.tmux.press("C-c");
    desk.ends(130).await;
}

#[tokio::test]
async fn without_input_there_is_a_terminal_too() {
    let site = Site::unix().await;
    for (flags, kind) in [(&["-t"][..], "vt100"), (&["-t", "-e", "TERM=dumb"], "dumb")] {
        let text = "echo $TERM; [ -t 0 ] && stty size; echo err >&2";
        let mut command = site.telexec("exec", &[flags, &["-c", text]].concat());
        command.env("TERM", "vt100");
        let said = Said::by(command).await;
        assert_eq!(said.answer(), format!("{kind}\r\n24 80\r\nerr\r\n"));
    }
}

#[tokio::test]
async fn typed_input_needs_a_terminal() {
    let said = Said::by(telexec(["exec", "-it", "local", "-c", "echo ran"])).await;
    assert!(said.failure(2).contains("terminal"), "{said:?}");
}

#[tokio::test]
async fn the_kind_of_terminal_is_reported() {
    let desk = Desk::new().await;
    desk.telexec("exec -it $T -c 'echo kind=$TERM'").await;
    desk.tmux.shows(&format!("kind={TMUX_TERM}\n")).await;
    desk.ends(0).await;
}

#[tokio::test]
async fn the_local_agent_has_terminals_too() {
    let desk = Desk::new().await;
    desk.telexec("exec -it local -c 'tty; read line; echo got $line'").await;
    desk.tmux.shows("/dev/pts/").await;
    desk.tmux.line("text");
    desk.tmux.shows("got text\n").await;
    desk.ends(0).await;
}

// the terminal afterwards

#[tokio::test]
async fn the_terminal_is_restored_when_the_agent_is_killed() {
    let mut desk = Desk::new().await;
    desk.telexec("exec -it --reconnect 1s $T -- vim -u NONE -N").await;
    desk.tmux.shows("~\n").await;
    desk.agent.kill();
    desk.ends(255).await;
}

#[tokio::test]
async fn the_terminal_is_restored_when_a_signal_ends_it() {
    let desk = Desk::new().await;
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let (here, there) = (marker(), marker());
        let vim = format!("{MARK}={here} telexec exec -it -e {MARK}={there} $T -- vim -u NONE -N; echo code=$?");
        desk.line(&vim).await;
        desk.tmux.shows("~\n").await;
        let [telexec] = &processes_with(&here)[..] else { panic!("{:?}", processes_with(&here)) };
        kill_process(Pid::from_raw(telexec.pid).unwrap(), signal).unwrap();
        desk.ends(code).await;
        until("vim has ended", async || processes_with(&there).is_empty()).await;
    }
}

#[tokio::test]
async fn the_terminal_is_restored_when_the_command_is_killed() {
    let desk = Desk::new().await;
    desk.telexec("exec -it --id victim $T -- vim -u NONE -N").await;
    desk.tmux.shows("~\n").await;
    Said::by(telexec(["kill", "-s", "KILL", desk.agent.uri(), "victim"])).await.answer();
    desk.ends(137).await;
}

#[tokio::test]
async fn the_terminal_is_left_alone_when_nothing_starts() {
    let desk = Desk::new().await;
    desk.telexec("exec -it $T -- no-such-program").await;
    desk.ends(127).await;
}

// leaving and coming back

#[tokio::test]
async fn the_detach_keys_leave_a_command_that_survives_it() {
    let desk = Desk::new().await;
    let vim = "exec -it --on-disconnect detach --id editor";
    desk.telexec(&format!("{vim} $T -- vim -u NONE -N")).await;
    desk.tmux.shows("~\n").await;
    desk.tmux.write("isome text");
    desk.tmux.shows("some text").await;
    desk.tmux.press("C-p");
    desk.tmux.press("C-q");
    desk.ends(0).await;
    desk.tmux.resize(90, 28);
    desk.telexec("attach -i --no-history --detach-keys ctrl-a,d $T editor").await;
    // drawn again, without any of what was drawn before
    desk.tmux.shows("some text").await;
    desk.tmux.write(" and more");
    desk.tmux.shows("some text and more").await;
    desk.tmux.press("C-a");
    desk.tmux.write("d");
    desk.ends(0).await;
    desk.telexec("attach -i $T editor").await;
    desk.tmux.shows("some text and more").await;
    desk.tmux.press("Escape");
    desk.tmux.line(":q!");
    desk.ends(0).await;
}

#[tokio::test]
async fn keys_are_the_commands_own_where_leaving_would_end_it() {
    let desk = Desk::new().await;
    desk.telexec("exec -it $T -c 'stty raw -echo; echo ready; dd bs=1 count=2 2>/dev/null | od -An -c'").await;
    desk.tmux.shows("ready").await;
    desk.tmux.press("C-p");
    desk.tmux.press("C-q");
    desk.tmux.shows("020 021").await;
    desk.ends(0).await;
}

#[tokio::test]
async fn who_only_watches_changes_nothing() {
    let desk = Desk::new().await;
    let uri = desk.agent.uri();
    let text = "echo ready; stty size; read line; echo got $line";
    Said::by(telexec(["exec", "-dit", "--id", "shown", uri, "-c", text])).await.answer();
    desk.tmux.resize(90, 28);
    desk.telexec("attach $T shown").await;
    desk.tmux.shows("output only; use -i to type").await;
    desk.tmux.shows("24 80\n").await;
    Said::by(telexec(["input", uri, "shown", "text"])).await.answer();
    desk.tmux.shows("got text\n").await;
    desk.ends(0).await;
}

#[tokio::test]
async fn a_terminal_whose_input_has_ended_does_not_hold_who_attaches() {
    let desk = Desk::new().await;
    let uri = desk.agent.uri();
    let text = "echo ready; exec sleep 300";
    Said::by(telexec(["exec", "-dit", "--id", "deaf", uri, "-c", text])).await.answer();
    Said::by(telexec(["input", "--close", "-n", uri, "deaf", ""])).await.answer();
    desk.telexec("attach -i $T deaf").await;
    desk.tmux.shows("ready").await;
    desk.tmux.write("x");
    desk.tmux.shows("input is not forwarded").await;
    desk.tmux.press("C-c");
    desk.ends(130).await;
    Said::by(telexec(["kill", uri, "deaf"])).await.answer();
}
