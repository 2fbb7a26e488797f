//! What `telexec` says of itself, and its completions.

use telexec_tests::within;
use tokio::process::Command;

use super::{Said, say, telexec};

#[tokio::test]
async fn completions_are_scripts() {
    for shell in ["bash", "zsh", "fish"] {
        let said = say(&["completions", shell]).await;
        let subcommands = ["exec", "ps", "attach", "input", "kill", "tool", "ping", "info", "certs", "completions"];
        let flags = ["workdir", "user", "max-processes", "tty", "detach-keys", "on-disconnect", "no-history", "close"];
        for word in subcommands.iter().chain(&flags) {
            assert!(said.answer().contains(word), "{shell}: {word}");
        }
    }
}

#[tokio::test]
async fn completions_complete_in_bash() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("telexec.bash");
    std::fs::write(&script, say(&["completions", "bash"]).await.answer()).unwrap();
    let complete =
        "source $0; COMP_WORDS=(telexec ex); COMP_CWORD=1; _telexec telexec ex telexec; echo ${COMPREPLY[*]}";
    let output = within(Command::new("bash").args(["-uc", complete]).arg(&script).output()).await.unwrap();
    assert_eq!(
        (String::from_utf8(output.stdout), String::from_utf8(output.stderr)),
        (Ok("exec\n".into()), Ok("".into()))
    );
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
        for unbuilt in ["config.toml", "--policy", "--crl", "telexec fleet", "mcp"] {
            assert!(!help.contains(unbuilt), "{line:?}: {unbuilt}");
        }
        lines.extend(subcommands(help).into_iter().map(|name| [&line[..], &[name]].concat()));
        seen.push(line.join(" "));
    }
    seen.sort();
    let all = "|attach|certs|certs init|certs issue|certs show|completions|exec|info|input|kill|ping|ps|tool";
    assert_eq!(seen.join("|"), all);
}

#[tokio::test]
async fn the_version_is_told() {
    assert_eq!(say(&["--version"]).await.answer(), concat!("telexec ", env!("CARGO_PKG_VERSION"), "\n"));
}
