//! What a shell text would run: bounded work and results for any text, and results that fit together.
//!
//! A text with two NUL bytes in it, which no command can have, stands for a large one: `a`, `b` and `c` between them for
//! `aa…abcc…c`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use telexec_shell::{Analysis, analyze, analyze_argv, covers};

/// An eighth of what is looked at, so that the large ones leave time for others.
const LARGE: usize = 8 * 1024;
/// A few times what is read: of a wrapper and what it runs each is listed with all its arguments.
const MAX_WORDS: usize = 64 * 64 * 1024;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let text = match text.split('\0').collect::<Vec<_>>()[..] {
        [before, inside, after] => large(before, inside, after),
        _ => text.into_owned(),
    };
    check(&analyze(&text));
    let argv: Vec<String> = text.split([' ', '\n']).map(str::to_owned).collect();
    check(&analyze_argv(&argv));
});

fn large(before: &str, inside: &str, after: &str) -> String {
    let repeats = LARGE.saturating_sub(inside.len()) / (before.len() + after.len()).max(1);
    [&*before.repeat(repeats), inside, &*after.repeat(repeats)].concat()
}

fn check(analysis: &Analysis) {
    assert_eq!(analysis.understood, analysis.reason.is_none());
    assert!(analysis.reason.is_none_or(|reason| !reason.is_empty()));
    assert!(analysis.commands.len() <= 4096);
    assert!(analysis.programs.len() <= analysis.commands.len());
    assert!(analysis.commands.iter().all(|command| analysis.programs.contains(&command.program)));
    let words = analysis.commands.iter().map(|command| 1 + command.arguments.len()).sum::<usize>();
    assert!(words <= MAX_WORDS, "{words} words");
    let covered = analysis.programs.iter().filter(|program| covers(&format!("{program} **"), analysis)).count();
    assert_eq!(covered == 1, analysis.understood && analysis.programs.len() == 1);
    assert_eq!(covered, usize::from(covered == 1));
}
