//! Hints where a habit from ssh, docker, kubectl, kill or pdsh makes an invalid command line.

use std::ffi::OsString;

use clap::Arg;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use super::executions::parse_signal;
use crate::config::Config;

/// How many configured targets are listed.
const MAX_TARGETS: usize = 12;

/// A subcommand, what it does not know, and what to use instead.
const FLAGS: &[(&str, &[&str], &str)] = &[
    ("exec", &["--name"], "--id names an execution"),
    ("exec", &["--rm"], "nothing has to be removed: an execution that has ended is forgotten after a while"),
    ("exec", &["-n"], "standard input is not forwarded without -i"),
    ("exec", &["-T"], "there is no terminal without -t"),
    ("exec", &["-p", "--port"], "the port is part of the target: HOST:PORT"),
    ("exec", &["-v", "--verbose"], "--log-level debug logs the connection"),
    ("exec", &["-L", "-R", "-D"], "telexec forward TARGET forwards ports"),
    ("exec", &["-o", "-F", "-J"], "telexec ssh takes the options of ssh"),
    ("attach", &["--no-stdin"], "standard input is not forwarded without -i"),
    ("ps", &["--filter", "-f", "-e"], "executions are listed, by --label; for processes: telexec exec TARGET ps -ef"),
];

/// A word that is no subcommand, and what to use instead.
const SUBCOMMANDS: &[(&[&str], &str)] = &[
    (&["run"], "telexec exec TARGET PROGRAM runs a program"),
    (&["start"], "telexec exec -d TARGET PROGRAM starts a program in the background"),
    (&["sh", "shell", "login"], "telexec exec -it TARGET starts a login shell"),
    (&["ls", "list", "jobs", "top"], "telexec ps TARGET lists executions"),
    (&["stop", "signal", "terminate"], "telexec kill TARGET ID ends an execution"),
    (&["policy"], "the agent's program checks policies: telexecd --config FILE policy check"),
    (&["log", "tail"], "telexec logs TARGET ID prints the output of an execution"),
    (&["status", "inspect"], "telexec info TARGET describes an agent, telexec ps TARGET lists its executions"),
    (&["pdsh", "clush", "parallel"], "telexec fleet -w HOSTS PROGRAM runs a program on many machines"),
];

/// The error with a hint for this command line, and without clap's advice to use `--`, which no program needs.
pub(super) fn explained(mut error: Error, line: &[OsString]) -> Error {
    if let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested) {
        let kept: Vec<_> = tips.into_iter().filter(|tip| !tip.to_string().contains("as a value, use")).collect();
        add(&mut error, kept);
    }
    if let Some(hint) = hint(&error, line) {
        add(&mut error, vec![StyledStr::from(hint)]);
    }
    error
}

fn add(error: &mut Error, tips: Vec<StyledStr>) {
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

fn hint(error: &Error, line: &[OsString]) -> Option<String> {
    let words: Vec<&str> = line.iter().skip(1).filter_map(|word| word.to_str()).collect();
    let subcommand = match *words.first()? {
        // it takes the same flags
        "check" => "exec",
        subcommand => subcommand,
    };
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = text(ContextKind::InvalidSubcommand)?;
            let known = SUBCOMMANDS.iter().find(|(words, _)| words.contains(&word))?;
            Some(known.1.to_owned())
        }
        ErrorKind::UnknownArgument if subcommand == "kill" => {
            let signals = words.iter().filter_map(|word| word.strip_prefix('-'));
            let signal = signals.into_iter().find(|signal| parse_signal(signal).is_ok())?;
            Some(format!("the signal is given with -s: telexec kill -s {signal} TARGET ID"))
        }
        ErrorKind::UnknownArgument | ErrorKind::ArgumentConflict | ErrorKind::ValueValidation
            if let Some((text, _)) = after_text(&words).filter(|_| has_text(subcommand)) =>
        {
            Some(whole_text(&words, text))
        }
        ErrorKind::UnknownArgument => {
            let flag = text(ContextKind::InvalidArg)?;
            let known = FLAGS.iter().find(|(place, flags, _)| *place == subcommand && flags.contains(&flag))?;
            Some(known.2.to_owned())
        }
        ErrorKind::MissingRequiredArgument if subcommand == "exec" && words.contains(&"-w") => {
            Some("-w is the working directory here; for hosts: telexec fleet -w HOSTS".to_owned())
        }
        ErrorKind::MissingRequiredArgument if is_missing(error, "<TARGET>") => configured_targets(),
        ErrorKind::MissingRequiredArgument if subcommand != "fleet" && is_missing(error, "<ID>") => {
            let targets = configured_targets().map(|targets| format!("; {targets}")).unwrap_or_default();
            Some(format!("both are needed, TARGET and ID{targets}"))
        }
        _ => None,
    }
}

/// Refuses `-c ls -la` and `-c df -h`, which are valid, but say `-l a` and ask for help; after a TARGET, or the hosts of
/// fleet, also `-c ls -l x` and the like.
pub(super) fn misread_text(line: &[OsString]) -> Option<Error> {
    let words: Vec<&str> = line.iter().skip(1).map_while(|word| word.to_str()).collect();
    let subcommand = *words.first()?;
    has_text(subcommand).then_some(())?;
    let (text, next) = after_text(&words)?;
    let letter = next.strip_prefix('-')?.chars().next().filter(|letter| *letter != '-')?;
    let definition = super::help::brief();
    let definition = definition.find_subcommand(subcommand)?;
    let is_misread = match (letter, subcommand) {
        ('l', _) if next.len() > 2 => true,
        ('h', _) if next.len() == 2 => true,
        // flags for the output are often added at the end
        (_, "fleet") => FLEET_LETTERS.contains(&letter) && selects_hosts(&words),
        _ => follows_target(&words, definition),
    };
    let flag = if letter == 'h' { "--help".to_owned() } else { long_form(definition, letter)? };
    is_misread.then_some(())?;
    let message = format!("{next} would be read as telexec's own -{letter} ({flag}); {}\n", whole_text(&words, text));
    Some(Error::raw(ErrorKind::ArgumentConflict, message).with_cmd(&super::help::brief()))
}

/// Flags of fleet that change what runs, and where.
const FLEET_LETTERS: [char; 5] = ['a', 'd', 'i', 'l', 't'];

fn selects_hosts(words: &[&str]) -> bool {
    let before = words.iter().take_while(|word| **word != "-c");
    before
        .into_iter()
        .any(|word| ["-w", "-g", "-a", "--hosts", "--group", "--all"].iter().any(|flag| word.starts_with(flag)))
}

/// The flag with this short form, as its long one.
fn long_form(subcommand: &clap::Command, letter: char) -> Option<String> {
    find_flag(subcommand, letter)?.get_long().map(|long| format!("--{long}"))
}

fn find_flag(subcommand: &clap::Command, letter: char) -> Option<&Arg> {
    subcommand.get_arguments().find(|flag| {
        flag.get_short() == Some(letter)
            || flag.get_all_short_aliases().is_some_and(|aliases| aliases.contains(&letter))
    })
}

/// Whether a word before -c is none of the flags and their values.
fn follows_target(words: &[&str], subcommand: &clap::Command) -> bool {
    let takes_value = |flag: &Arg| flag.get_action().takes_values();
    let mut before = words.iter().skip(1).take_while(|word| **word != "-c");
    while let Some(word) = before.next() {
        let value_follows = if let Some(long) = word.strip_prefix("--") {
            let flag = subcommand.get_arguments().find(|flag| flag.get_long() == Some(long));
            flag.is_some_and(takes_value)
        } else if let Some(letters) = word.strip_prefix('-') {
            let valued =
                letters.char_indices().find(|(_, letter)| find_flag(subcommand, *letter).is_some_and(takes_value));
            valued.is_some_and(|(at, letter)| at + letter.len_utf8() == letters.len())
        } else {
            return true;
        };
        if value_follows {
            before.next();
        }
    }
    false
}

/// Whether it takes a text with -c.
fn has_text(subcommand: &str) -> bool {
    ["exec", "check", "fleet"].contains(&subcommand)
}

/// The text of -c, if it is a single word, and the word after it.
fn after_text<'a>(words: &[&'a str]) -> Option<(&'a str, &'a str)> {
    let words = words.iter().take_while(|word| **word != "--").copied().collect::<Vec<_>>();
    let at = words.iter().position(|word| *word == "-c")?;
    let (text, next) = (words.get(at + 1)?, words.get(at + 2)?);
    (!text.contains(char::is_whitespace)).then_some((text, next))
}

/// The text that is meant: all words from it on.
fn whole_text(words: &[&str], text: &str) -> String {
    let after = words.iter().skip_while(|word| **word != "-c").skip(2).copied();
    let meant = shlex::try_join(after).map_or_else(|_| text.to_owned(), |after| format!("{text} {after}"));
    let meant = shlex::try_quote(&meant).map_or_else(|_| text.to_owned(), |meant| meant.into_owned());
    format!("quote the whole command: -c {meant}")
}

fn is_missing(error: &Error, argument: &str) -> bool {
    matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::Strings(missing)) if missing.iter().any(|one| one.trim_end_matches('.') == argument))
}

fn configured_targets() -> Option<String> {
    let targets = Config::load().ok()?.targets;
    let names: Vec<_> = targets.keys().take(MAX_TARGETS).map(String::as_str).collect();
    let more = if targets.len() > names.len() { ", ..." } else { "" };
    (!names.is_empty()).then(|| format!("configured targets: {}{more}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::help;

    fn refusal(line: &str) -> String {
        let line: Vec<OsString> = format!("telexec {line}").split(' ').map(OsString::from).collect();
        let error = help::brief().try_get_matches_from(&line).unwrap_err();
        explained(error, &line).to_string()
    }

    #[test]
    fn habits_are_answered_with_what_to_use() {
        for (line, hint) in [
            ("run web1 ls", "telexec exec TARGET"),
            ("ls web1", "telexec ps TARGET"),
            ("exec -p 7443 web1 ls", "HOST:PORT"),
            ("kill job-1", "both are needed, TARGET and ID"),
            ("exec web1 -v ls", "--log-level debug"),
            ("check --name x web1 ls", "--id names"),
            ("exec -w web1 ls", "telexec fleet -w HOSTS"),
            ("kill -9 web1 a", "telexec kill -s 9 TARGET"),
            ("kill -KILL web1 a", "telexec kill -s KILL TARGET"),
            ("ps -ef web1", "telexec exec TARGET ps -ef"),
            ("exec web1 -c ls /tmp", "-c 'ls /tmp'"),
            ("exec web1 -c uname -a", "-c 'uname -a'"),
            ("check web1 -c ps -ef", "-c 'ps -ef'"),
            ("policy check", "telexecd --config FILE policy check"),
        ] {
            assert!(refusal(line).contains(hint), "{line}: {}", refusal(line));
        }
    }

    #[test]
    fn flags_that_belong_to_a_text_are_not_those_of_telexec() {
        let misread = |line: &str| {
            let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            misread_text(&line).map(|error| error.to_string())
        };
        for (line, why) in [
            ("telexec exec web1 -c ls -la", "-la would be read as telexec's own -l (--user)"),
            ("telexec exec web1 -c ls -la", "quote the whole command: -c 'ls -la'"),
            ("telexec fleet -w @web -c df -h", "-h (--help); quote the whole command: -c 'df -h'"),
            ("telexec check web1 -c ls -lh /", "-c 'ls -lh /'"),
            ("telexec exec web1 -c ls -l", "-l (--user)"),
            ("telexec exec -u me web1 -c ls -d /tmp", "-d (--detach); quote the whole command: -c 'ls -d /tmp'"),
            ("telexec exec --json web1 -c ls -t", "-t (--tty)"),
            ("telexec exec web1 -c ls -i", "-i (--stdin)"),
            ("telexec exec web1 -c ls -w /etc", "-w (--workdir)"),
            ("telexec fleet -w @web -c ls -a", "-a (--all)"),
            ("telexec fleet -w @web -c df -i", "-i (--stdin)"),
        ] {
            assert!(misread(line).is_some_and(|text| text.contains(why)), "{line}: {:?}", misread(line));
        }
        for line in [
            "telexec exec -c ls -l me web1",
            "telexec exec -c ls -it web1",
            "telexec exec -u me --timeout 5 -c ls -it web1",
            "telexec exec web1 -- sh -c ls -la",
            "telexec exec web1 -c ls --json",
            "telexec fleet -w @web -c uptime -b",
            "telexec fleet -c uptime -l me -w @web",
        ] {
            assert_eq!(misread(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_unknown_is_not_advised_to_follow_dashes() {
        let text = refusal("exec web1 --no-such-flag ls");
        assert!(text.contains("unexpected argument '--no-such-flag'") && !text.contains("-- --no-such-flag"), "{text}");
        assert!(refusal("exec web1 --timeou 5 ls").contains("--timeout"));
    }
}
