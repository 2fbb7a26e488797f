//! The help of `telexec`, and its completions.

use std::process::Stdio;

use telexec_tests::{Agent, executable, program, within};
use tokio::process::Command;

use super::{Said, say, telexec};

/// Lets a shell read its completion script and then do this, with `telexec` on its path and this configuration.
async fn completed(shell: &str, config: &str, text: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let (script, file) = (directory.path().join("script"), directory.path().join("config.toml"));
    std::fs::write(&script, say(&["completions", shell]).await.answer()).unwrap();
    std::fs::write(&file, config).unwrap();
    let programs = program("telexec").parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(shell);
    command.env("PATH", path).env("TELEXEC_CONFIG", &file).env("SCRIPT", &script);
    let output = within(command.args(["-c", text]).output()).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).unwrap()
}

const CONFIG: &str = "[targets.build-7]\naddress = 'b:1'\n[targets.web1]\naddress = 'w:1'\n[groups]\nfront = ['web1']";

/// What bash completes the last word of a line to.
async fn in_bash(line: &[&str]) -> Vec<String> {
    in_bash_with(CONFIG, line).await
}

async fn in_bash_with(config: &str, line: &[&str]) -> Vec<String> {
    let words = line.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let text = format!(
        "source $SCRIPT; COMP_WORDS=({words}); COMP_CWORD={}; _clap_complete_telexec telexec '{}' x; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        line.len() - 1,
        line[line.len() - 1]
    );
    completed("bash", config, &text).await.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[tokio::test]
async fn completions_know_commands_flags_targets_and_groups() {
    assert_eq!(in_bash(&["telexec", "ex"]).await, ["exec"]);
    assert_eq!(in_bash(&["telexec", "exec", "--max-p"]).await, ["--max-processes"]);
    assert_eq!(in_bash(&["telexec", "exec", "b"]).await, ["build-7"]);
    assert_eq!(in_bash(&["telexec", "exec", "l"]).await, ["local"]);
    assert_eq!(in_bash(&["telexec", "attach", "w"]).await, ["web1"]);
    assert_eq!(in_bash(&["telexec", "mcp", "local", "b"]).await, ["build-7"]);
    assert_eq!(in_bash(&["telexec", "ssh", "w"]).await, ["web1"]);
    assert_eq!(in_bash(&["telexec", "fleet", "-w", "web"]).await, ["web1"]);
    assert_eq!(in_bash(&["telexec", "fleet", "-w", "x,@f"]).await, ["x,@front"]);
    assert_eq!(in_bash(&["telexec", "fleet", "-g", ""]).await, ["front"]);
    let directory = tempfile::tempdir().unwrap();
    let inventory = directory.path().join("hosts.ini");
    std::fs::write(&inventory, "[eu]\na\n").unwrap();
    let line = ["telexec", "fleet", "--inventory", inventory.to_str().unwrap(), "-w", "@e"];
    assert_eq!(in_bash(&line).await, ["@eu"]);
}

#[tokio::test]
async fn completions_know_signals_and_the_executions_of_the_target() {
    assert_eq!(in_bash(&["telexec", "kill", "-s", "KI"]).await, ["KILL"]);
    assert_eq!(in_bash(&["telexec", "kill", "-s", "SIGKI"]).await, ["SIGKILL"]);
    let agent = Agent::start();
    for id in ["first-1", "first-2", "second"] {
        say(&["exec", "-d", "--id", id, agent.uri(), "true"]).await.answer();
    }
    let config = format!("[targets.here]\naddress = '{}'\n[targets.gone]\naddress = 'unix:///no/where'", agent.uri());
    let in_bash = async |line: &[&str]| in_bash_with(&config, line).await;
    assert_eq!(in_bash(&["telexec", "attach", "here", "first"]).await, ["first-1", "first-2"]);
    assert_eq!(in_bash(&["telexec", "logs", "-f", "here", "s"]).await, ["second"]);
    let offered = in_bash(&["telexec", "logs", "here", ""]).await;
    assert!(["first-1", "first-2", "second"].iter().all(|id| offered.iter().any(|one| one == id)), "{offered:?}");
    assert_eq!(in_bash(&["telexec", "kill", "-s", "INT", "here", "first-1", "s"]).await, ["second"]);
    assert_eq!(in_bash(&["telexec", "wait", "gone", "s"]).await, [""]);
}

#[tokio::test]
async fn the_usage_is_the_same_whatever_variables_are_set() {
    let mut command = telexec(["ps"]);
    command.env("TELEXEC_CERT", "a.pem").env("TELEXEC_LOG_LEVEL", "info");
    let said = Said::by(command).await;
    assert!(said.code == 2 && said.stderr().contains("\nUsage: telexec ps <TARGET>\n"), "{said:?}");
}

#[tokio::test]
async fn completions_are_there_for_other_shells() {
    for shell in ["elvish", "fish", "powershell", "zsh"] {
        assert!(say(&["completions", shell]).await.answer().contains("TELEXEC_COMPLETE"), "{shell}");
    }
}

#[tokio::test]
async fn manual_pages_are_complete_and_roff_has_nothing_to_say() {
    let directory = tempfile::tempdir().unwrap();
    say(&["man", "--dir", directory.path().to_str().unwrap()]).await.answer();
    let page = |name: &str| directory.path().join(format!("man{}", &name[name.len() - 1..])).join(name);
    for (name, text) in [
        ("telexec.1", "Run commands on remote machines"),
        ("telexec-exec.1", "\\-\\-workdir"),
        ("telexec-certs-issue.1", "telexec certs issue build"),
        ("telexecd.8", "TELEXECD_"),
        ("telexec.toml.5", "connect_timeout = "),
        ("telexecd.toml.5", "max_executions_per_identity = "),
    ] {
        let read = std::fs::read_to_string(page(name)).unwrap();
        assert!(read.is_ascii() && read.contains(text), "{name}");
    }
    assert_eq!(say(&["man"]).await.answer(), std::fs::read_to_string(page("telexec.1")).unwrap());
    for entry in ["man1", "man5", "man8"].iter().flat_map(|s| std::fs::read_dir(directory.path().join(s)).unwrap()) {
        let path = entry.unwrap().path();
        match Command::new("groff").args(["-ww", "-man", "-Tutf8", "-z"]).arg(&path).output().await {
            Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{}", path.display()),
            Err(_) => return eprintln!("skipped in part: there is no groff"),
        }
    }
}

/// The subcommands that a help lists.
fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).filter(|name| !name.is_empty());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[tokio::test]
async fn every_subcommand_has_help_that_tells_only_of_what_is_there() {
    let mut lines = vec![Vec::<String>::new()];
    let mut seen = Vec::new();
    while let Some(line) = lines.pop() {
        let said = Said::by(telexec(line.iter().map(String::as_str).chain(["--help"]))).await;
        let help = said.answer();
        for unbuilt in ["--policy", "--crl"] {
            assert!(!help.contains(unbuilt), "{line:?}: {unbuilt}");
        }
        let names = subcommands(help);
        assert!(!names.is_empty() || help.contains("Exit codes:"), "{line:?}");
        lines.extend(names.into_iter().map(|name| [&line[..], &[name]].concat()));
        seen.push(line.join(" "));
    }
    seen.sort();
    let all = "|approvals|approve|attach|certs|certs crl|certs enroll|certs init|certs issue|certs list|certs renew|certs revoke|certs serve|certs show|certs token|check|commands|completions|config|config path|config show|connect|cp|exec|fleet|fleet attach|fleet cp|fleet get|fleet info|fleet kill|fleet ping|fleet ps|forward|info|input|kill|logs|man|mcp|ping|ps|receipt|receipt get|receipt key|receipt keygen|receipt verify|reject|ssh|tool|wait";
    assert_eq!(seen.join("|"), all);
}

/// The lines of the examples in a help.
fn examples(help: &str) -> impl Iterator<Item = &str> {
    let lines = help.lines().skip_while(|line| !["Example:", "Examples:"].contains(line)).skip(1);
    lines.take_while(|line| !line.is_empty()).map(str::trim)
}

#[tokio::test]
async fn every_example_is_a_valid_command_line() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    // each call reads its command line, then ends with the configuration, and gives an id to the line around it
    let script =
        format!("#!/bin/sh\n{} \"$@\" >/dev/null 2>>{}; echo an-id", program("telexec").display(), log.display());
    executable(directory.path(), "telexec", script);
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let mut lines = vec![Vec::<String>::new()];
    let mut count = 0;
    while let Some(line) = lines.pop() {
        let said = Said::by(telexec(line.iter().map(String::as_str).chain(["--help"]))).await;
        for example in examples(said.answer()) {
            // a line that is too long for the help is wrapped
            assert!(example.contains("telexec "), "{line:?}: {example}");
            std::fs::write(&log, "").unwrap();
            let home = tempfile::tempdir().unwrap();
            let mut command = Command::new("bash");
            command.args(["-c", example]).current_dir(home.path()).env("HOME", home.path());
            command.env("PATH", &path).env("TELEXEC_CONFIG", "/no/such/file").stdin(Stdio::null());
            within(command.output()).await.unwrap();
            let stderr = std::fs::read_to_string(&log).unwrap();
            assert!(!stderr.lines().any(|line| line.starts_with("error: ")), "{line:?}: {example}\n{stderr}");
            count += 1;
        }
        let names = subcommands(said.answer());
        lines.extend(names.into_iter().map(|name| [&line[..], &[name]].concat()));
    }
    assert!(count > 50, "only {count} examples were found");
}

#[tokio::test]
async fn the_short_help_fits_a_screen_and_the_long_one_has_all_flags() {
    for subcommand in
        ["exec", "check", "ps", "attach", "input", "kill", "logs", "wait", "tool", "mcp", "ping", "info", "commands"]
    {
        let (short, long) = (say(&[subcommand, "-h"]).await, say(&[subcommand, "--help"]).await);
        let (short, long) = (short.answer(), long.answer());
        assert!(short.lines().count() <= 40, "{short}");
        assert!(short.ends_with(&format!(": telexec {subcommand} --help\n")), "{short}");
        assert_eq!((short.matches("--ca ").count(), long.matches("--ca ").count()), (0, 1), "{subcommand}");
        assert_eq!(say(&["help", subcommand]).await.answer(), long);
        assert!(long.contains("Exit codes:"), "{subcommand}");
        assert!(long.contains("Example"), "{subcommand}");
    }
    for (line, lines) in [
        (&["fleet"][..], 50),
        (&["fleet", "attach"], 40),
        (&["fleet", "cp"], 40),
        (&["fleet", "get"], 40),
        (&["fleet", "info"], 40),
        (&["fleet", "kill"], 40),
        (&["fleet", "ping"], 40),
        (&["fleet", "ps"], 40),
    ] {
        let short = say(&[line, &["-h"]].concat()).await;
        assert!(short.answer().lines().count() <= lines, "{}", short.answer());
        assert!(say(&[line, &["--help"]].concat()).await.answer().contains("Exit codes:"), "{line:?}");
    }
    // what belongs to the program is not telexec's
    assert_eq!(say(&["exec", "local", "echo", "--help", "-h"]).await.answer(), "--help -h\n");
}

#[tokio::test]
async fn the_version_is_reported() {
    assert_eq!(say(&["--version"]).await.answer(), concat!("telexec ", env!("CARGO_PKG_VERSION"), "\n"));
}
