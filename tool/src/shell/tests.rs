use proptest::prelude::*;

use super::*;

#[test]
fn the_variables_that_programs_get_are_known() {
    for (text, exported, assigned) in [
        ("a=1; ls $a", "", "a"),
        ("for x in 1; do read y; done; printf -v z 1; echo ${w:=1}", "", "w x y z"),
        ("PERL5OPT=-Mx perl y", "PERL5OPT", "PERL5OPT"),
        ("A=1 B=2 ls; C=3", "A B", "A B C"),
        ("export PYTHONPATH=x; python3 y", "PYTHONPATH", "PYTHONPATH"),
        ("A=1; export A B", "A B", "A B"),
        ("declare -x A=1; typeset -gx B; local C; readonly D=1", "A B", "A B C D"),
        ("\\export A=1; command declare -rx B=2", "A B", "A B"),
        ("env TAR_OPTIONS=x tar c", "TAR_OPTIONS", ""),
        ("env -i - A=1 nice env B=2 ls; sudo C=3 ls", "A B C", ""),
        ("find . -exec env A=1 ls {} \\;; ls | xargs env B=1 id", "A B", ""),
        ("sh -c 'A=1 ls; export B'; echo $(C=1 id)", "A B C", "A B C"),
        ("A=1 exit; f() { B=1 ls; }; f", "A B", "A B"),
        ("time A=1 ls; ! B=1 ls", "A B", "A B"),
    ] {
        let analysis = analyze(text);
        assert!(analysis.understood, "{text}: {:?}", analysis.reason);
        let words = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        assert_eq!(
            (words(&analysis.exported).as_str(), words(&analysis.assigned).as_str()),
            (exported, assigned),
            "{text}"
        );
    }
    // all that is assigned afterwards
    assert!(!analyze("set -a; A=1; ls").understood && !analyze("sh -o allexport -c ls").understood);
}

#[test]
fn texts_run_what_they_name() {
    for (text, expected) in [
        ("", ""),
        ("  # only a comment", ""),
        ("ls", "ls"),
        ("ls -la /tmp # ; rm", "ls"),
        ("ls\nid\n\nls", "ls id"),
        ("ls; id & who && w || df | cat |& wc", "ls id who w df cat wc"),
        ("! ls", "ls"),
        ("/bin/ls ./x", "/bin/ls"),
        // quoting
        ("echo 'rm -rf /'", "echo"),
        ("echo \"rm; id\" a\\;b '$(id)' \"\\$(id)\" \\`id\\`", "echo"),
        ("\\ls", "ls"),
        ("l's' ; \"i\"d; $'w'", "ls id w"),
        ("echo \"a\nb; id\"", "echo"),
        ("écho ☃ '🦀 ; id'", "écho"),
        ("echo a#b; ls", "echo ls"),
        // substitutions
        ("echo $(ls; id) `who`", "ls id who echo"),
        ("echo \"$(ls \"$(id)\")\"", "id ls echo"),
        ("echo `ls \\`id\\``", "id ls echo"),
        ("echo $(echo `who`)", "who echo"),
        ("diff <(ls) <(id) > >(wc)", "wc ls id diff"),
        ("x=$(ls)", "ls"),
        // structure
        ("(ls; id); { who; }", "ls id who"),
        ("if ls; then id; elif w; then who; else df; fi", "ls id w who df"),
        ("for x in a $(ls); do id; done", "ls id"),
        ("while ls; do id; done; until w; do df; done", "ls id w df"),
        ("select x in a b; do ls; done", "ls"),
        ("case $(ls) in a|$(id)) who;; *) w;; esac", "ls id who w"),
        ("[[ -f $(ls) && a == $(id)* ]] && who", "ls id who"),
        ("[ -f x ] && ls", "[ ls"),
        ("f() { ls; }; f", "ls f"),
        ("function f { ls; }", "ls"),
        ("declare -a x=($(ls))", "ls declare"),
        ("export Y=$(id)", "id export"),
        ("time ls -l", "time ls"),
        ("cd /tmp && return $(ls)", "cd ls return"),
        // redirections
        ("ls \\\n  -l", "ls"),
        ("echo $((2 * 3)) ${#x} ${x%.*} ${x^^} $x ${a[0]} ${a[@]} ${#a[*]}", "echo"),
        ("a=(1 $(ls) [3]=$(id)); a[1]=2", "ls id"),
        ("set -euo pipefail; read -r x; unset x; printf '%s' \"$x\"", "set read unset printf"),
        ("[ \"$x\" = y ] && [ $# -eq 1 ] && test -n \"$x\"", "[ test"),
        ("f() { local x=$1; }; f", "local f"),
        ("> x; < y", ""),
        ("2>&1 ls > \"$(id)\"", "id ls"),
        ("x=1 > y", ""),
        ("exec 3<>x", "exec"),
        ("cat <<E\n$(ls) \\$(id) `who`\nrm\nE\nw", "ls who cat w"),
        ("cat <<'E'\n$(ls)\nE\nid", "cat id"),
        ("cat <<-E\n\trm\n\tE\nid", "cat id"),
        ("cat <<< \"$(ls)\"", "ls cat"),
        ("[[ $x =~ ^(a|b)$ && x =~ ^[0-9]{4}$ ]] && echo $(( (1 + 2) * 3 ))", "echo"),
        ("echo {a,b}{1..3} *.rs ~/x", "echo"),
        // wrappers
        ("A=1 env -i -u B C=1 ls", "env ls"),
        ("nohup nice -n 10 ionice -c3 ls &", "nohup nice ionice ls"),
        ("nice -10 ls; nice --adjustment=3 id", "nice ls id"),
        ("timeout -k 5 --signal=KILL 10s ls", "timeout ls"),
        ("stdbuf -oL setsid -w ls", "stdbuf setsid ls"),
        ("/usr/bin/env ls", "/usr/bin/env ls"),
        ("command -p ls; command -v id; exec -a x who; builtin cd", "command ls exec who builtin cd"),
        ("ls | xargs -0 -n1 rm -f", "ls xargs rm"),
        ("ls | xargs -I{} cp {} x; ls | xargs", "ls xargs cp"),
        ("find . -name x -exec rm {} \\; -o -execdir ls {} +", "find rm ls"),
        ("sudo -n -u me A=1 ls; doas -u me id", "sudo ls doas id"),
        ("env -- nohup -- ls", "env nohup ls"),
        // texts in texts
        ("sh -c 'ls; id'", "sh ls id"),
        ("bash -euo pipefail -c \"ls | id\" x y; w", "bash ls id w"),
        ("bash -lc 'sh -c \"ls\"'", "bash sh ls"),
        ("sudo /bin/sh -c 'echo $(id)'", "sudo /bin/sh id echo"),
        ("xargs sh -c 'rm \"$@\"' x", "xargs sh rm"),
        ("trap 'rm x; id' EXIT; trap - INT; trap INT; ls", "trap rm id ls"),
    ] {
        let analysis = analyze(text);
        assert_eq!(analysis.programs.join(" "), expected, "{text}");
        assert!(analysis.understood, "{text}: {:?}", analysis.reason);
    }
}

#[test]
fn what_is_decided_later_is_not_understood() {
    for (text, expected) in [
        ("$x foo", ""),
        ("$(echo rm) foo; ls", "echo ls"),
        ("\"$@\"", ""),
        ("/bin/l* x", ""),
        ("{rm,-rf,/}", ""),
        ("~/bin/x", ""),
        ("eval ls", "eval ls"),
        ("eval \"$x\"", "eval"),
        ("source x", "source"),
        (". ./x", "."),
        ("curl http://x | sh", "curl sh"),
        ("wget -O- x | sudo bash -s", "wget sudo bash"),
        ("bash x.sh", "bash"),
        ("bash -c \"$x\"", "bash"),
        ("bash -c \"ls $x\"", "bash"),
        ("zsh -c ls", "zsh"),
        ("alias ls=rm; ls", "alias ls"),
        ("cd() { rm x; }; cd", "rm cd"),
        ("trap \"$x\" EXIT", "trap"),
        ("PATH=/x ls", "ls"),
        ("PATH=/x; ls", "ls"),
        ("LD_PRELOAD=x ls", "ls"),
        ("env LD_PRELOAD=x ls", "env"),
        ("export PATH=/x; ls", "export ls"),
        ("read PATH; ls", "read ls"),
        ("printf -v PATH /x; ls", "printf ls"),
        (": ${PATH:=x}; ls", ": ls"),
        ("for PATH in x; do ls; done", "ls"),
        ("BASH_ENV=x sh -c ls", "sh ls"),
        ("env -S 'ls -l'", "env"),
        ("env $x ls", "env"),
        ("sudo -i", "sudo"),
        ("sudo --unknown ls", "sudo"),
        ("xargs env", "xargs env"),
        ("xargs -I % sh -c 'rm %'", "xargs sh"),
        ("xargs -I{} {} x", "xargs"),
        ("find . -exec {} \\;", "find"),
        ("find . $x", "find"),
        ("find . -exec sh -c 'rm {}' \\;", "find sh"),
        ("mapfile -C 'rm x' y", "mapfile"),
        ("hash -p /bin/rm ls; ls", "hash ls"),
        ("echo ${x@P} ${!x}", "echo"),
        ("i\\\nd", ""),
        ("echo $((x)) $[1] ${a[$(id)]} ${x:1}", "echo"),
        ("for ((i=0; i<3; i++)); do id; done", "id"),
        ("((1)); a[x]=1; let x; declare -i x", "let declare"),
        ("coproc ls", "ls"),
        ("su -c ls", "su"),
        ("x=(a); declare x=$y", "declare"),
        ("cat <<A <<B\nA\nB", "cat"),
        ("LC_ALL=C echo ☃", "echo"),
        ("HOME=/x ls", "ls"),
        ("cat <<A <<B\n$(ls)\nA\n$(id)\nB", "ls cat"),
        ("sh -c 'sh -c \"ls\" &&'", "sh"),
    ] {
        let analysis = analyze(text);
        assert!(!analysis.understood, "{text}");
        assert!(analysis.reason.is_some(), "{text}");
        assert_eq!(analysis.programs.join(" "), expected, "{text}");
    }
}

/// What may come to several words, or to none, makes what comes after it something else.
#[test]
fn any_number_of_words_is_no_value_of_an_option() {
    for text in [
        "x='1 id'; nice -n $x",
        "x='1 id'; nice -n $x ls",
        "nice -n $(cat y) ls",
        "nice -n `cat y` ls",
        "timeout -k $x 5 ls",
        "timeout $x ls",
        "timeout -- $x ls",
        "timeout \"$x\" ls",
        "env -u \"$@\" ls",
        "env -u \"${a[@]}\" ls",
        "env -u \"${x:-$@}\" ls",
        "env -u $* ls",
        "env -u ${a[*]} ls",
        "ionice -c $x ls",
        "ionice -c *.txt ls",
        "ionice -c [\"1\"] ls",
        "exec -a {n,id}",
        "exec -a {\"n\",id}",
        "stdbuf -o L$x ls",
        "sudo -u $x ls",
        "xargs -I A -n2 xargs",
        "xargs -I A -L2 xargs",
        "xargs -I A -l xargs",
        "xargs -n $x ls",
        "find . -exec env -u {} +",
        "find . -exec nice -n {} +",
        "find . -name -exec , -exec id {} \\;",
        "mapfile -n $x y",
        "read -t {1,PATH}",
        "read -p $x y",
        "getopts $x",
        "getopts $x y",
        "getopts \"$x\" y a",
        "printf -v \"$x\" y",
        "printf $x",
        "printf \"$x\"",
        "wait $x",
        "wait $! \"$x\"",
        "[ $x = y ]",
        "unset $x",
        "trap $x EXIT",
        "command $x",
        "command -p $x ls",
        "sh -c $x",
        "bash -o $x -c ls",
        // it may be an option
        "timeout \"$x\" 5 ls",
        "nice \"$x\" ls",
        "nice -n\"$x\" 5 ls",
        "env \"$x\" ls",
        "env A$x=1 ls",
        // what these run then is not in the text, or not where it seems
        "pkexec",
        "run0",
        "pkexec --user=x ls",
        "sudo -- A=1 ls",
        "env A=1 - ls",
        "fc",
    ] {
        assert!(!analyze(text).understood, "{text}: {:?}", analyze(text).programs);
    }
}

#[test]
fn everyday_lines_are_understood() {
    for (text, expected) in [
        ("timeout 5 ls \"$x\"", "timeout ls"),
        ("timeout -k \"$x\" 5 ls $y", "timeout ls"),
        ("timeout --kill-after=\"$x\" -s KILL 5 ls", "timeout ls"),
        ("timeout --sig KILL 5 ls", "timeout ls"),
        ("nice -n 10 make", "nice make"),
        ("nice -n \"$x\" make -j$(nproc)", "nproc nice make"),
        ("nice -n $((5 + 5)) make", "nice make"),
        ("env A=\"$b\" ls", "env ls"),
        ("env -u \"$x\" -C ~/src make \"$@\"", "env make"),
        ("xargs -n1 rm", "xargs rm"),
        ("xargs -0 -I{} cp {} \"$x\"/{}", "xargs cp"),
        ("find . -name '*.log' -exec gzip {} +", "find gzip"),
        ("find . -type f -exec nice -n 5 gzip {} \\;", "find nice gzip"),
        ("ls $x", "ls"),
        ("ls *.txt", "ls"),
        ("rm -f -- \"${files[@]}\"", "rm"),
        ("for f in *.c; do wc -l \"$f\"; done", "wc"),
        ("tar -C \"$x\" -czf ~/y.tgz {a,b} *.c", "tar"),
        ("printf '%s\\n' \"$@\" $x; printf \"x: $x\"", "printf"),
        ("read -r -t \"$x\" -p \"$y\" z", "read"),
        ("while getopts ab: x; do ls; done", "getopts ls"),
        ("while getopts \"ab:$x\" y; do ls; done", "getopts ls"),
        ("ls & wait $!; wait -n \"$!\"; exit $?", "ls wait exit"),
        ("[ $# -gt 1 ] || [ \"$?\" -eq 0 ] && [ -z \"$x\" ]", "["),
        ("mapfile -t -n 5 x", "mapfile"),
        ("command -v \"$x\"", "command"),
        ("exec -a \"$x\" ls \"$@\"", "exec ls"),
        ("sudo -u \"$x\" A=\"$b\" ls", "sudo ls"),
        ("trap 'rm -f \"$x\"' EXIT INT", "trap rm"),
        ("set -- $x; shift", "set shift"),
        ("sh -c 'ls \"$@\"' sh *.c", "sh ls"),
    ] {
        let analysis = analyze(text);
        assert_eq!(analysis.programs.join(" "), expected, "{text}");
        assert!(analysis.understood, "{text}: {:?}", analysis.reason);
    }
}

#[test]
fn syntax_errors_are_not_understood() {
    for text in [
        "ls &&",
        "(ls",
        "ls)",
        "if ls",
        "echo 'x",
        "echo \"x",
        "echo $(ls",
        "echo `ls",
        "ls |",
        "case x in",
        "f() {",
        "echo ${x",
        ";;",
        "ls\0",
        "ls\r\n",
        "ls\u{a0}x",
        "echo \u{2028}",
        "\u{1b}[2J",
        "() { ls; }",
        "(sleep 1) ls",
        "()",
        "{x ; ls",
        "]x",
        "x[ ]]",
    ] {
        let analysis = analyze(text);
        assert!(!analysis.understood && analysis.reason.is_some(), "{text:?}: {analysis:?}");
    }
}

#[test]
fn arguments_are_told_as_far_as_they_are_known() {
    let analysis = analyze("cp 'a b' \"$x\" c\\ d *.rs {} -t/x");
    let known = |text: &str| Some(text.to_owned());
    let arguments = vec![known("a b"), None, known("c d"), None, known("{}"), known("-t/x")];
    assert_eq!(analysis.commands, [SimpleCommand { program: "cp".to_owned(), arguments }]);
}

#[test]
fn declarations_are_told_like_other_commands() {
    let analysis = analyze("export -p A='b c' D=$x E");
    let arguments = ["-p", "A=b c", "", "E"].map(|text| Some(text.to_owned()).filter(|text| !text.is_empty()));
    assert_eq!(analysis.commands, [SimpleCommand { program: "export".to_owned(), arguments: arguments.to_vec() }]);
    assert!(analysis.understood && !analyze("export $x").understood && !analyze("declare -n x=y").understood);
}

#[test]
fn sudo_and_the_like_are_told() {
    for text in ["sudo ls", "ls; /usr/bin/doas id", "sh -c 'su'", "x=$(pkexec ls)", "env run0 ls", "eval 'sudo ls'"] {
        assert!(analyze(text).uses_sudo, "{text}");
    }
    for text in ["echo sudo", "grep 'sudo x'", "sudoku", "# sudo", "cat <<E\nsudo\nE"] {
        assert!(!analyze(text).uses_sudo, "{text}");
    }
}

#[test]
fn programs_without_a_shell_are_looked_through() {
    for (argv, expected, understood) in [
        (&[][..], "", true),
        (&["ls", "$(id)", ";", "rm"], "ls", true),
        (&["env", "A=1", "sh", "-c", "ls; id"], "env sh ls id", true),
        (&["sudo", "*"], "sudo *", true),
        (&["sh", "x"], "sh", false),
    ] {
        let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
        let analysis = analyze_argv(&argv);
        assert_eq!((analysis.programs.join(" ").as_str(), analysis.understood), (expected, understood), "{argv:?}");
    }
    assert!(!analyze_argv(&["x".repeat(LONGEST_TEXT), "x".to_owned()]).understood);
}

/// They are looked through on the caller's own stack.
#[test]
fn programs_within_programs_are_bounded() {
    let argv: Vec<String> = ["find", "-exec"].map(str::to_owned).into_iter().cycle().take(12_000).collect();
    let analysis = analyze_argv(&argv);
    assert!(!analysis.understood && analysis.commands.len() < 100, "{}", analysis.commands.len());
    assert!(!analyze_argv(&vec![String::new(); LONGEST_TEXT + 1]).understood);
}

/// Deep or long texts are refused, and neither overflow the stack of a thread nor take long.
#[test]
fn hostile_texts_are_refused() {
    let mut texts = vec![
        "x".repeat(LONGEST_TEXT + 1),
        format!("cat <<E\n{}", "$(".repeat(30_000)),
        "env ".repeat(LONGEST_TEXT / 4),
        "a; ".repeat(LONGEST_TEXT / 3),
        format!("sh -c {}", "\"sh -c \\\"".repeat(5_000)),
        format!("echo {}", "`echo \\".repeat(9_000)),
        format!("{}ls{}", "$(echo ".repeat(20), ")".repeat(20)),
        format!("{}ls {}{}", "$(".repeat(15), "x".repeat(60_000), ")".repeat(15)),
        "find -exec ".repeat(LONGEST_TEXT / 11),
        format!("{}ls{}", ">$(".repeat(1600), ")b".repeat(1600)),
        format!("{}ls{}", ">$(".repeat(200), ")b".repeat(200)),
    ];
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
        texts.push(opening.repeat(10_000.min(LONGEST_TEXT / opening.len())));
        texts.push(opening.repeat(LONGEST_TEXT / opening.len()));
    }
    for text in texts {
        let analysis = analyze(&text);
        assert!(!analysis.understood, "{}… ({})", text.chars().take(20).collect::<String>(), text.len());
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
        ["\"".repeat(LONGEST_TEXT), "! ".repeat(LONGEST_TEXT / 2), format!("cat <<E\n{}", "$x\n".repeat(20_000))]
    {
        let _ = analyze(&text);
    }
}

proptest! {
    #[test]
    fn no_text_is_too_odd(text in "\\PC{0,200}") {
        let _ = analyze(&text);
    }

    #[test]
    fn no_syntax_is_too_odd(parts in prop::collection::vec(prop::sample::select(SYNTAX), 0..60)) {
        let _ = analyze(&parts.concat());
        let _ = analyze(&parts.join(" "));
    }

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
