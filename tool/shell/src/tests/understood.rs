//! Texts that are understood, and what is reported of them.

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
        // arithmetic
        ("i=$((i+1)); echo $i", "echo"),
        ("i=0; while ((i < 3)); do id; ((i++)); done", "id"),
        ("for ((i=0; i<3; i++)); do echo \"$i\"; done", "echo"),
        ("n=5; for i in {1..5} 7; do [[ $i -lt n ]] && id $((i * n)); done", "id"),
        ("f() { local i n=$#; for ((i=0; i<n; i++)); do ls; done; }; f a", "local ls f"),
        ("x=abc; echo ${x:1} \"${x:0:2}\" ${x: -1} \"${@:2}\"", "echo"),
        ("let i++ \"j = 2\"; ((1))", "let"),
        ("[[ $# -eq 1 ]] && [[ \"$?\" -ne 0 ]] || id", "id"),
        ("while IFS=: read -r a b; do echo \"$a\"; done </etc/passwd", "read echo"),
        ("IFS= read -r line", "read"),
        ("echo \"$$ ${x:-'a b'} ${y%'c'}\"", "echo"),
        ("find \"$dir\" -name '*.log' -mtime +7 -delete", "find"),
        ("find \"$HOME\" -name \"$x\" -exec rm {} \\;", "find rm"),
        ("find . -name \"$x\" -exec rm {} +", "find rm"),
        ("declare -A m; m[key]=1; echo ${m[key]}; i=0; a[i]=b; echo ${a[$i]} ${#a[i+1]}", "declare echo"),
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
        ("for x in a b-1; do [ -e /srv/$x.conf ] && rm /srv/$x.conf; done", "[ rm"),
        ("D=/srv/x; E=\"$D/y\"; [ -d $E ] || mkdir $E; find $D $E -type f", "[ mkdir find"),
        ("x=a; [ $x = a ] && [ ! -L $x ] && [ $UID -eq 0 ]", "["),
        ("sleep 5 & pid=$!; wait $pid", "sleep wait"),
        ("[ $1 = configure ] && ls", "[ ls"),
        ("PATH=$PATH:/usr/sbin; PATH=/usr/bin:/bin make", "make"),
        ("export PATH=\"/usr/local/bin:$PATH\"; make", "export make"),
        ("HOME=/srv/x make; export HOME=/root", "make export"),
        ("old=$IFS; IFS=:; for d in $PATH; do ls \"$d\"; done; IFS=$old; unset IFS", "ls unset"),
        ("f() { local IFS=,; echo \"$*\"; }; f a b", "local echo f"),
        ("sudo -i -u deploy git pull; sudo -l; sudo -v", "sudo git"),
        ("make \\\n  -j4 \\\n  # all\nls||\\\nid", "make ls id"),
        ("sed 's/a/b\\\nc/' \"x\\\ny\" x", "sed"),
        ("cat <<'E' >x\na \\\nE\nls \\\n -l", "cat ls"),
        ("x=\"`sed -e \\\"s/ .*//\\\" y`\"", "sed"),
        ("echo ${x% *} \"${x:+-p $x}\" ${x//,/ }", "echo"),
        ("a=(1 2); (( ${#a[@]} > 1 )) && local y=${a[0]}", "local"),
        ("a=(x y); for i in \"${!a[@]}\"; do echo \"${a[i]}\" ${!BASH*}; done", "echo"),
        ("[ ${#x} -gt 3 ] && y=${#x} && echo $((y * 2))", "[ echo"),
        ("hash ls; hash -r; jobs %1", "hash jobs"),
        ("complete -F _x x; COMPREPLY=($(compgen -W 'a b $(ls)' -- \"$x\"))", "complete compgen ls"),
    ] {
        let analysis = analyze(text);
        assert_eq!(analysis.programs.join(" "), expected, "{text}");
        assert!(analysis.understood, "{text}: {:?}", analysis.reason);
    }
}

#[test]
fn arguments_are_reported_as_far_as_they_are_known() {
    let analysis = analyze("cp 'a b' \"$x\" c\\ d *.rs {} -t/x");
    let known = |text: &str| Some(text.to_owned());
    let arguments = vec![known("a b"), None, known("c d"), None, known("{}"), known("-t/x")];
    assert_eq!(analysis.commands, [SimpleCommand { program: "cp".to_owned(), arguments }]);
}

#[test]
fn declarations_are_reported_like_other_commands() {
    let analysis = analyze("export -p A='b c' D=$x E");
    let arguments = ["-p", "A=b c", "", "E"].map(|text| Some(text.to_owned()).filter(|text| !text.is_empty()));
    assert_eq!(analysis.commands, [SimpleCommand { program: "export".to_owned(), arguments: arguments.to_vec() }]);
    assert!(analysis.understood && !analyze("export $x").understood && !analyze("declare -n x=y").understood);
}

#[test]
fn sudo_and_the_like_are_reported() {
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
    assert!(!analyze_argv(&["x".repeat(MAX_TEXT_BYTES), "x".to_owned()]).understood);
}
