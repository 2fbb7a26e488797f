//! Does shell text call `sudo`? A guard against mistakes: `sh -c`, `eval`, variables and aliases get past it.
//!
//! It looks only for the places where a command's name can stand. A real shell parser is to replace it.

use std::iter::Peekable;
use std::mem;
use std::str::Chars;

/// What a command's name may still follow: reserved words, and programs that run the command in their arguments.
const BEFORE_A_COMMAND: [&str; 22] = [
    "!", "if", "then", "elif", "else", "while", "until", "do", "time", "coproc", "env", "nohup", "exec", "command",
    "builtin", "nice", "ionice", "xargs", "timeout", "stdbuf", "setsid", "{}",
];

/// Whether `sudo`, by any path, is the name of a command in this text.
pub(super) fn calls_sudo(text: &str) -> bool {
    let mut scan = Scan { chars: text.chars().peekable(), at: Place::default(), outer: Vec::new(), found: false };
    while let Some(c) = scan.chars.next() {
        scan.take(c);
    }
    // what is left open is taken as closed here
    while !scan.outer.is_empty() {
        scan.leave();
    }
    scan.end_word();
    scan.found
}

struct Scan<'a> {
    chars: Peekable<Chars<'a>>,
    at: Place,
    /// The texts around a substitution or a subshell; not recursive, so no text is too deep.
    outer: Vec<Place>,
    found: bool,
}

/// Where in a command the scan stands.
#[derive(Default)]
struct Place {
    word: String,
    /// Inside double quotes.
    quoted: bool,
    /// Between backticks rather than `(` and `)`.
    in_backticks: bool,
    /// The command's name is over.
    in_arguments: bool,
    /// The next word is the file of a redirection.
    redirected: bool,
}

impl Scan<'_> {
    fn take(&mut self, c: char) {
        match c {
            '\\' => self.at.word.extend(self.chars.next().filter(|c| *c != '\n')),
            '"' => self.at.quoted = !self.at.quoted,
            '$' if self.chars.next_if_eq(&'(').is_some() => self.enter(false),
            '`' if self.at.in_backticks => self.leave(),
            '`' => self.enter(true),
            c if self.at.quoted => self.at.word.push(c),
            '\'' => self.at.word.extend(self.chars.by_ref().take_while(|c| *c != '\'')),
            '#' if self.at.word.is_empty() => while self.chars.next_if(|c| *c != '\n').is_some() {},
            '(' => {
                self.end_word();
                self.enter(false);
            }
            ')' => self.leave(),
            '<' | '>' => self.redirect(),
            ';' | '|' | '&' | '\n' => {
                self.end_word();
                self.at.in_arguments = false;
                self.at.redirected = false;
            }
            c if c.is_whitespace() => self.end_word(),
            c => self.at.word.push(c),
        }
    }

    fn enter(&mut self, in_backticks: bool) {
        self.outer.push(mem::replace(&mut self.at, Place { in_backticks, ..Place::default() }));
    }

    /// Goes back to the text around; a `)` that ends a pattern of `case` has none, and a command follows it.
    fn leave(&mut self) {
        self.end_word();
        self.at = self.outer.pop().unwrap_or_default();
    }

    /// In `2>&1` neither the number nor the `&` is what it is elsewhere.
    fn redirect(&mut self) {
        if self.at.word.chars().all(|c| c.is_ascii_digit()) {
            self.at.word.clear();
        }
        self.end_word();
        self.chars.next_if(|c| matches!(c, '&' | '|'));
        self.at.redirected = true;
    }

    fn end_word(&mut self) {
        let word = mem::take(&mut self.at.word);
        if word.is_empty() || mem::take(&mut self.at.redirected) {
            return;
        }
        if word == "{" {
            self.at.in_arguments = false;
        }
        if !self.at.in_arguments {
            self.found |= word.rsplit('/').next() == Some("sudo");
            self.at.in_arguments = !may_precede_a_command(&word);
        }
    }
}

/// A reserved word, a runner such as `nice`, an option or a number for one (`-n 10`, `5s`), or an assignment.
fn may_precede_a_command(word: &str) -> bool {
    let assigns = |(name, _): (&str, &str)| name.chars().all(|c| c.is_alphanumeric() || "_+[]".contains(c));
    let measure = word.trim_end_matches(['s', 'm', 'h', 'd']);
    word == "{"
        || word.starts_with('-')
        || BEFORE_A_COMMAND.contains(&word.rsplit('/').next().unwrap_or(word))
        || word.split_once('=').is_some_and(assigns)
        || (!measure.is_empty() && measure.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sudo_is_found_where_a_command_stands() {
        for text in [
            "sudo",
            " sudo ls",
            "\tsudo -n true",
            "/usr/bin/sudo ls",
            "su'do' ls",
            "\"sudo\" ls",
            "\\sudo ls",
            "su\\\ndo ls",
            "ls; sudo ls",
            "ls;sudo ls",
            "ls | sudo tee x",
            "ls|&sudo tee x",
            "true && sudo ls",
            "false||sudo ls",
            "sleep 1 & sudo ls",
            "ls\nsudo ls",
            "(sudo ls)",
            "(cd /; sudo ls)",
            "{ sudo ls; }",
            "f() { sudo ls; }; f",
            "function f { sudo ls; }",
            "echo $(sudo ls)",
            "echo \"today: $(sudo date)\"",
            "echo `sudo ls`",
            "echo \"`sudo ls`\"",
            "echo $(echo `echo $(sudo ls)`)",
            "cat <(sudo ls)",
            "A=1 sudo ls",
            "A=1 B='x y' sudo ls",
            "A=$(date) sudo ls",
            "env A=1 sudo ls",
            "/usr/bin/env -i sudo ls",
            "nohup sudo ls &",
            "exec sudo ls",
            "command sudo ls",
            "time sudo ls",
            "nice -n 10 sudo ls",
            "timeout 5s sudo ls",
            "ls | xargs -0 sudo rm",
            "ls | xargs -I {} sudo rm {}",
            "! sudo ls",
            "if true; then sudo ls; else sudo ls; fi",
            "for f in a b; do sudo rm $f; done",
            "while sudo ls; do :; done",
            "case x in x) sudo ls;; esac",
            ">out sudo ls",
            "2>/dev/null sudo ls",
            "2>&1 sudo ls",
            "sudo>out ls",
            "# don't\nsudo ls",
            "echo \"unfinished $(sudo",
        ] {
            assert!(calls_sudo(text), "{text}");
        }
    }

    #[test]
    fn other_text_may_say_sudo() {
        for text in [
            "",
            "ls",
            "echo sudo",
            "echo 'a; sudo ls'",
            "echo \"a; sudo ls\"",
            "echo a\\; sudo ls",
            "echo '$(sudo ls)'",
            "echo \\$\\(sudo ls\\)",
            "git commit -m \"stop using sudo; it | hurts\"",
            "man sudo",
            "which sudo && echo yes",
            "grep -r sudo /etc",
            "ls /etc/sudoers.d",
            "cat < sudo",
            "echo hi > sudo",
            "echo hi 2>&1 sudo",
            "sudoku",
            "visudo",
            "sudo.sh",
            "A=sudo true",
            "ls # ; sudo ls",
            "for f in sudo su; do which $f; done",
            "echo $(date) sudo",
            "echo `date` sudo",
            "echo ${A:-sudo}",
            "env A=1 echo sudo",
            "nice -n 10 grep sudo /etc/group",
        ] {
            assert!(!calls_sudo(text), "{text}");
        }
    }

    #[test]
    fn no_text_is_too_deep_or_too_odd() {
        for odd in ["(", ")", "$(", "`", "\"", "'", "\\", "{", "<", ">", "#", "\"$(", "=", "é"] {
            calls_sudo(&odd.repeat(100_000));
        }
        assert!(calls_sudo(&("$(".repeat(100_000) + "sudo")));
    }
}
