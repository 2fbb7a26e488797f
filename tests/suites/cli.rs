//! The program `telexec`, as an operator and a script use it.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use telexec_tests::{Agent, MARK, executable, lines, marker, processes_with, program, until, within};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

/// `telexec`, with an environment that does not configure it.
fn telexec(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(program("telexec"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TELEXEC_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// All that it said, and its exit code.
#[derive(Debug)]
struct Said {
    code: i32,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Said {
    async fn by(mut command: Command) -> Self {
        Self::by_child(command.spawn().unwrap()).await
    }

    async fn by_child(child: Child) -> Self {
        let output = within(child.wait_with_output()).await.unwrap();
        let code = output.status.code().unwrap_or_else(|| panic!("{}", output.status));
        Self { code, stdout: output.stdout, stderr: output.stderr }
    }

    fn stdout(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    fn stderr(&self) -> &str {
        std::str::from_utf8(&self.stderr).unwrap()
    }

    /// Standard output, if all went well.
    #[track_caller]
    fn answer(&self) -> &str {
        assert_eq!((self.code, self.stderr()), (0, ""), "{}", self.stdout());
        self.stdout()
    }

    /// The message of a failure with this code: on standard error only, and recognizable as no command's own.
    #[track_caller]
    fn failure(&self, code: i32) -> &str {
        assert_eq!((self.code, self.stdout()), (code, ""), "{}", self.stderr());
        self.remark()
    }

    /// What it said itself, where the command has said nothing on standard error.
    #[track_caller]
    fn remark(&self) -> &str {
        let ours = self.stderr().lines().all(|line| line.starts_with("telexec: "));
        assert!(ours && self.stderr().ends_with('\n'), "{:?}", self.stderr());
        self.stderr()
    }
}

async fn say(args: &[&str]) -> Said {
    Said::by(telexec(args)).await
}

/// A target of `exec`, and a directory for what its commands do.
struct Site {
    /// The flags that it needs, and its name.
    target: Vec<String>,
    directory: TempDir,
    agent: Option<Agent>,
}

impl Site {
    async fn local() -> Self {
        Self { target: vec!["local".to_owned()], directory: tempfile::tempdir().unwrap(), agent: None }
    }

    async fn unix() -> Self {
        let agent = Agent::start();
        Self { target: vec![agent.uri().to_owned()], directory: tempfile::tempdir().unwrap(), agent: Some(agent) }
    }

    /// With the certificates of `telexec certs`, made in three commands.
    async fn mtls() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let certs = directory.path().join("certs");
        let certs = certs.to_str().unwrap();
        for line in [&["init"][..], &["issue", "127.0.0.1", "--server"], &["issue", "alice", "--client"]] {
            Said::by(telexec(["certs"].iter().chain(line).chain(&["--dir", certs]))).await.answer();
        }
        let file = |name: &str| format!("{certs}/{name}");
        let agent = Agent::builder().listen("tcp://127.0.0.1:0").args([
            ["--tls-cert", &file("127.0.0.1.pem")],
            ["--tls-key", &file("127.0.0.1.key")],
            ["--client-ca", &file("ca.pem")],
        ].as_flattened().iter().copied()).start();
        let cert = ["--cert", &file("alice.pem"), "--key", &file("alice.key"), "--ca", &file("ca.pem")];
        let target = cert.into_iter().chain([agent.address()]).map(str::to_owned).collect();
        Self { target, directory, agent: Some(agent) }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// `telexec SUBCOMMAND FLAGS... TARGET ARGS...`
    fn telexec(&self, subcommand: &str, args: &[&str]) -> Command {
        let target = self.target.iter().map(String::as_str);
        telexec([subcommand].into_iter().chain(target).chain(args.iter().copied()))
    }

    async fn exec(&self, args: &[&str]) -> Said {
        Said::by(self.telexec("exec", args)).await
    }

    /// Starts a command that says `ready`, and waits until it does. What it says after that can be read.
    async fn running(&self, args: &[&str]) -> (Child, BufReader<ChildStdout>) {
        let mut child = self.telexec("exec", args).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        assert_eq!(next_line(&mut stdout).await, "ready\n");
        (child, stdout)
    }
}

async fn next_line(stdout: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    within(stdout.read_line(&mut line)).await.unwrap();
    line
}

fn interrupt(child: &Child) {
    let pid = i32::try_from(child.id().expect("it runs")).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
}

macro_rules! at_every_target {
    ($target:ident: $($case:ident),+) => {
        mod $target {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    super::$case(super::Site::$target().await).await;
                }
            )+
        }
    };
    ($($case:ident),+ $(,)?) => {
        at_every_target!(local: $($case),+);
        at_every_target!(unix: $($case),+);
        at_every_target!(mtls: $($case),+);
    };
}

at_every_target! {
    the_commands_own_code_is_the_exit_code,
    a_timeout_is_124,
    a_refused_request_is_125,
    a_bad_directory_is_125,
    a_program_that_is_not_executable_is_126,
    a_program_that_is_missing_is_127,
    a_signal_is_128_and_its_number,
    ctrl_c_is_130_and_leaves_nothing,

    arguments_after_the_dashes_are_verbatim,
    bytes_are_exact_and_streams_are_kept_apart,
    output_arrives_while_the_command_runs,
    standard_input_is_sent_when_asked_for,
    environment_and_directory_are_set,
    json_lines_tell_the_events,
    a_reader_that_leaves_ends_it_quietly,

    ping_tells_that_it_serves,
    info_describes_the_agent,
    the_tool_answers,
}

// exec: exit codes

async fn the_commands_own_code_is_the_exit_code(site: Site) {
    for code in [0, 1, 7, 124, 127, 255] {
        let said = site.exec(&["-c", &format!("exit {code}")]).await;
        assert_eq!((said.code, said.stdout(), said.stderr()), (code, "", ""));
    }
}

async fn a_timeout_is_124(site: Site) {
    let said = site.exec(&["--timeout", "1.5", "-c", "echo out; exec sleep 300"]).await;
    assert_eq!((said.code, said.stdout()), (124, "out\n"));
    assert!(said.remark().contains("timed out"), "{said:?}");
}

async fn a_refused_request_is_125(site: Site) {
    assert!(site.exec(&["-c", ""]).await.failure(125).contains("command"));
    assert!(site.exec(&["--", ""]).await.failure(125).contains("argv"));
}

async fn a_bad_directory_is_125(site: Site) {
    std::fs::write(site.path().join("file"), "").unwrap();
    for name in ["missing", "file"] {
        let directory = format!("{}/{name}", site.path().display());
        let said = site.exec(&["-w", &directory, "-c", "echo ran"]).await;
        assert!(said.failure(125).contains(&directory), "{said:?}");
    }
}

async fn a_program_that_is_not_executable_is_126(site: Site) {
    let file = site.path().join("file");
    std::fs::write(&file, "#!/bin/sh\n").unwrap();
    let file = file.to_str().unwrap();
    let missing = executable(site.path(), "script", "#!/no/such/interpreter\n");
    for args in [&["--", file][..], &["--", missing.to_str().unwrap()], &["--shell", file, "-c", "true"]] {
        site.exec(args).await.failure(126);
    }
}

async fn a_program_that_is_missing_is_127(site: Site) {
    for args in [&["--", "no-such-program"][..], &["--", "/no/such/program"], &["--shell", "no-such-shell", "-c", "x"]] {
        assert!(site.exec(args).await.failure(127).contains("no"), "{args:?}");
    }
}

async fn a_signal_is_128_and_its_number(site: Site) {
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("USR1", 138)] {
        let said = site.exec(&["-c", &format!("echo out; kill -{signal} $$")]).await;
        assert_eq!((said.code, said.stdout()), (code, "out\n"));
        assert!(said.remark().contains(signal), "{said:?}");
    }
}

async fn ctrl_c_is_130_and_leaves_nothing(site: Site) {
    let mark = marker();
    let text = "setsid sleep 300 & sleep 300 & trap '' INT; echo ready; sleep 300";
    let (child, _stdout) = site.running(&["-e", &format!("{MARK}={mark}"), "-c", text]).await;
    interrupt(&child);
    let said = Said::by_child(child).await;
    assert_eq!((said.code, said.stderr()), (130, ""));
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

#[tokio::test]
async fn what_cannot_be_reached_is_255() {
    let directory = tempfile::tempdir().unwrap();
    let nothing = format!("unix://{}/nothing.sock", directory.path().display());
    // it was free a moment ago, and no one else takes a port of this address
    let port = std::net::TcpListener::bind("127.83.19.7:0").unwrap().local_addr().unwrap();
    for target in [&nothing, &format!("tcp://{port}")] {
        for line in [&["exec", target, "--", "true"][..], &["ping", target], &["info", target], &["tool", target]] {
            let said = say(line).await;
            assert!(said.failure(255).contains(target.split_once("://").unwrap().1), "{line:?}: {said:?}");
        }
    }
}

#[tokio::test]
async fn an_agent_that_is_killed_meanwhile_is_255() {
    let mut site = Site::unix().await;
    // killed, the agent cannot end it: it ends with its directory
    let text = format!("echo ready; while [ -d {} ]; do sleep 0.05; done", site.path().display());
    let (child, _stdout) = site.running(&["-c", &text]).await;
    site.agent.as_mut().unwrap().kill();
    Said::by_child(child).await.failure(255);
}

#[tokio::test]
async fn an_agent_that_shuts_down_meanwhile_is_255() {
    let mut site = Site::unix().await;
    site.agent = Some(Agent::builder().config("shutdown_grace = \"0s\"\n").start());
    site.target = vec![site.agent.as_ref().unwrap().uri().to_owned()];
    let (child, _stdout) = site.running(&["-c", "echo ready; exec sleep 300"]).await;
    site.agent.as_mut().unwrap().terminate().await;
    assert!(Said::by_child(child).await.failure(255).contains("shut down"));
}

#[tokio::test]
async fn a_line_that_makes_no_sense_is_2() {
    for line in [
        &[][..],
        &["no-such-subcommand"],
        &["exec"],
        &["exec", "local"],
        &["exec", "local", "--"],
        &["exec", "local", "-c", "true", "--", "true"],
        &["exec", "local", "-e", "NO_VALUE", "-c", "true"],
        &["exec", "local", "-e", "=no-name", "-c", "true"],
        &["exec", "local", "--timeout", "0", "-c", "true"],
        &["exec", "local", "--no-such-flag", "-c", "true"],
        &["exec", "no-such-target", "-c", "true"],
        &["exec", "--cert", "a.pem", "localhost:1", "-c", "true"],
        &["certs", "issue"],
        &["certs", "issue", "../a"],
        &["completions", "no-such-shell"],
    ] {
        let said = say(line).await;
        assert_eq!((said.code, said.stdout(), said.stderr.is_empty()), (2, "", false), "{line:?}");
    }
}

// exec: what goes in and comes out

async fn arguments_after_the_dashes_are_verbatim(site: Site) {
    let args = ["", "a b", "*", "$HOME", "`id`", "'\"\\", "--json", "--", "-c", "é", "\n", "~"];
    let said = site.exec(&[&["--", "printf", "<%s>"][..], &args].concat()).await;
    assert_eq!(said.answer(), args.map(|arg| format!("<{arg}>")).concat());
}

async fn bytes_are_exact_and_streams_are_kept_apart(site: Site) {
    let all: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    std::fs::write(site.path().join("all"), &all).unwrap();
    let directory = site.path().to_str().unwrap();
    let said = site.exec(&["-w", directory, "-c", "tail -c 1000 all >&2; cat all"]).await;
    assert!(said.code == 0 && said.stdout == all, "{} of {} bytes", said.stdout.len(), all.len());
    assert!(said.stderr == all[all.len() - 1000..], "{:?}", said.stderr);
}

async fn output_arrives_while_the_command_runs(site: Site) {
    let text = "echo ready; until [ -e go ]; do sleep 0.01; done; printf 'no newline'; exit 3";
    let (child, mut stdout) = site.running(&["-w", site.path().to_str().unwrap(), "-c", text]).await;
    std::fs::write(site.path().join("go"), "").unwrap();
    assert_eq!(next_line(&mut stdout).await, "no newline");
    assert_eq!(Said::by_child(child).await.code, 3);
}

async fn standard_input_is_sent_when_asked_for(site: Site) {
    let all: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    for (flags, expected) in [(&["-i"][..], &all[..]), (&["--stdin"], &all), (&[], &[])] {
        let mut command = site.telexec("exec", &[flags, &["--", "cat"]].concat());
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let all = all.clone();
        // without -i nobody reads it
        let feed = tokio::spawn(async move { stdin.write_all(&all).await });
        let said = Said::by_child(child).await;
        assert!(said.code == 0 && said.stdout == expected, "{flags:?}: {} bytes", said.stdout.len());
        assert_eq!(within(feed).await.unwrap().is_ok(), !flags.is_empty());
    }
}

async fn environment_and_directory_are_set(site: Site) {
    let directory = site.path().canonicalize().unwrap();
    let directory = directory.to_str().unwrap();
    let env = ["-e", "A=1", "--env", "B=x=y z", "-e", "C="];
    let said = site.exec(&[&env[..], &["-w", directory, "-c", "echo \"$A|$B|${C-unset}\"; pwd"]].concat()).await;
    assert_eq!(said.answer(), format!("1|x=y z|\n{directory}\n"));
}

async fn json_lines_tell_the_events(site: Site) {
    let said = site.exec(&["--json", "-c", "echo $$; printf '\\377\\0' >&2; exit 3"]).await;
    assert_eq!((said.code, said.stderr()), (3, ""));
    let events: Vec<Value> = said.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [started, chunks @ .., exited] = &events[..] else { panic!("{said:?}") };
    assert_eq!(started["event"], "started");
    assert!(!started["execution_id"].as_str().unwrap().is_empty());
    let output = |name: &str| chunks.iter().find(|chunk| chunk["event"] == name).unwrap();
    assert_eq!(output("stdout")["text"], format!("{}\n", started["pid"]));
    assert_eq!(output("stderr")["base64"], "/wA=");
    assert_eq!((&exited["event"], &exited["cause"]), (&json!("exited"), &json!("exited")));
    assert_eq!((&exited["exit_code"], &exited["signal"]), (&json!(3), &json!(null)));
    assert_eq!((&exited["stderr"]["bytes"], &exited["surviving_processes"]), (&json!(2), &json!(0)));
}

async fn a_reader_that_leaves_ends_it_quietly(site: Site) {
    let mark = marker();
    let text = "echo ready; yes & yes";
    let (child, stdout) = site.running(&["-e", &format!("{MARK}={mark}"), "-c", text]).await;
    drop(stdout);
    let said = Said::by_child(child).await;
    assert_eq!(said.stderr(), "");
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

// exec: the target local

#[tokio::test]
async fn local_starts_where_it_is_called_and_finds_what_its_caller_finds() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("sub")).unwrap();
    executable(directory.path(), "where-am-i", "#!/bin/sh\npwd\n");
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let here = directory.path().canonicalize().unwrap();
    for (flags, expected) in [(&[][..], here.clone()), (&["-w", "sub"], here.join("sub"))] {
        let mut command = telexec([&["exec", "local"], flags, &["--", "where-am-i"]].concat());
        command.current_dir(directory.path()).env("PATH", &path);
        assert_eq!(Said::by(command).await.answer(), format!("{}\n", expected.display()));
    }
}

#[tokio::test]
async fn local_leaves_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    for line in [
        &["exec", "local", "-c", "true"][..],
        &["exec", "local", "--", "no-such-program"],
        &["exec", "local", "-c", "kill -KILL $$"],
        &["ping", "local"],
        &["tool", "local", "bash", "{\"command\":\"cd /\"}"],
    ] {
        let mut command = telexec(line);
        command.env("TMPDIR", directory.path());
        Said::by(command).await;
        assert_eq!(files(), [""; 0].map(std::path::PathBuf::from), "{line:?}");
    }
    let mut child = telexec(["exec", "local", "-c", "echo ready; sleep 300"]);
    let mut child = child.env("TMPDIR", directory.path()).spawn().unwrap();
    next_line(&mut BufReader::new(child.stdout.take().unwrap())).await;
    interrupt(&child);
    Said::by_child(child).await;
    assert_eq!(files(), [""; 0].map(std::path::PathBuf::from));
}

// ping, info and tool

async fn ping_tells_that_it_serves(site: Site) {
    let said = Said::by(site.telexec("ping", &[])).await;
    let target = site.target.last().unwrap();
    let (shown, state) = said.answer().trim_end().split_once(": ").unwrap();
    assert!(shown.contains(target.as_str()) && state.starts_with("serving, ") && state.ends_with(" ms"), "{said:?}");
}

async fn info_describes_the_agent(site: Site) {
    let said = Said::by(site.telexec("info", &["--json"])).await;
    let info: Value = serde_json::from_str(said.answer()).unwrap();
    assert_eq!((&info["version"], &info["os"]), (&json!(env!("CARGO_PKG_VERSION")), &json!("linux")));
    assert_eq!(info["architecture"], std::env::consts::ARCH);
    assert_eq!(info["running_executions"], 0);
    let own = format!("unix:uid={}", rustix::process::geteuid().as_raw());
    let identity = if site.target.len() > 1 { "alice" } else { &own };
    assert_eq!(info["identity"], identity);
    let text = Said::by(site.telexec("info", &[])).await;
    for (key, value) in [("version:", env!("CARGO_PKG_VERSION")), ("identity:", identity)] {
        let mut words = text.answer().lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert!(words.any(|words| words == [key, value]), "{text:?}");
    }
}

async fn the_tool_answers(site: Site) {
    let call = async |args: &[&str]| Said::by(site.telexec("tool", &[&["bash"], args].concat())).await;
    assert_eq!(call(&["{\"command\": \"echo hello\"}"]).await.answer(), "hello\n");
    assert_eq!(call(&["{\"command\": \"exit 42\"}"]).await.answer(), "exit code: 42\n");
    let both = "{\"command\": \"echo out; echo err >&2\"}";
    let sections = "stdout:\nout\nstderr:\nerr\nexit code: 0\n";
    assert_eq!(call(&["--style", "sections", both]).await.answer(), sections);
    let code_first = "Exit code: 0\nSTDOUT:\nout\n\nSTDERR:\nerr\n";
    assert_eq!(call(&["--style", "code-first", both]).await.answer(), code_first);
    let result: Value = serde_json::from_str(call(&["--json", both]).await.answer()).unwrap();
    let details = json!({ "exit_code": 0, "success": true });
    assert_eq!(result, json!({ "text": "out\n\nstderr: err\n", "details": details, "is_error": false }));
}

#[tokio::test]
async fn an_error_result_of_the_tool_is_1() {
    let said = say(&["tool", "local", "bash", "{\"command\": \"sleep 300\", \"timeout\": 1}"]).await;
    assert_eq!((said.code, said.stdout(), said.stderr()), (1, "command timed out after 1s\n", ""));
}

#[tokio::test]
async fn a_failed_call_of_the_tool_is_1() {
    say(&["tool", "local", "bash"]).await.failure(1);
    let line = ["tool", "--style", "code-first", "local", "bash", "{\"command\": \"sleep 300\", \"timeout\": 1}"];
    assert!(say(&line).await.failure(1).contains("Command timed out after 1s"));
}

#[tokio::test]
async fn an_agent_that_is_killed_during_a_call_of_the_tool_is_255() {
    let mut site = Site::unix().await;
    let path = site.path().display();
    let params = json!({ "command": format!("touch {path}/begun; while [ -d {path} ]; do sleep 0.05; done") });
    let child = site.telexec("tool", &["bash", &params.to_string()]).spawn().unwrap();
    until("the command runs", async || site.path().join("begun").exists()).await;
    site.agent.as_mut().unwrap().kill();
    Said::by_child(child).await.failure(255);
}

#[tokio::test]
async fn parameters_of_the_tool_come_from_standard_input_too() {
    let mut child = telexec(["tool", "local", "bash", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"{\"command\":\n\"echo hello\"}\n").await.unwrap();
    assert_eq!(Said::by_child(child).await.answer(), "hello\n");
}

#[tokio::test]
async fn odd_parameters_of_the_tool_are_2() {
    for args in [&["bash", "{"][..], &["bash", "[]"], &["no-such-tool"]] {
        Said::by(telexec([&["tool", "local"], args].concat())).await.failure(2);
    }
}

#[tokio::test]
async fn the_tool_streams_to_standard_error_when_asked_to() {
    let line = ["tool", "--stream", "local", "bash", "{\"command\": \"echo out; exit 3\"}"];
    let said = say(&line).await;
    assert_eq!((said.code, said.stdout(), said.stderr()), (0, "out\n\nexit code: 3\n", "out\n"));
}

#[tokio::test]
async fn tools_are_listed() {
    let said = say(&["tool", "local"]).await;
    assert!(said.answer().starts_with("bash  ") && said.answer().lines().count() == 1, "{said:?}");
    let tools: Value = serde_json::from_str(say(&["tool", "--json", "local"]).await.answer()).unwrap();
    assert_eq!((&tools[0]["name"], &tools[1]), (&json!("bash"), &Value::Null));
    assert_eq!(tools[0]["inputSchema"]["required"], json!(["command"]));
}

// certs

async fn certs(args: &[&str], directory: &Path) -> Said {
    let mut command = telexec(["certs"].iter().chain(args));
    command.arg("--dir").arg(directory);
    Said::by(command).await
}

#[tokio::test]
async fn keys_are_for_their_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let certs_directory = directory.path().join("new/certs");
    certs(&["init"], &certs_directory).await.answer();
    certs(&["issue", "web-1"], &certs_directory).await.answer();
    for (name, mode) in [("", 0o700), ("ca.key", 0o600), ("web-1.key", 0o600), ("ca.pem", 0o644), ("web-1.pem", 0o644)] {
        let file = certs_directory.join(name).metadata().unwrap();
        assert_eq!(format!("{:o}", file.permissions().mode() & 0o777), format!("{mode:o}"), "{name}");
    }
}

#[tokio::test]
async fn certificates_are_not_overwritten_unless_forced() {
    let directory = tempfile::tempdir().unwrap();
    let contents = || ["ca.pem", "ca.key", "a.pem", "a.key"].map(|name| lines(&directory.path().join(name)));
    let both = [&["init"][..], &["issue", "a"]];
    for line in both {
        certs(line, directory.path()).await.answer();
    }
    let before = contents();
    for line in both {
        assert!(certs(line, directory.path()).await.failure(1).contains("--force"));
    }
    assert_eq!(contents(), before);
    for line in both {
        certs(&[line, &["--force"]].concat(), directory.path()).await.answer();
    }
    assert!(contents().iter().zip(&before).all(|(new, old)| new != old && !new.is_empty()));
}

#[tokio::test]
async fn without_an_authority_nothing_is_issued() {
    let directory = tempfile::tempdir().unwrap();
    assert!(certs(&["issue", "a"], directory.path()).await.failure(1).contains("telexec certs init"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn certificates_are_kept_in_the_configuration_directory() {
    let directory = tempfile::tempdir().unwrap();
    for (variable, path) in [("XDG_CONFIG_HOME", "telexec/certs"), ("HOME", ".config/telexec/certs")] {
        let mut command = telexec(["certs", "init"]);
        command.env_remove("XDG_CONFIG_HOME").env(variable, directory.path());
        Said::by(command).await.answer();
        assert!(directory.path().join(path).join("ca.key").is_file(), "{variable}");
    }
}

#[tokio::test]
async fn certificates_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    certs(&["init", "--name", "our machines"], directory.path()).await.answer();
    let names = ["--dns", "web.example.org", "--ip", "10.0.0.7", "--uri", "spiffe://example.org/web"];
    certs(&[&["issue", "web-1", "--server"], &names[..]].concat(), directory.path()).await.answer();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let said = say(&["certs", "show", &file("ca.pem"), &file("web-1.pem")]).await;
    let shown: Vec<String> = said.answer().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "subject: CN=our machines",
        "subject: CN=web-1",
        "names: dns web.example.org, ip 10.0.0.7, uri spiffe://example.org/web",
        "issuer: CN=our machines",
    ] {
        assert!(shown.iter().any(|shown| shown == line), "{line}: {shown:#?}");
    }
    assert_eq!(shown.iter().filter(|line| line.starts_with("validity: ") && line.ends_with("(valid now)")).count(), 2);
    say(&["certs", "show", &file("ca.key")]).await.failure(1);
    assert!(say(&["certs", "show", &file("none.pem")]).await.failure(1).contains("none.pem"));
}

#[tokio::test]
async fn a_caller_whom_the_agent_cannot_trust_is_told_so() {
    let site = Site::mtls().await;
    let [.., address] = &site.target[..] else { panic!("{:?}", site.target) };
    let said = say(&["exec", address, "--", "true"]).await;
    assert!(said.failure(255).contains("--cert"), "{said:?}");

    let other = tempfile::tempdir().unwrap();
    for line in [&["init"][..], &["issue", "mallory", "--client"]] {
        certs(line, other.path()).await.answer();
    }
    let file = |name: &str| other.path().join(name).to_str().unwrap().to_owned();
    let ours = site.path().join("certs/ca.pem");
    let cert = ["exec", "--cert", &file("mallory.pem"), "--key", &file("mallory.key"), "--ca"];
    let said = say(&[&cert[..], &[ours.to_str().unwrap(), address, "--", "true"]].concat()).await;
    assert!(said.failure(255).contains("refused --cert"), "{said:?}");
    let said = say(&[&cert[..], &[&file("ca.pem"), address, "--", "true"]].concat()).await;
    assert!(said.failure(255).contains("--ca"), "{said:?}");
}

// completions and help

#[tokio::test]
async fn completions_are_scripts() {
    for shell in ["bash", "zsh", "fish"] {
        let said = say(&["completions", shell]).await;
        for word in ["exec", "tool", "ping", "info", "certs", "completions", "workdir"] {
            assert!(said.answer().contains(word), "{shell}: {word}");
        }
    }
}

#[tokio::test]
async fn completions_complete_in_bash() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("telexec.bash");
    std::fs::write(&script, say(&["completions", "bash"]).await.answer()).unwrap();
    let complete = "source $0; COMP_WORDS=(telexec ex); COMP_CWORD=1; _telexec telexec ex telexec; echo ${COMPREPLY[*]}";
    let output = within(Command::new("bash").args(["-uc", complete]).arg(&script).output()).await.unwrap();
    assert_eq!((String::from_utf8(output.stdout), String::from_utf8(output.stderr)), (Ok("exec\n".into()), Ok("".into())));
}

/// The subcommands that a help lists.
fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).filter(|name| !name.is_empty());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[tokio::test]
async fn every_subcommand_has_help_and_only_what_is_built_is_there() {
    let mut lines = vec![Vec::<String>::new()];
    let mut seen = Vec::new();
    while let Some(line) = lines.pop() {
        let said = Said::by(telexec(line.iter().map(String::as_str).chain(["--help"]))).await;
        let help = said.answer();
        for unbuilt in ["fleet", "attach", "detach", "--tty", "--user", "vsock", "policy.toml", "config.toml", "--crl"] {
            assert!(!help.contains(unbuilt), "{line:?}: {unbuilt}");
        }
        lines.extend(subcommands(help).into_iter().map(|name| [&line[..], &[name]].concat()));
        seen.push(line.join(" "));
    }
    seen.sort();
    let all = ["", "certs", "certs init", "certs issue", "certs show", "completions", "exec", "info", "ping", "tool"];
    assert_eq!(seen, all);
}

#[tokio::test]
async fn the_version_is_told() {
    assert_eq!(say(&["--version"]).await.answer(), concat!("telexec ", env!("CARGO_PKG_VERSION"), "\n"));
}
