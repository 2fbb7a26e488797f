//! ssh's command line against an agent.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use telexec_executor::{Executor, Program};
use telexec_tests::{Agent, MARK, Proxy, Tmux, is_root, marker, processes_with, until, within};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::{Ended, Site};

#[tokio::test(flavor = "multi_thread")]
async fn words_are_joined_and_run_by_a_shell_in_the_home_of_the_user() {
    let site = Site::new();
    for (line, said) in [
        ("telexec ssh web1 echo '$MACHINE' a   b '\"c  d\"'", "one a b c  d\n"),
        ("telexec-ssh -xa2 web2 -T -- echo '$MACHINE'", "two\n"),
        ("ssh -o 'RemoteCommand=echo \"$MACHINE\"' web1", "one\n"),
        ("telexec ssh web1 '[ \"$PWD\" = ~ ] && pwd -P >/dev/null && echo at home'", "at home\n"),
        (
            "A=1 B_1=2 B_2=3 telexec ssh -o SendEnv='B_* -B_2' -o 'SetEnv C=\"x y\"' web1 echo '$A,$B_1,$B_2,$C'",
            ",2,,x y\n",
        ),
        ("telexec ssh -p 22 ssh://web1:22/ echo '$MACHINE'", "one\n"),
    ] {
        assert_eq!(site.done(line).await, said, "{line}");
    }
    let port = site.web2.address().rsplit_once(':').unwrap().1;
    assert_eq!(site.done(&format!("telexec ssh -p {port} web1 echo '$MACHINE'")).await, "two\n");
    assert_eq!(site.done(&format!("telexec ssh -oHostName=127.0.0.1:{port} x echo '$MACHINE'")).await, "two\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn words_are_run_by_the_shell_of_the_user() {
    let site = Site::new();
    let own = site.write("own-shell", "#!/bin/sh\necho \"own $# $*\"\n");
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
    let policy = format!(
        "permit(principal, action in Action::\"start\", resource) when {{ context.shell == {own:?} }};
         permit(principal, action, resource) unless {{ action in Action::\"start\" }};"
    );
    let config = format!("[environment]\nSHELL = {own:?}\n");
    let agent = Agent::builder().mtls(&site.certs).config(config).policy(policy).start();
    let line = format!("telexec ssh -oHostName={} x", agent.address());
    assert_eq!(site.done(&format!("{line} a 'b  c'")).await, "own 2 -c a b  c\n");
    // as the others start it
    assert_eq!(site.run(&format!("telexec exec --server-name localhost {} -c true", agent.address())).await.code, 125);
    let account = "getent passwd root | cut -d: -f7";
    let there = site.done("telexec ssh -l root web1 'echo $0'").await;
    assert_eq!(there, site.done(account).await);
    if !is_root() {
        return;
    }
    // what runs is what is recorded
    let id = site.done("telexec exec -d -u root --shell '$SHELL' web1 -c true").await;
    let info = site.web1.executor().await.get(&id.trim().parse().unwrap()).await.unwrap();
    let Program::Shell { shell: Some(shell), .. } = info.program else { panic!("{:?}", info.program) };
    assert_eq!(format!("{shell}\n"), there);
    // as with ssh
    let refused = site.run("telexec ssh -l nobody web1 true").await;
    assert!(refused.code == 1 && refused.stdout.contains("not available"), "{refused:?}");
    // variables of the caller do not change it
    assert_eq!(site.done("SHELL=/bin/no telexec ssh -oSendEnv=SHELL web1 'echo $0'").await, there);
    let shown = site.done("telexec exec --shell '$SHELL' web1 -c 'echo $0'").await;
    assert_eq!(shown, there);
}

#[tokio::test(flavor = "multi_thread")]
async fn codes_are_the_commands_and_255_is_the_transports() {
    let site = Site::new();
    for (line, code, said) in [
        ("web1 'echo out; echo err >&2; exit 3'", 3, "err\n"),
        ("web1 'kill -9 $$'", 137, "killed by SIGKILL"),
        ("web1 no-such-program", 127, "not found"),
        ("-l no-such-user web1 true", 125, "no such user"),
        ("gone true", 255, "unreachable"),
        ("no.such.host.invalid true", 255, "no target named"),
        ("-p 0 web1 true", 255, "not a port"),
        ("-Z web1 true", 255, "unknown option -- Z"),
        ("", 255, "usage: "),
        ("-o ControlPersist", 255, "ControlPersist"),
        ("-O check web1", 255, "no master"),
        ("-Q cipher", 255, "telexec uses TLS, not the SSH protocol"),
        ("-W a web1", 255, "-W a: "),
        ("-L 1:a web1 true", 255, "-L 1:a: "),
        ("web1 -s netconf", 255, "-s netconf: the only subsystem is sftp"),
        ("-J web2 web1 true", 255, "web2: "),
        ("-f gone true", 255, "unreachable"),
        ("-t web1 true", 0, "standard input is not one"),
        ("-qt web1 true", 0, ""),
        ("-q gone true", 255, ""),
        ("-E messages gone true", 255, ""),
        ("-V", 0, "telexec "),
    ] {
        let ended = site.run(&format!("telexec ssh {line}")).await;
        let is_silent = said.is_empty() && !ended.stderr.is_empty();
        assert!(ended.code == code && ended.stderr.contains(said) && !is_silent, "{line}: {ended:?}");
        // by these Ansible and git tell another ssh
        assert!(!ended.stderr.contains("Usage:") && !ended.stderr.contains("Bad configuration option"), "{ended:?}");
    }
    assert!(std::fs::read_to_string(site.path("messages")).unwrap().contains("unreachable"));
    let invalid = site.run("TELEXEC_CERT=/no/such/file telexec ssh web1 true").await;
    assert_eq!(invalid.code, 255, "{invalid:?}");
    let settings = site.done("telexec ssh -G -l me web1").await;
    for line in [
        "host web1",
        "user me",
        "hostname 127.0.0.1",
        &format!("port {}", site.web1.address().rsplit_once(':').unwrap().1),
    ] {
        assert!(settings.lines().any(|one| one == line), "{settings}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_apart_and_exact_and_input_is_passed_on_as_it_comes() {
    let site = Site::new();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let file = site.write("bytes", &bytes);
    let mut command = site.command("telexec-ssh");
    let input = std::fs::File::open(&file).unwrap();
    let output = within(command.args(["web1", "tee /dev/stderr"]).stdin(input).output()).await.unwrap();
    assert!(output.stdout == bytes && output.stderr == bytes);
    // both ways, in turns
    let mut child =
        site.command("telexec-ssh").args(["web1", "cat; echo end >&2"]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    for turn in 0..50u8 {
        let mut echoed = [0];
        stdin.write_all(&[turn]).await.unwrap();
        within(stdout.read_exact(&mut echoed)).await.unwrap();
        assert_eq!(echoed, [turn]);
    }
    drop(stdin);
    assert_eq!(within(child.wait_with_output()).await.unwrap().stderr, b"end\n");
    // what -n leaves is for whoever is next
    assert_eq!(site.done("printf 'a\\nb\\n' | { telexec ssh -n web1 cat; cat; }").await, "a\nb\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_forced_by_tt_alone() {
    let site = Site::new();
    let show = "'[ -t 0 ] && [ -t 2 ] && echo yes || echo no'";
    for (flags, said) in
        [("", "no\n"), ("-qt", "no\n"), ("-T", "no\n"), ("-tt", "yes\r\n"), ("-t -t", "yes\r\n"), ("-tt -T", "no\n")]
    {
        assert_eq!(site.done(&format!("telexec ssh {flags} web1 {show}")).await, said, "{flags}");
    }
    assert_eq!(
        site.done("echo hello | telexec ssh -tt web1 'stty -echo; echo; read x; echo got $x' | grep got").await,
        "got hello\r\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_words_the_login_shell_reads_standard_input() {
    let site = Site::new();
    // of whoever runs the tests: their profile may say something too
    let Ended { code, stdout, stderr } = site.run("echo 'echo $MACHINE; exit 5' | telexec ssh -q web1").await;
    assert!(code == 5 && stdout.ends_with("one\n"), "{stdout} {stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_command_at_once() {
    let site = Site::new();
    let mark = marker();
    let text = format!("echo ready; {MARK}={mark} sleep 1000");
    let mut child = site.command("telexec-ssh").args(["web1", &text]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    within(stdout.read_line(&mut String::new())).await.unwrap();
    kill_process(Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(within(child.wait()).await.unwrap().code(), Some(143));
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_command_leaves_behind_outlives_it() {
    let site = Site::new();
    let mark = marker();
    let text = format!("telexec ssh web1 '{MARK}={mark} nohup sleep 1000 >/dev/null 2>&1 & echo left'");
    assert_eq!(site.done(&text).await, "left\n");
    let left = processes_with(&mark);
    assert_eq!(left.len(), 1);
    kill_process(Pid::from_raw(left[0].pid).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_command_it_stays_until_a_signal() {
    let site = Site::new();
    let agent = Agent::start();
    let proxy = Proxy::before(&agent).await;
    let mut child = site.command("telexec-ssh").args(["-N", proxy.uri()]).spawn().unwrap();
    until("it is connected", async || proxy.accepted() > 0).await;
    kill_process(Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap(), Signal::INT).unwrap();
    assert_eq!(within(child.wait()).await.unwrap().code(), Some(130));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_to_the_background_once_connected() {
    let site = Site::new();
    let (gate, mark) = (site.path("gate"), marker());
    let wait = format!("{MARK}={mark}; until [ -e {} ]; do sleep 0.02; done; echo passed", gate.display());
    // as daemons do, whoever starts it keeps the output elsewhere
    site.done(&format!("echo input | telexec ssh -f web1 '{wait}' >output 2>&1")).await;
    until("it runs there", async || processes_with(&mark).len() >= 2).await;
    std::fs::write(gate, "").unwrap();
    until("it has ended", async || std::fs::read(site.path("output")).unwrap() == b"passed\n").await;
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_words_a_terminal_has_a_login_shell() {
    let agent = Agent::start();
    let tmux = Tmux::open(&[("T", agent.uri())]).await;
    let home = tmux.directory().display().to_string();
    std::fs::write(tmux.directory().join(".profile"), "echo profile read by $SHELL\n").unwrap();
    let settings = tmux.settings().await;
    tmux.line(&format!("clear; telexec ssh -o SetEnv=HOME={home} $T; echo code=$?"));
    tmux.shows("profile read by /").await;
    tmux.line("[ -t 0 ] && echo $((40 + 2)); exit 7");
    tmux.shows("42").await;
    tmux.shows("code=7\n").await;
    assert_eq!(tmux.settings().await, settings);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_made_up_for_as_long_as_the_environment_says() {
    let site = Site::new();
    let agent = Agent::start();
    let proxy = Proxy::before(&agent).await;
    for (limit, ends) in [("30s", true), ("0", false)] {
        let mut command = site.command("telexec-ssh");
        command.env("TELEXEC_RECONNECT", limit).args([proxy.uri(), "echo ready; cat"]).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        within(stdout.read_line(&mut line)).await.unwrap();
        proxy.cut();
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.write_all(b"after").await;
        drop(stdin);
        let mut rest = String::new();
        within(stdout.read_to_string(&mut rest)).await.unwrap();
        let code = within(child.wait()).await.unwrap().code();
        assert_eq!((rest.as_str(), code), if ends { ("after", Some(0)) } else { ("", Some(255)) }, "{limit}");
    }
}
