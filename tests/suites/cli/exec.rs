//! `telexec exec`.

use std::io::Write as _;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use telexec_tests::{Agent, MARK, executable, marker, processes_with, until};
use tokio::io::BufReader;

use super::{Said, Site, interrupt, next_line, say, send, telexec};

// its exit code

pub(super) async fn the_commands_own_code_is_the_exit_code(site: Site) {
    for code in [0, 1, 7, 124, 127, 255] {
        let said = site.exec(&["-c", &format!("exit {code}")]).await;
        assert_eq!((said.code, said.stdout(), said.stderr()), (code, "", ""));
    }
}

pub(super) async fn a_timeout_is_124(site: Site) {
    let said = site.exec(&["--timeout", "300ms", "--", "sleep", "300"]).await;
    assert!(said.failure(124).contains("timed out"), "{said:?}");
}

pub(super) async fn a_refused_request_is_125(site: Site) {
    assert!(site.exec(&["-c", ""]).await.failure(125).contains("the text of -c is empty"));
    assert!(site.exec(&["--", ""]).await.failure(125).contains("names no program"));
    assert!(site.exec(&["-u", "", "-c", "true"]).await.failure(125).contains("--user is empty"));
    assert!(site.exec(&["--cpus", "0.001", "-c", "true"]).await.failure(125).contains("--cpus is not a number"));
}

pub(super) async fn a_bad_directory_is_125(site: Site) {
    std::fs::write(site.path().join("file"), "").unwrap();
    for name in ["missing", "file"] {
        let directory = format!("{}/{name}", site.path().display());
        let said = site.exec(&["-w", &directory, "-c", "echo ran"]).await;
        assert!(said.failure(125).contains(&directory), "{said:?}");
    }
}

pub(super) async fn a_program_that_is_not_executable_is_126(site: Site) {
    let file = site.path().join("file");
    std::fs::write(&file, "#!/bin/sh\n").unwrap();
    let file = file.to_str().unwrap();
    let missing = executable(site.path(), "script", "#!/no/such/interpreter\n");
    for args in [&["--", file][..], &["--", missing.to_str().unwrap()], &["--shell", file, "-c", "true"]] {
        site.exec(args).await.failure(126);
    }
}

pub(super) async fn a_program_that_is_missing_is_127(site: Site) {
    let missing = |name| [["--", name, ""], ["--shell", name, "-ctrue"]];
    for name in ["no-such-program", "/no/such/program"] {
        for args in missing(name) {
            let said = site.exec(&args).await;
            assert!(said.failure(127).contains(name), "{args:?}: {said:?}");
        }
    }
}

pub(super) async fn a_signal_is_128_and_its_number(site: Site) {
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("USR1", 138)] {
        let said = site.exec(&["-c", &format!("echo out; kill -{signal} $$")]).await;
        assert_eq!((said.code, said.stdout()), (code, "out\n"));
        assert!(said.remark().contains(signal), "{said:?}");
    }
}

pub(super) async fn ctrl_c_is_130_and_leaves_nothing(site: Site) {
    for (signal, code) in [(Signal::INT, 130), (Signal::QUIT, 131)] {
        let mark = marker();
        let text = "setsid sleep 300 & sleep 300 & trap '' INT; echo ready; sleep 300";
        let (child, _stdout) = site.running(&["-e", &format!("{MARK}={mark}"), "-c", text]).await;
        send(&child, signal);
        let said = Said::by_child(child).await;
        assert_eq!((said.code, said.stderr()), (code, ""));
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
    }
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
        &["exec", "-t", "local"],
        &["exec", "local", "-e", "NOT_SET_HERE", "-c", "true"],
        &["exec", "local", "--env-file", "/no/such/file", "true"],
        &["exec", "local", "-e", "=no-name", "-c", "true"],
        &["exec", "local", "--timeout", "0", "-c", "true"],
        &["exec", "local", "--memory", "1X", "-c", "true"],
        &["exec", "local", "--max-processes", "0", "-c", "true"],
        &["exec", "local", "--cpus", "-1", "-c", "true"],
        &["exec", "local", "--no-such-flag", "-c", "true"],
        &["exec", "/run/agent.sock", "-c", "true"],
        &["exec", "root@localhost", "-c", "true"],
        &["exec", "local", "-c", "true", "true"],
        &["exec", "--cert", "a.pem", "localhost:1", "-c", "true"],
        &["exec", "local", "-it", "-c", "true"],
        &["exec", "local", "-d", "-c", "true"],
        &["exec", "local", "--yield-after", "1", "-c", "true"],
        &["exec", "local", "--on-disconnect", "detach", "-c", "true"],
        &["exec", "local", "-d", "--on-disconnect", "kill", "-c", "true"],
        &["exec", "local", "--detach-keys", "ctrl-1", "-c", "true"],
        &["exec", "local", "--id", "../a", "-c", "true"],
        &["ps", "local"],
        &["logs", "unix:///a", "a", "--tail", "-1"],
        &["wait", "unix:///a"],
        &["attach", "local", "a"],
        &["input", "local", "a", "text"],
        &["kill", "local", "a"],
        &["kill", "unix:///a", "-s", "NOPE", "a"],
        &["certs", "issue"],
        &["certs", "issue", "a"],
        &["certs", "issue", "../a", "--client"],
        &["completions", "no-such-shell"],
    ] {
        let said = say(line).await;
        assert_eq!((said.code, said.stdout(), said.stderr.is_empty()), (2, "", false), "{line:?}");
    }
}

// what goes in and what comes out

pub(super) async fn arguments_of_the_program_are_verbatim(site: Site) {
    let args = ["", "a b", "*", "$HOME", "`id`", "'\"\\", "--json", "--", "-c", "é", "\n", "~"];
    for dashes in [&["--"][..], &[]] {
        let said = site.exec(&[dashes, &["printf", "<%s>"], &args].concat()).await;
        assert_eq!(said.answer(), args.map(|arg| format!("<{arg}>")).concat());
    }
}

pub(super) async fn bytes_are_exact_and_streams_are_kept_apart(site: Site) {
    let all: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    std::fs::write(site.path().join("all"), &all).unwrap();
    let directory = site.path().to_str().unwrap();
    let said = site.exec(&["-w", directory, "-c", "tail -c 1000 all >&2; cat all"]).await;
    assert!(said.code == 0 && said.stdout == all, "{} of {} bytes", said.stdout.len(), all.len());
    assert!(said.stderr == all[all.len() - 1000..], "{:?}", said.stderr);
}

#[tokio::test]
async fn merged_output_is_one_stream_in_its_order() {
    let site = Site::unix().await;
    let text = "for n in $(seq 500); do echo out $n; echo err $n >&2; done";
    let said = site.exec(&["--merge", "-c", text]).await;
    let expected: String = (1..=500).map(|n| format!("out {n}\nerr {n}\n")).collect();
    assert_eq!(said.answer(), expected);
}

pub(super) async fn output_arrives_while_the_command_runs(site: Site) {
    let text = "echo ready; until [ -e go ]; do sleep 0.01; done; printf 'no newline'; exit 3";
    let (child, mut stdout) = site.running(&["-w", site.path().to_str().unwrap(), "-c", text]).await;
    std::fs::write(site.path().join("go"), "").unwrap();
    assert_eq!(next_line(&mut stdout).await, "no newline");
    assert_eq!(Said::by_child(child).await.code, 3);
}

pub(super) async fn environment_and_directory_are_set(site: Site) {
    let directory = site.path().canonicalize().unwrap();
    let directory = directory.to_str().unwrap();
    let env = ["-e", "A=1", "--env", "B=x=y z", "-e", "C="];
    let said = site.exec(&[&env[..], &["-w", directory, "-c", "echo \"$A|$B|${C-unset}\"; pwd"]].concat()).await;
    assert_eq!(said.answer(), format!("1|x=y z|\n{directory}\n"));
}

pub(super) async fn variables_are_passed_on_and_read_from_files(site: Site) {
    let file = site.path().join("variables");
    std::fs::write(&file, "# none\nA=of the file\nB=\"quoted\" \nOWN\n").unwrap();
    let args = ["-e", "OWN_TOO", "--env-file", file.to_str().unwrap(), "-e", "A=of the flag"];
    let mut command = site.telexec("exec", &[&args[..], &["-c", "echo \"$A|$B|$OWN|$OWN_TOO\""]].concat());
    command.env("OWN", "own").env("OWN_TOO", "own too");
    assert_eq!(Said::by(command).await.answer(), "of the flag|\"quoted\" |own|own too\n");
    std::fs::write(&file, "A=1\nNOT_SET_HERE\n").unwrap();
    for args in [["-e", "NOT_SET_HERE"], ["--env-file", file.to_str().unwrap()]] {
        let said = site.exec(&[&args[..], &["true"]].concat()).await;
        assert!(said.code == 2 && said.stderr().contains("NOT_SET_HERE is not set here"), "{said:?}");
    }
    // a pipe can be read only once
    for (text, code) in [("A=1\n", 0), ("A=1\nNOT_SET_HERE\n", 2)] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(text.as_bytes()).unwrap();
        drop(writer);
        let mut command = site.telexec("exec", &["--env-file", "/dev/stdin", "-c", "test \"$A\" = 1"]);
        command.stdin(reader);
        assert_eq!(Said::by(command).await.code, code);
    }
}

pub(super) async fn json_lines_tell_the_events(site: Site) {
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

pub(super) async fn a_reader_that_leaves_ends_it_quietly(site: Site) {
    let mark = marker();
    let text = "echo ready; yes & yes";
    let (child, stdout) = site.running(&["-e", &format!("{MARK}={mark}"), "-c", text]).await;
    drop(stdout);
    let said = Said::by_child(child).await;
    assert_eq!(said.stderr(), "");
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

// the target `local`

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
        assert_eq!(files(), [""; 0].map(PathBuf::from), "{line:?}");
    }
    let mut child = telexec(["exec", "local", "-c", "echo ready; sleep 300"]);
    let mut child = child.env("TMPDIR", directory.path()).spawn().unwrap();
    next_line(&mut BufReader::new(child.stdout.take().unwrap())).await;
    interrupt(&child);
    Said::by_child(child).await;
    assert_eq!(files(), [""; 0].map(PathBuf::from));
}

// what people are told

#[tokio::test]
async fn a_shell_command_as_one_word_is_advised_to_be_one() {
    let said = say(&["exec", "local", "echo it's"]).await;
    assert!(said.failure(127).contains(r"use -c 'echo it'\''s'"), "{said:?}");
    assert!(!say(&["exec", "local", "no-such-program", "a b"]).await.failure(127).contains("-c"));
}

#[tokio::test]
async fn a_timeout_of_the_agent_is_said_to_be_its() {
    let mut site = Site::unix().await;
    let agent = Agent::builder().config("max_timeout = \"500ms\"\n").start();
    site.target = vec![agent.uri().to_owned()];
    site.agent = Some(agent);
    for (flags, is_agents) in [(&["--timeout", "1h"][..], true), (&[], true), (&["--timeout", "100ms"], false)] {
        let said = site.exec(&[flags, &["sleep", "300"]].concat()).await;
        let message = said.failure(124);
        assert!(message.contains("timed out") && message.contains("set by the agent's") == is_agents, "{said:?}");
    }
}

#[tokio::test]
async fn output_that_is_not_whole_is_no_success() {
    let mut site = Site::unix().await;
    let agent = Agent::builder().config("max_output_bytes = 10\n").start();
    site.target = vec![agent.uri().to_owned()];
    site.agent = Some(agent);
    let id = site.detached(&["printf", "0123456789abc"]).await;
    for said in [site.exec(&["printf", "0123456789abc"]).await, site.say("attach", &[&id]).await] {
        assert_eq!((said.code, said.stdout()), (255, "0123456789"));
        assert!(said.remark().contains("3 bytes of the output were dropped"), "{said:?}");
        assert!(said.remark().contains("exited with 0, but part of its output is missing"), "{said:?}");
    }
    // a code of the command's own that is no success stays, and who does not ask for the output misses nothing
    assert_eq!(site.exec(&["-c", "printf 0123456789abc; exit 3"]).await.code, 3);
    assert_eq!(site.say("wait", &[&id]).await.code, 0);
}

#[tokio::test]
async fn what_is_no_program_is_said_to_be_meant_otherwise() {
    for (line, hint) in [
        (&["export", "A=1"][..], "export is built into the shell, so use -c 'export A=1'"),
        (&["A=1 2", "env"], "-e 'A=1 2'"),
    ] {
        let said = say(&[&["exec", "local"], line].concat()).await;
        assert!(said.failure(127).contains(hint), "{said:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    std::fs::write(&file, "[targets.web1]\naddress = 'a'\n[targets.web2]\naddress = 'b'\n").unwrap();
    let configured = async |line: &[&str]| {
        let mut command = telexec(line);
        command.env("TELEXEC_CONFIG", &file);
        Said::by(command).await
    };
    let said = configured(&["exec", "local", "web2", "uptime"]).await;
    assert!(said.failure(127).contains("telexec fleet -w local,web2 PROGRAM"), "{said:?}");
    let said = configured(&["exec"]).await;
    assert!(said.code == 2 && said.stderr().contains("configured targets: web1, web2"), "{said:?}");
    let said = configured(&["exec", "web1,web2", "uptime"]).await;
    assert!(said.code == 2 && said.stderr().contains("telexec fleet -w web1,web2 PROGRAM"), "{said:?}");
    let said = say(&["exec", "local", "--memory", "512", "true"]).await;
    assert!(said.code == 2 && said.stderr().contains("512M"), "{said:?}");
}

#[tokio::test]
async fn flags_of_a_program_after_a_text_are_not_those_of_telexec() {
    for line in [&["-c", "ls", "-la"][..], &["-c", "df", "-h"], &["-c", "uname", "-a"], &["-c", "ls", "/tmp"]] {
        let said = say(&[&["exec", "local"], line].concat()).await;
        let hint = format!("quote the whole command: -c '{} {}'", line[1], line[2]);
        assert!(said.code == 2 && said.stderr().contains(&hint), "{said:?}");
    }
}

#[tokio::test]
async fn variables_that_are_set_to_nothing_are_unset() {
    let site = Site::unix().await;
    let mut command = site.telexec("exec", &["true"]);
    for name in ["TELEXEC_CERT", "TELEXEC_KEY", "TELEXEC_CA", "TELEXEC_SERVER_NAME", "TELEXEC_LOG_LEVEL"] {
        command.env(name, "");
    }
    Said::by(command).await.answer();
    let mut command = telexec(["exec", "localhost:1", "true"]);
    command.env("TELEXEC_CERT", "");
    Said::by(command).await.failure(255);
}

#[tokio::test]
async fn what_is_wrong_with_the_path_of_a_socket_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("{}/{name}", directory.path().display());
    std::fs::write(path("file"), "").unwrap();
    for (name, what) in [
        ("agent.sock", "the socket does not exist, though its directory does".to_owned()),
        ("none/at/all/agent.sock", format!("there is no directory {}: ", path("none"))),
        ("file", format!("{} is not a socket", path("file"))),
    ] {
        let said = say(&["ping", &format!("unix://{}", path(name))]).await;
        assert!(said.failure(255).contains(&what), "{said:?}");
    }
}

#[tokio::test]
async fn a_refusal_by_the_policy_is_125_in_every_subcommand() {
    let agent = Agent::builder().policy("@id(\"nothing\") forbid(principal, action, resource);").start();
    for line in [
        &["exec", agent.uri(), "true"][..],
        &["check", agent.uri(), "true"],
        &["info", agent.uri()],
        &["ps", agent.uri()],
        &["attach", agent.uri(), "a"],
        &["logs", agent.uri(), "a"],
        &["wait", agent.uri(), "a"],
        &["input", agent.uri(), "a", "text"],
        &["kill", agent.uri(), "a"],
    ] {
        let said = say(line).await;
        assert!(said.failure(125).contains("nothing"), "{line:?}: {said:?}");
    }
}
