//! Texts that are made by the grammar of shells, with constructs in each other: real shells run nothing that is not listed,
//! with no other arguments, and make no other files.

#![cfg(target_os = "linux")]

use super::differential::{Counts, Machine, Random, rounds, shells};

const ROUNDS: u64 = 300;

/// The programs that leave a mark.
const MARKS: [&str; 4] = ["zz", "zy", "a", "b"];

/// Of which words are made.
const PARTS: &[&str] = &[
    "a", "b", "c", "-", "--", "=", "~", "/", ":", ".", "*", "?", "[a]", "[!a]", "{", "}", "{a,b}", "{1..2}", ",", "!", "#", "%",
    "^", "@", "+", "x", "1", "é", "web-1", "'a'", "'*'", "'~'", "' '", "'\"'", "'\\'", "'{'", "'$x'", "','", "''", "\"a\"", "\"*\"",
    "\" \"", "\"'\"", "\"\\\\\"", "\"\\a\"", "\"\\$x\"", "\"\\`\"", "\"\\\"\"", "\"{\"", "\"\"", "\"$x\"", "\"${x}\"", "\"$@\"",
    "\"$*\"", "\"$1\"", "\"$#\"", "\"${x:-a}\"", "\"${x:-\"a\"}\"", "\"${x:+a b}\"", "\"${y%a}\"", "\"$(zy a)\"", "\"`zy a`\"",
    "\"$(zy \"b c\")\"", "\"a \\\nb\"", "\"$\"", "\"$((1+1))\"", "\"${#x}\"", "\\a", "\\*", "\\~", "\\ ", "\\'", "\\\"", "\\\\",
    "\\{", "\\$", "\\#", "\\;", "\\&", "\\|", "\\<", "\\>", "\\(", "\\)", "\\!", "\\`", "$x", "${x}", "$@", "$*", "$1", "$?",
    "${x:-a}", "${x:-'a b'}", "${x:-\"a b\"}", "${y#a}", "$((1))", "$(zy b)", "`zy b`", "$", "'a \\\nb'", "'a\nb'", "@(a|b)",
    "?(a)", "$'a\\tb'", "$'\\n'", "$\"a\"", "<(:)", "${x/a/b}", "${a[0]}", "\"${a[@]}\"", "${!x}", "$[1]", "~root",
];

/// What may come anywhere, and make something else of the rest.
const SPLINTERS: &[&str] = &[
    "'", "\"", "`", "$(", ")", "\\", "\n", " ", "#", " #", "${x:-", "}", "$'", "$\"", "$", "|", ";", "&", "(", "<", ">", "<<E",
    "\nE\n", " \\\n", "\t",
];

const NAMES: &[&str] = &[
    "zz", "zz", "zz", "zz", "\\zz", "'zz'", "z\"z\"", "command zz", "A=b zz", "exec zz", "env zz", "env A=1 zz", "timeout 5 zz",
    "xargs zz", "xargs -I a zz", "xargs -n1 zz", "nice zz", "! zz", "time zz", "builtin command zz",
];

const TARGETS: &[&str] = &["o1", "'o 1'", "\"o1\"", "o\\1", "a", "/dev/null", "o{1,2}", "o$x", "\"o$y\"", "o'1'\"2\"", "./o1"];

const OPERATORS: &[&str] = &[">", ">>", ">|", "<", "<>", "> ", "&>", ">&", "<<<", "2>", "2>&1 >", "&>>", "3>", "{f}>"];

struct Grammar(Random);

impl Grammar {
    fn word(&mut self) -> String {
        let parts = [1, 1, 1, 2, 2, 3][self.0.below(6)];
        let mut word: String = (0..parts).map(|_| self.0.one(PARTS)).collect();
        if self.0.below(16) == 0 {
            let places: Vec<usize> = word.char_indices().map(|(at, _)| at).chain([word.len()]).collect();
            let at = places[self.0.below(places.len())];
            word.insert_str(at, self.0.one(SPLINTERS));
        }
        word
    }

    fn redirection(&mut self) -> String {
        match self.0.below(5) {
            0 => format!(" {}{}", self.0.one(OPERATORS), self.0.one(TARGETS)),
            _ => String::new(),
        }
    }

    fn simple(&mut self) -> String {
        let name = self.0.one(NAMES);
        let before = self.0.one(&["", "", "", "", "", "", ">o2 ", "<zu ", "2>o2 "]);
        let mut text = format!("{before}{name}");
        for _ in 0..self.0.below(4) {
            text += self.0.one(&[" ", " ", "  ", "\t", " \\\n"]);
            text += &self.word();
        }
        text += &self.redirection();
        if name.starts_with("xargs") {
            text += " < zu";
        }
        text
    }

    /// As a word that is a text of its own.
    fn quoted(&mut self, text: &str) -> String {
        let escaped = |marks: &str| {
            let escape = |c: char| if marks.contains(c) { format!("\\{c}") } else { c.to_string() };
            format!("\"{}\"", text.chars().map(escape).collect::<String>())
        };
        match self.0.below(4) {
            0 => escaped("\\\"$`"),
            1 => escaped("\""),
            _ => format!("'{}'", text.replace('\'', "'\\''")),
        }
    }

    fn command(&mut self, depth: usize) -> String {
        if depth > 2 || self.0.below(2) == 0 {
            return self.simple();
        }
        let (one, word, other) = (self.command(depth + 1), self.word(), self.word());
        let quoted = self.quoted(&one);
        let redirection = self.redirection();
        let in_backticks = one.replace('\\', "\\\\").replace('`', "\\`");
        match self.0.below(32) {
            0 => {
                let between = self.0.one(&["; ", "\n", "&&", " || ", "|", " & "]);
                let two = self.command(depth + 1);
                format!("{one}{between}{two}")
            }
            1 => format!("{{ {one}; }}{redirection}"),
            2 => format!("({one}){redirection}"),
            3 => format!("f() {{ {one}; }}; f {word} {other}"),
            4 => format!("set -- {word} {other}; {one}"),
            5 => format!("for x in {word} {other}; do {one}; done{redirection}"),
            6 => format!("for x; do {one}; done"),
            7 => format!("if {one}; then zy {word}; fi{redirection}"),
            8 => format!("while {one}; do break; done"),
            9 => format!("case {word} in a) {one};; *) zy;; esac{redirection}"),
            10 => format!("bash -c {quoted} {word}"),
            11 => format!("sh -c {quoted}"),
            12 => format!("trap {quoted} EXIT"),
            13 => format!("zz \"$({one})\""),
            14 => format!("zz $({one})"),
            15 => format!("zz `{in_backticks}`"),
            16 => format!("zz \"`{in_backticks}`\""),
            17 => format!("x={word}; {one}"),
            18 => format!("x={word} y={other}; {one}"),
            19 => format!("a=({word} {other}); {one}"),
            20 => format!("[[ {word} == {other} ]] && {one}"),
            21 => format!("{one} # {word}\nzy"),
            22 => format!("cat <<E | {one}\n{word}\nE"),
            23 => format!("cat <<'E'\n{word}\nE\n{one}"),
            24 => format!("zz $(cat <<E\n{word}\nE\n) {other}"),
            25 => format!("find zu -exec zz {word} {{}} \\;"),
            26 => format!("read x < zu; {one}"),
            27 => format!("zz <({one})"),
            28 => format!("export x={word}; {one}"),
            29 => format!("exec {redirection}; {one}"),
            30 => format!("env bash -c {quoted}"),
            _ => format!("find zu -exec sh -c {quoted} \\;"),
        }
    }
}

#[test]
fn what_nested_texts_run_is_listed() {
    let shells = shells();
    assert!(!shells.is_empty(), "there is no shell to compare with");
    let compare = |shell: &std::path::PathBuf| {
        let (mut machine, mut counts) = (Machine::with_tools(&MARKS), Counts::default());
        let (mut grammar, rounds) = (Grammar(Random::new()), rounds(ROUNDS));
        for _ in 0..rounds {
            counts.add(machine.check_all(shell, &grammar.command(0)));
        }
        println!("{}: {counts:?} of {rounds}", shell.display());
        assert!(counts.understood > rounds / 8 && counts.ran > rounds / 16, "{}: {counts:?}", shell.display());
    };
    std::thread::scope(|scope| {
        for shell in &shells {
            scope.spawn(move || compare(shell));
        }
    });
}
