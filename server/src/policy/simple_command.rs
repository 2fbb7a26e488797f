//! The commands of a text, each by itself, in policies.

use cedar_policy::RestrictedExpression as Value;
use telexec_shell::{Access, Analysis, SimpleCommand};

use super::facts::texts;

/// The attribute of the context. A policy without this word is evaluated once for each text.
pub(super) const EACH_COMMAND: &str = "each_command";
/// The attribute of the files of redirections.
pub(super) const REDIRECTIONS: &str = "redirections";

/// A policy is evaluated for each of the commands: of a text with more of them the attribute is missing.
pub(super) const MAX_COMMANDS: usize = 64;
/// The arguments that have attributes of their own.
const NUMBERED: [&str; 9] = ["arg1", "arg2", "arg3", "arg4", "arg5", "arg6", "arg7", "arg8", "arg9"];
/// To where a `permit` of commands lets redirections lead that says nothing of redirections.
const NOWHERE: &str = "/dev/null";

/// The commands of a text, each once; `None`: it runs others too, or is not understood, or has none or too many.
pub(super) fn distinct(analysis: &Analysis) -> Option<Vec<&SimpleCommand>> {
    let mut distinct = Vec::new();
    for command in &analysis.commands {
        if !distinct.contains(&command) {
            distinct.push(command);
        }
        if distinct.len() > MAX_COMMANDS {
            return None;
        }
    }
    (analysis.understood && !distinct.is_empty()).then_some(distinct)
}

/// A command as a record. What is known only when it runs is left out, and so is the number of whatever comes after it.
pub(super) fn record(command: &SimpleCommand) -> Option<Value> {
    let text = |text: &String| Value::new_string(text.clone());
    let known: Vec<_> = command.arguments.iter().map_while(Option::as_ref).collect();
    let numbered = NUMBERED.iter().zip(&known).map(|(name, argument)| ((*name).to_owned(), text(argument)));
    let mut record: Vec<_> = [("program".to_owned(), text(&command.program))].into_iter().chain(numbered).collect();
    if known.len() == command.arguments.len() {
        let count = i64::try_from(known.len()).unwrap_or(i64::MAX);
        record.push(("argument_count".to_owned(), Value::new_long(count)));
        let all = texts(known.into_iter().cloned());
        record.extend(all.map(|all| ("arguments".to_owned(), all)));
    }
    Value::new_record(record).ok()
}

/// The files of the redirections of a text that is understood, as a record of two sets; one is left out if any of its paths is
/// known only when the text runs.
pub(super) fn redirections(analysis: &Analysis) -> Option<Value> {
    let set = |name: &str, but: Access| {
        let paths = analysis.redirections.iter().filter(|redirection| redirection.access != but);
        let paths: Option<Vec<_>> = paths.map(|redirection| redirection.path.clone()).collect();
        paths.and_then(|paths| texts(paths.into_iter())).map(|set| (name.to_owned(), set))
    };
    let sets = [set("reads", Access::Write), set("writes", Access::Read)];
    analysis.understood.then(|| Value::new_record(sets.into_iter().flatten()).ok()).flatten()
}

/// Whether redirections of the text lead to files.
pub(super) fn opens_files(analysis: &Analysis) -> bool {
    analysis.redirections.iter().any(|redirection| redirection.path.as_deref() != Some(NOWHERE))
}

/// A command on one line, for people.
pub(super) fn print(command: &SimpleCommand) -> String {
    let arguments = command.arguments.iter().map(|argument| argument.as_deref().unwrap_or("…"));
    [command.program.as_str()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}
