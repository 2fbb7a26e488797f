//! The commands of a text, each by itself, in policies.

use cedar_policy::RestrictedExpression as Value;
use telexec_shell::{Access, Analysis, SimpleCommand};

use super::facts::{MAX_TEXTS, texts};

/// The attribute of the context. A policy without this word is evaluated once for each text.
pub(super) const EACH_COMMAND: &str = "each_command";
/// The attribute of the programs of the text.
pub(super) const PROGRAMS: &str = "programs";
/// The attribute of the files of redirections.
pub(super) const REDIRECTIONS: &str = "redirections";

/// A policy is evaluated for each of the commands: of a text with more of them the attribute is missing.
pub(super) const MAX_EVALUATIONS: usize = 64;
/// The arguments that have attributes of their own.
pub(super) const NUMBERED: [&str; 9] = ["arg1", "arg2", "arg3", "arg4", "arg5", "arg6", "arg7", "arg8", "arg9"];
/// Of a command, in an explanation.
const MAX_PRINTED_BYTES: usize = 200;

/// The command of a text that runs nothing, such as `x=1`.
static NOTHING: SimpleCommand = SimpleCommand { program: String::new(), arguments: Vec::new() };

/// The commands of a text, each once; `None`: it is not understood, or has too many.
pub(super) fn distinct(analysis: &Analysis) -> Option<Vec<&SimpleCommand>> {
    let mut distinct = Vec::new();
    for command in &analysis.commands {
        if !distinct.contains(&command) {
            distinct.push(command);
        }
        if distinct.len() > MAX_EVALUATIONS {
            return None;
        }
    }
    if distinct.is_empty() {
        distinct.push(&NOTHING);
    }
    analysis.understood.then_some(distinct)
}

/// A command as a record. An argument that is known only when it runs is left out, and so are those after it, since it may come to
/// any number of them.
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
    let set = |name: &str, is_in: fn(Access) -> bool| {
        let paths = analysis.redirections.iter().filter(|redirection| is_in(redirection.access));
        let paths: Option<Vec<_>> = paths.map(|redirection| redirection.path.clone()).collect();
        paths.and_then(|paths| texts(paths.into_iter())).map(|set| (name.to_owned(), set))
    };
    let sets = [set("reads", Access::reads), set("writes", Access::writes)];
    analysis.understood.then(|| Value::new_record(sets.into_iter().flatten()).ok()).flatten()
}

/// Why an attribute of a command is missing.
pub(super) fn why_missing(command: &SimpleCommand, attribute: &str) -> String {
    let name = attribute.rsplit('.').next().unwrap_or_default();
    let is_known = command.arguments.iter().all(Option::is_some);
    match NUMBERED.iter().position(|numbered| *numbered == name) {
        Some(at) if is_known || at < command.arguments.iter().take_while(|argument| argument.is_some()).count() => {
            format!("there is no {name}")
        }
        None if is_known => format!("it has more than {MAX_TEXTS} arguments"),
        _ => format!("{name} is known only when it runs"),
    }
}

/// A command on one line, for people: `…` is what is known only when it runs.
pub(super) fn print(command: &SimpleCommand) -> String {
    let is_plain =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c));
    let word = |word: &str| if is_plain(word) { word.to_owned() } else { format!("{word:?}") };
    let arguments = command.arguments.iter().map(|argument| argument.as_deref().map_or("…".to_owned(), word));
    let mut line = word(&command.program);
    for argument in arguments {
        if line.len() + argument.len() > MAX_PRINTED_BYTES {
            line.push_str(" …");
            break;
        }
        line.push(' ');
        line.push_str(&argument);
    }
    line
}
