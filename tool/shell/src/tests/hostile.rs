//! Texts of any kind: deep, long, odd, random.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

#[test]
fn wrappers_do_not_multiply_what_is_kept() {
    let text = format!("sleep 9; : || {}x {}", "env ".repeat(15), "y ".repeat(32_000));
    let analysis = analyze(&text);
    let words: usize = analysis.commands.iter().map(|command| command.arguments.len()).sum();
    assert!(!analysis.understood && words <= 64 * 1024, "{words}");
    assert!(analyze(&format!("env x {}", "y ".repeat(30_000))).understood);
}

#[test]
fn programs_within_programs_are_bounded() {
    let argv: Vec<String> = ["find", "-exec"].map(str::to_owned).into_iter().cycle().take(12_000).collect();
    let analysis = analyze_argv(&argv);
    assert!(!analysis.understood && analysis.commands.len() < 100, "{}", analysis.commands.len());
    assert!(!analyze_argv(&vec![String::new(); MAX_TEXT_BYTES + 1]).understood);
}

#[test]
fn plain_texts_are_known() {
    let longest = "x".repeat(MAX_PLAIN_BYTES - 1);
    for text in ["ls", "cd /srv && git pull | tee -a 'the log' 2>&1", "A=b env $X \"a b\" <in >out", &longest] {
        assert!(is_plain(text) && is_plain_argv(&[text.to_owned()]), "{text}");
    }
    assert!(is_plain_argv(&["sh", "-c", "ls -l"].map(str::to_owned)) && is_plain("") && is_plain_argv(&[]));
    let odd =
        ["$(ls)", "${x}", "`ls`", "a\nb", "a\\ b", "[ a ]", "$((1))", "{a,b}", "*", "a?", "~", "!", "a # b", "é", "\0"];
    let long = [longest + "xx", "a ".repeat(MAX_PLAIN_SEPARATORS + 1), ";".repeat(MAX_PLAIN_SEPARATORS + 1)];
    for text in odd.into_iter().chain(long.iter().map(String::as_str)) {
        assert!(!is_plain(text) && !is_plain_argv(&[text.to_owned()]), "{text}");
    }
}

const PLAIN_WORDS: [&str; 46] = [
    "time", "coproc", "if", "while", "until", "for", "case", "in", "do", "then", "function", "select", "eval", "sh",
    "-c", "bash", "env", "sudo", "xargs", "find", "-exec", "trap", "exec", "command", "nice", "ls", "$x", "A=b", "'a'",
    "\"$x\"", "'sh", "\"sh", "'", "\"", "$'a'", "$", "<<E", "<<<", ">&2", "2>x", "&&", "||", "|", ";", "&", "\t",
];

/// A fault ends the process: the stack that is made ends where memory cannot be touched.
#[test]
fn plain_texts_fit_on_the_stack_that_they_may_need() {
    let fits = |parts: Vec<&str>| {
        let text = parts.join(" ");
        let argv: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        prop_assume!(is_plain(&text) && is_plain_argv(&argv));
        stacker::grow(PLAIN_STACK_BYTES, || {
            for reader in [Reader::Bash, Reader::Posix] {
                let _ = catch_unwind(|| collected::collect(vec![Item::Text(reader, text.clone())]));
            }
            let _ = catch_unwind(|| {
                let mut items = Vec::new();
                programs::run(Reader::Bash, argv.into_iter().map(Expansion::Known).collect(), &mut items);
                collected::collect(items)
            });
        });
        Ok(())
    };
    for word in PLAIN_WORDS {
        // an operator in a word is one more separator, and is assumed away
        let _ = fits(vec![word; MAX_PLAIN_SEPARATORS]);
        let _ = fits(vec![word; MAX_PLAIN_SEPARATORS / 2]);
    }
    let config = ProptestConfig { failure_persistence: None, max_global_rejects: 1 << 20, ..ProptestConfig::default() };
    TestRunner::new(config).run(&prop::collection::vec(prop::sample::select(&PLAIN_WORDS), 0..=16), fits).unwrap();
}

/// Deep or long texts are refused, and neither overflow the stack of a thread nor take long.
#[test]
fn hostile_texts_are_refused() {
    let mut texts = vec![
        "x".repeat(MAX_TEXT_BYTES + 1),
        format!("cat <<E\n{}", "$(".repeat(30_000)),
        "env ".repeat(MAX_TEXT_BYTES / 4),
        "a; ".repeat(MAX_TEXT_BYTES / 3),
        format!("sh -c {}", "\"sh -c \\\"".repeat(5_000)),
        format!("echo {}", "`echo \\".repeat(9_000)),
        format!("{}ls{}", "$(echo ".repeat(20), ")".repeat(20)),
        format!("{}ls {}{}", "$(".repeat(15), "x".repeat(60_000), ")".repeat(15)),
        "find -exec ".repeat(MAX_TEXT_BYTES / 11),
        "${x:+>(repeat ".repeat(20) + &"||{".repeat(20),
        "{ ${x:+if{>(".repeat(20),
        format!("{}ls{}", ">$(".repeat(1600), ")b".repeat(1600)),
        format!("{}ls{}", ">$(".repeat(200), ")b".repeat(200)),
        format!("a[{}]=1", "x".repeat(60_000)),
        format!("declare a[{}1]=1", "1+".repeat(30_000)),
        format!("echo {}", "a[".repeat(20_000)),
    ];
    for (prefix, group) in ["${x/", "${x#", "[[ a == ", "case x in ", "<<E\n${x%", "!(", "@("]
        .iter()
        .flat_map(|prefix| ["!(", "@(", "@(a|", "!(<1-"].map(|group| (prefix, group)))
    {
        texts.extend([8, 12, 16, 40, 10_000].map(|count| (*prefix).to_owned() + &group.repeat(count)));
    }
    for opening in [
        "(",
        "$(",
        "${x:-",
        "\"$(",
        "{ ",
        "((",
        "$((",
        "<(",
        "[[ ( ",
        "if ",
        "${x[",
        "case x in x) ",
        "f() ",
        "f() { ",
        "while ",
        "<<E\n",
        "<<E ",
        "x=(",
        "@(",
        "$[",
        "x[",
        "x[\n",
        ";x[",
        "{",
        "{a,",
        "{x[",
        "time ",
        "coproc ",
        "&& ",
        ";",
    ] {
        texts.push(opening.repeat(10_000.min(MAX_TEXT_BYTES / opening.len())));
        texts.push(opening.repeat(MAX_TEXT_BYTES / opening.len()));
    }
    for text in texts {
        let begin = std::time::Instant::now();
        let analysis = analyze(&text);
        if begin.elapsed().as_millis() > 60 {
            println!("SLOW {} {:?}", begin.elapsed().as_millis(), text.chars().take(60).collect::<String>());
        }
        let is_refused = !analysis.understood && analysis.reason != Some(PANICKED);
        assert!(is_refused, "{}… ({})", text.chars().take(20).collect::<String>(), text.len());
    }
    // what follows may be understood, but must not be too deep either
    let ends = [
        "ls".to_owned(),
        format!("{} ls", "a && ".repeat(900)),
        format!("{}ls{}", "(time ".repeat(50), ")".repeat(50)),
        format!("{}ls {}", "{ a && ".repeat(50), "; }".repeat(50)),
        format!("{} ls", "! { coproc a | ".repeat(50) + &"a && ".repeat(900)),
    ];
    for (prefix, end) in
        ["time ", "coproc ", "coproc time ", "! time "].iter().flat_map(|p| ends.iter().map(move |e| (p, e)))
    {
        let _ = analyze(&(prefix.repeat(64) + end));
    }
    for text in ["a | ", "a || ", "a && "].map(|prefix| prefix.repeat(1000) + "ls") {
        let _ = analyze(&text);
    }
    for text in
        ["\"".repeat(MAX_TEXT_BYTES), "! ".repeat(MAX_TEXT_BYTES / 2), format!("cat <<E\n{}", "$x\n".repeat(20_000))]
    {
        let _ = analyze(&text);
    }
}

/// The parser panics on some, which is caught: on one of a thousand, in the midst of a character.
fn are_rarely_too_odd(strategy: impl Strategy<Value = String>) {
    let panicked = Cell::new(0);
    let count = |text: String| {
        panicked.set(panicked.get() + u32::from(analyze(&text).reason == Some(PANICKED)));
        Ok(())
    };
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let most = 4 + config.cases / 200;
    TestRunner::new(config).run(&strategy, count).unwrap();
    assert!(panicked.get() <= most, "{}", panicked.get());
}

#[test]
fn no_text_is_too_odd() {
    are_rarely_too_odd("\\PC{0,200}");
}

#[test]
fn no_syntax_is_too_odd() {
    let parts = || prop::collection::vec(prop::sample::select(SYNTAX), 0..60);
    are_rarely_too_odd(parts().prop_map(|parts| parts.concat()));
    are_rarely_too_odd(parts().prop_map(|parts| parts.join(" ")));
}

proptest! {
    #[test]
    fn single_quotes_hide_programs(texts in prop::collection::vec("[ -&(-\\[\\]-~\n]{0,40}", 0..4)) {
        let quoted: String = texts.iter().map(|text| format!(" '{text}'")).collect();
        let analysis = analyze(&format!("ls{quoted}"));
        prop_assert_eq!((analysis.programs, analysis.understood), (vec!["ls".to_owned()], true));
    }

    #[test]
    fn a_list_runs_what_its_parts_run(parts in prop::collection::vec(prop::sample::select(COMMANDS), 1..6)) {
        let mut together: Vec<String> = Vec::new();
        for program in parts.iter().flat_map(|part| analyze(part).programs) {
            if !together.contains(&program) {
                together.push(program);
            }
        }
        let understood = parts.iter().all(|part| analyze(part).understood);
        let analysis = analyze(&parts.join("; "));
        prop_assert_eq!((analysis.programs, analysis.understood), (together, understood));
    }
}

const COMMANDS: &[&str] = &[
    "ls",
    "echo $(id)",
    "a | b",
    "x=1",
    "(c; d)",
    "if e; then f; fi",
    "sh -c 'g; h'",
    "f() { i; }",
    "$x",
    "! j",
    "xargs k",
    "cat <(l)",
    "[[ -f m ]]",
    "echo 'n; o'",
];

const SYNTAX: &[&str] = &[
    "ls",
    "x=",
    "$",
    "(",
    ")",
    "((",
    "))",
    "{",
    "}",
    "{ ",
    "; }",
    ";",
    ";;",
    "&",
    "&&",
    "|",
    "||",
    "\\`",
    "\"",
    "'",
    "\\",
    "\n",
    " ",
    "$(",
    "${",
    "${x:-",
    "${x/",
    "${!",
    "${x[",
    "[",
    "]",
    "[[ ",
    " ]]",
    "<",
    ">",
    "<<E\n",
    "\nE\n",
    "<<<",
    "<(",
    "if ",
    "then ",
    "fi",
    "for x in ",
    "do ",
    "done",
    "case x in ",
    "esac",
    "f() ",
    "function ",
    "time ",
    "coproc ",
    "!",
    "sh -c ",
    "xargs ",
    "find . -exec ",
    "é",
    "🦀",
    "#",
    "*",
    "=~",
    "$[",
];
