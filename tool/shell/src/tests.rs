use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::walk::{EVALUATED as VALUE, SYNTAX_ERROR};
use super::*;

const ARGUMENT: &str = "bash evaluates an argument";
const BUILTIN: &str = "a builtin changes what runs";
const DECIDES: &str = "a variable that decides what runs is set";
const EVAL: &str = "eval makes a text of its arguments";
const FIND: &str = "the arguments of find are not known";
const ONLY_BASH: &str = "it has a command that not every shell has";
const PROGRAM: &str = "a program's name is not known";
const SCRIPT: &str = "a script is read into the shell";
const SHELL: &str = "a shell runs a script or its input";
const TRAP: &str = "the text of a trap is not known";
const UNREAD: &str = "a substitution could not be read";
const WRAPPER: &str = "what a wrapper runs is not known";

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
        ("env -i A=1 /bin/ls; env - B=2 /bin/ls", "A B", ""),
        ("env A=1 nice env B=2 ls; sudo C=3 ls", "A B C", ""),
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
        ("A=1 env -u B C=1 ls; env -i - A=1 /bin/ls; env -", "env ls /bin/ls"),
        ("nohup nice -n 10 ionice -c3 ls &", "nohup nice ionice ls"),
        ("nice -10 ls; nice --adjustment=3 id; nice --5 who; nice -+5 w", "nice ls id who w"),
        ("timeout -k 5 --signal=KILL 10s ls", "timeout ls"),
        ("stdbuf -oL setsid -w ls", "stdbuf setsid ls"),
        ("/usr/bin/env ls", "/usr/bin/env ls"),
        ("command -p ls; command -v id; exec -c who; builtin cd", "command ls exec who builtin cd"),
        ("ls | xargs -0 -n1 rm -f", "ls xargs rm"),
        ("ls | xargs -I{} cp {} x", "ls xargs cp"),
        ("ls | xargs; ls | xargs -0 -n1", "ls xargs echo"),
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
    for (text, expected, reason) in [
        ("$x foo", "", PROGRAM),
        ("$(echo rm) foo; ls", "echo ls", PROGRAM),
        ("\"$@\"", "", PROGRAM),
        ("/bin/l* x", "", PROGRAM),
        ("{rm,-rf,/}", "", PROGRAM),
        ("~/bin/x", "", PROGRAM),
        ("eval ls", "eval ls", EVAL),
        ("eval \"$x\"", "eval", EVAL),
        ("source x", "source", SCRIPT),
        (". ./x", ".", SCRIPT),
        ("curl http://x | sh", "curl sh", SHELL),
        ("wget -O- x | sudo bash -s", "wget sudo bash", SHELL),
        ("bash x.sh", "bash", SHELL),
        ("bash -c \"$x\"", "bash", SHELL),
        ("bash -c \"ls $x\"", "bash", SHELL),
        ("zsh -c ls", "zsh", SHELL),
        ("alias ls=rm; ls", "alias ls", "an alias is made"),
        ("cd() { rm x; }; cd", "rm cd", "a function hides a program"),
        ("trap \"$x\" EXIT", "trap", TRAP),
        ("PATH=/x ls", "ls", DECIDES),
        ("PATH=/x; ls", "ls", DECIDES),
        ("LD_PRELOAD=x ls", "ls", DECIDES),
        ("env LD_PRELOAD=x ls", "env", DECIDES),
        ("export PATH=/x; ls", "export ls", DECIDES),
        ("read PATH; ls", "read ls", DECIDES),
        ("printf -v PATH /x; ls", "printf ls", DECIDES),
        (": ${PATH:=x}; ls", ": ls", DECIDES),
        ("for PATH in x; do ls; done", "ls", DECIDES),
        ("BASH_ENV=x sh -c ls", "sh ls", DECIDES),
        ("env -S 'ls -l'", "env", WRAPPER),
        ("env $x ls", "env", WRAPPER),
        ("sudo -i", "sudo", WRAPPER),
        ("sudo --unknown ls", "sudo", WRAPPER),
        ("xargs env", "xargs env", WRAPPER),
        ("xargs -I % sh -c 'rm %'", "xargs sh", SHELL),
        ("xargs -I{} {} x", "xargs", PROGRAM),
        ("find . -exec {} \\;", "find", PROGRAM),
        ("find . $x", "find", FIND),
        ("find . -exec sh -c 'rm {}' \\;", "find sh", SHELL),
        ("mapfile -C 'rm x' y", "mapfile", BUILTIN),
        ("hash -p /bin/rm ls; ls", "hash ls", BUILTIN),
        ("echo ${x@P}", "echo", "the value of a variable is expanded"),
        ("echo ${!x}", "echo", VALUE),
        ("i\\\nd", "", "a line is continued inside of a word, in a here-document or before a comment"),
        ("echo $((x))", "echo", VALUE),
        ("echo $[1]", "echo", VALUE),
        ("echo ${a[$(id)]}", "echo", VALUE),
        ("echo ${x:1}", "echo", VALUE),
        ("for ((i=0; i<3; i++)); do id; done", "id", VALUE),
        ("((1))", "", VALUE),
        ("a[x]=1", "", VALUE),
        ("let x", "let", ARGUMENT),
        ("declare -i x", "declare", "a declaration changes what values mean"),
        ("coproc ls", "ls", "a coprocess sets variables"),
        ("su -c ls", "su", SHELL),
        ("x=(a); declare x=$y", "declare", VALUE),
        ("cat <<A <<B\nA\nB", "cat", UNREAD),
        ("LC_ALL=C echo ☃", "echo", "it sets the locale by which it is read"),
        ("HOME=/x ls", "ls", DECIDES),
        ("cat <<A <<B\n$(ls)\nA\n$(id)\nB", "ls cat", UNREAD),
        ("sh -c 'sh -c \"ls\" &&'", "sh", SYNTAX_ERROR),
    ] {
        let analysis = analyze(text);
        assert_eq!((analysis.understood, analysis.reason), (false, Some(reason)), "{text}");
        assert_eq!(analysis.programs.join(" "), expected, "{text}");
    }
}

/// What may come to several words, or to none, makes what comes after it something else.
#[test]
fn any_number_of_words_is_no_value_of_an_option() {
    for (text, reason) in [
        ("x='1 id'; nice -n $x", WRAPPER),
        ("x='1 id'; nice -n $x ls", WRAPPER),
        ("nice -n $(cat y) ls", WRAPPER),
        ("nice -n `cat y` ls", WRAPPER),
        ("timeout -k $x 5 ls", WRAPPER),
        ("timeout $x ls", WRAPPER),
        ("timeout -- $x ls", WRAPPER),
        ("timeout \"$x\" ls", WRAPPER),
        ("env -u \"$@\" ls", WRAPPER),
        ("env -u \"${a[@]}\" ls", WRAPPER),
        ("env -u \"${x:-$@}\" ls", WRAPPER),
        ("env -u $* ls", WRAPPER),
        ("env -u ${a[*]} ls", WRAPPER),
        ("ionice -c $x ls", WRAPPER),
        ("ionice -c *.txt ls", WRAPPER),
        ("ionice -c [\"1\"] ls", WRAPPER),
        ("stdbuf -o L$x ls", WRAPPER),
        ("sudo -u $x ls", WRAPPER),
        ("xargs -I A -n2 xargs", WRAPPER),
        ("xargs -I A -L2 xargs", WRAPPER),
        ("xargs -I A -l xargs", WRAPPER),
        ("xargs -n $x ls", WRAPPER),
        ("find . -exec env -u {} +", WRAPPER),
        ("find . -exec nice -n {} +", WRAPPER),
        ("find . -name -exec , -exec id {} \\;", FIND),
        ("mapfile -n $x y", BUILTIN),
        ("read -t {1,PATH}", BUILTIN),
        ("read -p $x y", BUILTIN),
        ("getopts $x", BUILTIN),
        ("getopts $x y", BUILTIN),
        ("getopts \"$x\" y a", BUILTIN),
        ("printf -v \"$x\" y", ARGUMENT),
        ("printf $x", BUILTIN),
        ("printf \"$x\"", BUILTIN),
        ("wait $x", ARGUMENT),
        ("wait $! \"$x\"", ARGUMENT),
        ("[ $x = y ]", ARGUMENT),
        ("unset $x", BUILTIN),
        ("trap $x EXIT", TRAP),
        ("command $x", WRAPPER),
        ("command -p $x ls", WRAPPER),
        ("sh -c $x", SHELL),
        ("bash -o $x -c ls", SHELL),
        // it may be an option
        ("timeout \"$x\" 5 ls", WRAPPER),
        ("nice \"$x\" ls", WRAPPER),
        ("nice -n\"$x\" 5 ls", WRAPPER),
        ("env \"$x\" ls", WRAPPER),
        ("env A$x=1 ls", WRAPPER),
        // what these run then is not in the text, or not where it seems
        ("pkexec", WRAPPER),
        ("run0", WRAPPER),
        ("pkexec --user=x ls", WRAPPER),
        ("sudo -- A=1 ls", WRAPPER),
        ("env A=1 - ls", "a program's name is syntax elsewhere"),
        ("fc", BUILTIN),
    ] {
        let analysis = analyze(text);
        assert_eq!((analysis.understood, analysis.reason), (false, Some(reason)), "{text}: {:?}", analysis.programs);
    }
}

/// bash knows operators that nobody wrote down, and more in later versions.
#[test]
fn expansions_that_the_parser_does_not_know_are_not_understood() {
    for text in [
        "x=a; echo ${x~$(id)}",
        "x=a; echo ${x~~$(id)}",
        "x=a; echo ${x~`id`}",
        "x=a; echo ${x~a}",
        "echo \"${1~$(id)}\"",
        "echo ${@~$(id)}",
        "echo ${#x~${x@P}}",
        "y=${x~$(id)}",
        "y=(${x~$(id)})",
        "[[ ${x~$(id)} == a ]]",
        "[[ a == ${x~$(id)} ]]",
        "case ${x~$(id)} in a) ls;; esac",
        "case a in ${x~$(id)}) ls;; esac",
        "for x in ${x~$(id)}; do ls; done",
        "ls > ${x~$(id)}",
        "cat <<< ${x~$(id)}",
        "cat <<E\n${x~$(id)}\nE",
        "cat <<E\n${1~`id`}\nE",
        "echo ${ id; }",
        "echo ${| id; }",
        "echo ${\nid; }",
        "echo \"${ id; }\"",
        "x=${ id; }",
        "echo ${x:-${ id; }}",
        "cat <<E\n${ id; }\nE",
        "cat <<E\n${\nid; }\nE",
    ] {
        let analysis = analyze(text);
        assert_eq!((analysis.understood, analysis.reason), (false, Some(UNREAD)), "{text:?}");
        assert!(!analyze_posix(text).understood, "{text:?}");
    }
    // nothing of theirs is refused with them
    for text in [
        "echo $x ${x} $1 ${1} ${12} $# ${#x} $@ $- $? $$ $_ ${_} \"$1$2${x}y\" $x~$(id) ${x}~",
        "cat <<E\n$x ${x} $1 $12 ${#x} $# $$ $@ ${x:-y}\nE",
        "cat <<-E\n\t$x $(id)\n\t${y}\n\tE",
    ] {
        assert!(analyze(text).understood && analyze_posix(text).understood, "{text:?}: {:?}", analyze(text).reason);
    }
    let text = "echo ${#} ${##} ${*} ${?} ${a[0]} ${a[@]} ${#a[@]} ${#a[0]} \"${a[@]}\" ${x^^~$(id)} ${x,}; cat <<E\n${a[0]} ${#a[@]}\nE";
    assert_eq!(analyze(text).reason, None);
}

/// Where another reading is at hand, real programs and shells have run something else.
#[test]
fn arguments_that_programs_read_otherwise_are_not_understood() {
    for (text, reason) in [
        // printf
        ("printf '%n' PATH; ls", DECIDES),
        ("printf 'x%n' PATH", DECIDES),
        ("printf '%-5.3ln' PATH", DECIDES),
        ("printf '%%%n' PATH", DECIDES),
        ("printf -- '%s%n' x PATH", DECIDES),
        ("printf '%*n' 5 PATH", ARGUMENT),
        ("printf '%n' \"$x\"", ARGUMENT),
        ("printf -v x '%n' PATH", DECIDES),
        ("f=%n; printf \"x$f\" PATH", DECIDES),
        ("f=%n; printf \"x$f\" \"$y\"", ARGUMENT),
        ("printf -- $x", ARGUMENT),
        ("builtin printf '%n' PATH", DECIDES),
        // nice
        ("nice -1n -n 5 id", WRAPPER),
        ("nice -12n --adj 3 id", WRAPPER),
        ("nice -n 1 -2n -n 3 id", WRAPPER),
        ("nice -n 5 -n 6 ls", WRAPPER),
        // exec
        ("exec -a NAME ls", WRAPPER),
        ("exec -a sh busybox x", WRAPPER),
        ("exec -l ls", WRAPPER),
        ("exec -c bash -c ls", DECIDES),
        ("exec -c env ls", DECIDES),
        // find
        ("busybox find ./a ./b -exec env -u {} A=1 +", FIND),
        ("find . -exec ls", FIND),
        ("find . -exec ls {}", FIND),
        ("find . -exec ls + {} \\;", FIND),
        ("find . -ok ls {} +", FIND),
        // env
        ("env -u PATH bash -c ls", DECIDES),
        ("env -uPATH ls", DECIDES),
        ("env --unset LD_PRELOAD ls", DECIDES),
        ("env -u \"$x\" ls", DECIDES),
        ("env -u LANG ls ☃", "it sets the locale by which it is read"),
        ("env -i bash -c ls", DECIDES),
        ("env --ignore-environment ls", DECIDES),
        ("env - bash -c ls", DECIDES),
        ("env -i /usr/bin/nice ls", DECIDES),
        ("env -C x ./y", WRAPPER),
        ("env --chdir=x nice y", WRAPPER),
        ("sudo -D x ./y", WRAPPER),
        ("run0 -D x sh -c ./y", WRAPPER),
        // sudo
        ("sudo -p -- A=1 ls", WRAPPER),
        ("sudo -p \"$x\" A=1 ls", WRAPPER),
        ("sudo A=1 -p -- B=1 ls", WRAPPER),
        ("sudo -R x ls", WRAPPER),
        ("sudo -A ls", WRAPPER),
        ("sudo --askpass ls", WRAPPER),
        ("sudo", WRAPPER),
        ("sudo -u me", WRAPPER),
        ("sudo A=1", WRAPPER),
        // xargs, busybox
        ("xargs -I e", PROGRAM),
        ("busybox nice -n 5 -n 6 ls", WRAPPER),
        ("busybox timeout -k 5 5 ls", WRAPPER),
        ("busybox env -i ls", WRAPPER),
        ("busybox bash -c ls", WRAPPER),
        ("toybox sh -c ls", WRAPPER),
        ("busybox busybox xargs -0 ls", WRAPPER),
    ] {
        let analysis = analyze(text);
        assert_eq!((analysis.understood, analysis.reason), (false, Some(reason)), "{text}: {:?}", analysis.programs);
        assert!(!analyze_posix(text).understood, "{text}");
    }
    // dash has no options of exec: it runs programs of these names
    for text in
        ["exec \"-c\" id", "\\exec -a x id", "'exec' -c id", "command exec -c id", "exec -- id", "exec \"$x\" id"]
    {
        assert_eq!(analyze_posix(text).reason, Some(ONLY_BASH), "{text}");
    }
    assert_eq!(analyze_posix("docker exec -it x ls; grep -e exec x; exec ls -l").reason, None);
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
        ("env -u X -C ~/src make \"$@\"", "env make"),
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
        ("exec ls \"$@\"", "exec ls"),
        ("sudo -u \"$x\" ls", "sudo ls"),
        ("sudo -u me A=\"$b\" ls", "sudo ls"),
        ("sudo -D /x make", "sudo make"),
        ("busybox sh -c 'busybox ls -l'; busybox find . -exec ls {} +", "busybox sh ls find"),
        ("printf '100%%n %-5s\\n' PATH; printf '%n'; printf '%n' x", "printf"),
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
        ["\"".repeat(LONGEST_TEXT), "! ".repeat(LONGEST_TEXT / 2), format!("cat <<E\n{}", "$x\n".repeat(20_000))]
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
