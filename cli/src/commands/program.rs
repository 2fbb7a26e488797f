//! Hints where the first word of a command is no program, but is meant otherwise.

use shlex::try_join;

use crate::config::Config;
use crate::syntax::Destination;

/// What shells do themselves, as there is no such program.
const BUILT_IN: [&str; 22] = [
    ".", "alias", "bg", "cd", "declare", "eval", "exec", "export", "fg", "for", "if", "jobs", "local", "popd", "pushd",
    "read", "set", "source", "type", "ulimit", "umask", "while",
];

/// What to use instead of a program that was not found.
pub(super) fn hint(argv: &[String]) -> Option<String> {
    let first = argv.first()?.as_str();
    if BUILT_IN.contains(&first) {
        let text = argv.join(" ").replace('\'', "'\\''");
        let directory = if first == "cd" { "; the working directory is --workdir DIR" } else { "" };
        return Some(format!("{first} is built into the shell, so use -c '{text}'{directory}"));
    }
    let (name, _) = first.split_once('=')?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') && !name.is_empty();
    let variable = try_join([first]).ok().filter(|_| is_name)?;
    Some(format!("variables are set with -e, before the target: -e {variable}"))
}

/// The hint where that program is another target.
pub(super) fn several_targets(target: &Destination, argv: &[String], config: &Config) -> Option<String> {
    let other = argv.first().filter(|first| config.targets.contains_key(*first))?;
    Some(format!("{other} is a configured target: for several, telexec fleet -w {target},{other} PROGRAM"))
}
