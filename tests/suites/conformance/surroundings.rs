//! What a command finds around it.

use std::collections::BTreeMap;
use std::path::Path;

use telexec_executor::{Command, CommandBuilder};
use telexec_tests::{directory, run};

use super::Machine;

pub(super) async fn arguments_are_literal(machine: Machine) {
    let arguments = ["a b", "$HOME", "; echo no", "`id`", "*", "\\", "\"'", "é", "", "-n", "--help", "a\nb", "%s"];
    let outcome = run(&machine, Command::argv(["printf", "%s\\0"].into_iter().chain(arguments))).await.unwrap();
    assert_eq!(outcome.text().split_terminator('\0').collect::<Vec<_>>(), arguments);
}

/// The environment of a command, as the command itself sees it.
async fn environment(machine: &Machine, change: impl Fn(CommandBuilder) -> CommandBuilder) -> BTreeMap<String, String> {
    let outcome = run(machine, change(Command::argv(["env", "-0"]))).await.unwrap();
    let variable = |text: &str| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    outcome.text().split_terminator('\0').filter_map(variable).collect()
}

/// So nothing of the agent's own environment is in it either.
pub(super) async fn the_environment_is_the_base_and_nothing_else(machine: Machine) {
    let variables = environment(&machine, |command| command).await;
    let names: Vec<&str> = variables.keys().map(String::as_str).collect();
    let own = ["TELEXEC_EXECUTION_ID", "TELEXEC_EXECUTION_KEY"];
    assert_eq!(names, ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", own[0], own[1], "USER"]);
    assert!(variables.values().all(|value| !value.is_empty()), "{variables:?}");
}

pub(super) async fn the_request_adds_to_the_environment_and_replaces(machine: Machine) {
    let odd = "a=b\n'\"$HOME é";
    let variables = environment(&machine, |command| command.env("ODD", odd).env("LANG", "C").env("EMPTY", "")).await;
    assert_eq!((&variables["ODD"][..], &variables["LANG"][..], &variables["EMPTY"][..]), (odd, "C", ""));
    assert!(variables.contains_key("HOME"));
}

pub(super) async fn a_cleared_environment_holds_only_what_was_asked_for(machine: Machine) {
    let variables = environment(&machine, |command| command.clear_environment(true).env("A", "b")).await;
    assert_eq!(variables.keys().collect::<Vec<_>>(), ["A", "TELEXEC_EXECUTION_ID", "TELEXEC_EXECUTION_KEY"]);
}

pub(super) async fn the_execution_id_in_the_environment_is_the_agents(machine: Machine) {
    let command = Command::argv(["printenv", "TELEXEC_EXECUTION_ID"]).env("TELEXEC_EXECUTION_ID", "another");
    let outcome = run(&machine, command).await.unwrap();
    assert_eq!(outcome.text().trim_end(), outcome.started.id.as_str());
}

pub(super) async fn the_key_in_the_environment_is_the_agents(machine: Machine) {
    let mut keys = Vec::new();
    for given in ["another", ""] {
        let command = Command::argv(["printenv", "TELEXEC_EXECUTION_KEY"]).env("TELEXEC_EXECUTION_KEY", given);
        let key = run(&machine, command).await.unwrap().text().trim_end().to_owned();
        assert!(key != given && !keys.contains(&key), "{key}, {keys:?}");
        keys.push(key);
    }
}

pub(super) async fn programs_are_looked_up_in_the_agents_path(machine: Machine) {
    let command = Command::argv(["printenv", "PATH"]).env("PATH", "/no/such/directory");
    assert_eq!(run(&machine, command).await.unwrap().text(), "/no/such/directory\n");
}

pub(super) async fn commands_start_in_the_working_directory(machine: Machine) {
    let directory = directory();
    let odd = directory.path().canonicalize().unwrap().join("a b;'é\n");
    std::fs::create_dir(&odd).unwrap();
    let path = odd.to_str().unwrap();
    for command in [Command::argv(["pwd"]), Command::shell("pwd")] {
        let outcome = run(&machine, command.working_directory(path)).await.unwrap();
        assert_eq!(outcome.text(), format!("{path}\n"));
    }
}

pub(super) async fn the_default_working_directory_is_the_home(machine: Machine) {
    let outcome = run(&machine, Command::shell("pwd -P; cd; pwd -P")).await.unwrap();
    let lines: Vec<&str> = outcome.text().lines().collect();
    assert!(lines[0] == lines[1] && Path::new(lines[0]).is_absolute(), "{lines:?}");
}

pub(super) async fn only_the_standard_streams_are_open(machine: Machine) {
    let outcome = run(&machine, Command::argv(["ls", "/proc/self/fd"])).await.unwrap();
    assert_eq!(outcome.text(), "0\n1\n2\n3\n", "3 is the directory that ls reads");
}

pub(super) async fn the_umask_is_022(machine: Machine) {
    assert_eq!(run(&machine, Command::shell("umask")).await.unwrap().text(), "0022\n");
}

/// By executing a program.
pub(super) async fn privileges_can_be_gained_unless_that_is_forbidden(machine: Machine) {
    let command = || Command::shell("sh -c 'grep NoNewPrivs: /proc/self/status'");
    assert_eq!(run(&machine, command()).await.unwrap().text(), "NoNewPrivs:\t0\n");
    assert_eq!(run(&machine, command().no_new_privileges(true)).await.unwrap().text(), "NoNewPrivs:\t1\n");
}

pub(super) async fn signals_have_their_default_effect(machine: Machine) {
    let outcome = run(&machine, Command::argv(["cat", "/proc/self/status"])).await.unwrap();
    let sets: Vec<&str> =
        outcome.text().lines().filter(|line| line.starts_with("Sig") && !line.contains('/')).collect();
    let none = ["SigPnd", "SigBlk", "SigIgn", "SigCgt"].map(|set| format!("{set}:\t0000000000000000"));
    assert_eq!(sets, none);
}

pub(super) async fn the_command_leads_a_session_without_a_terminal(machine: Machine) {
    let outcome = run(&machine, Command::argv(["cat", "/proc/self/stat"])).await.unwrap();
    let fields: Vec<&str> = outcome.text().split(' ').collect();
    let (pid, group, session, terminal) = (fields[0], fields[4], fields[5], fields[6]);
    assert_eq!((pid, pid, "0"), (group, session, terminal));
    assert_eq!(pid, outcome.started.pid.to_string());
}

pub(super) async fn writing_to_a_closed_pipe_ends_the_writer(machine: Machine) {
    let outcome = run(&machine, Command::shell("yes | head -1; echo ${PIPESTATUS[0]}")).await.unwrap();
    assert_eq!(outcome.text(), "y\n141\n");
}

pub(super) async fn the_shell_can_be_chosen(machine: Machine) {
    for shell in ["sh", "/bin/sh", "bash"] {
        let outcome = run(&machine, Command::shell("echo $0").shell(shell)).await.unwrap();
        assert_eq!(outcome.text(), format!("{shell}\n"));
    }
}

pub(super) async fn a_login_shell_knows_that_it_is_one(machine: Machine) {
    for (login, reported) in [(true, "on\n"), (false, "off\n")] {
        let text = "shopt login_shell | cut -f 2";
        assert_eq!(run(&machine, Command::shell(text).login(login)).await.unwrap().text(), reported);
    }
}

pub(super) async fn the_last_directory_of_the_shell_is_reported(machine: Machine) {
    let directory = directory();
    let here = directory.path().canonicalize().unwrap();
    let (here, odd) = (here.to_str().unwrap(), here.join("a 'b"));
    std::fs::create_dir(&odd).unwrap();
    for (text, code, reported) in [
        ("true", 0, Some(here)),
        ("cd /usr", 0, Some("/usr")),
        ("cd /usr # and a comment", 0, Some("/usr")),
        ("cd /usr; exit 3", 3, Some("/usr")),
        ("cd /usr; false", 1, Some("/usr")),
        ("set -e; cd /usr; false; cd /", 1, Some("/usr")),
        ("(cd /usr)", 0, Some(here)),
        ("cd /usr & wait", 0, Some(here)),
        ("cd \"a 'b\"", 0, odd.to_str()),
        ("cat <<end\nx\nend\ncd /usr", 0, Some("/usr")),
        ("cd /usr; exec true", 0, None),
        ("trap true EXIT; cd /usr", 0, None),
        ("cd /usr; kill -9 $$", -1, None),
    ] {
        let command = Command::shell(text).working_directory(here).report_working_directory(true);
        let outcome = run(&machine, command).await.unwrap();
        assert_eq!(outcome.exited.working_directory.as_deref(), reported, "{text}");
        assert_eq!((outcome.exited.exit_code(), &outcome.stderr[..]), (code, &b""[..]), "{text}");
    }
}

pub(super) async fn the_last_directory_is_only_reported_when_asked_for(machine: Machine) {
    assert_eq!(run(&machine, Command::shell("cd /usr")).await.unwrap().exited.working_directory, None);
}
