//! Texts that are not understood, and the reasons.

use super::*;

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
        ("sudo -i -u x sh -c ls", "sudo", WRAPPER),
        ("sudo -i ./x", "sudo", WRAPPER),
        ("sudo -i '$x'", "sudo", PROGRAM),
        ("sudo -s ls", "sudo", WRAPPER),
        ("sudo -i coproc id", "sudo", WRAPPER),
        ("sudo -i trap '((id))' EXIT", "sudo", WRAPPER),
        ("xargs -I a -I b ls", "xargs", WRAPPER),
        ("x=-; y=${x}exec; find . $y id", "find", UNQUOTED),
        ("echo ${x//$(ls)/<(id)}", "ls echo", UNREAD),
        ("sudo --unknown ls", "sudo", WRAPPER),
        ("xargs env", "xargs env", WRAPPER),
        ("xargs -I % sh -c 'rm %'", "xargs sh", SHELL),
        ("xargs -I{} {} x", "xargs", PROGRAM),
        ("find . -exec {} \\;", "find", PROGRAM),
        ("x=$(y); find . $x", "y find", UNQUOTED),
        ("find . -exec sh -c 'rm {}' \\;", "find sh", SHELL),
        ("mapfile -C 'rm x' y", "mapfile", BUILTIN),
        ("hash -p /bin/rm ls; ls", "hash ls", BUILTIN),
        ("echo ${x@P}", "echo", "the value of a variable is expanded"),
        ("echo \"${x-\"$\\(id)\"}\"", "echo", UNREAD),
        ("echo ${!x}", "echo", VALUE),
        ("echo ${!x[0]} ${!x@Q}", "echo", VALUE),
        ("declare -A a; for i in ${!a[@]}; do ls ${b[i]}; done", "declare ls", VALUE),
        ("i\\\nd", "", "a line is continued inside of a word, in a here-document or before a comment"),
        ("x=$y; echo $((x))", "echo", VALUE),
        ("echo $((x[1]))", "echo", VALUE),
        ("echo $((_))", "echo", VALUE),
        ("read x; ((x))", "read", VALUE),
        ("for x in *; do ((x)); done", "", VALUE),
        ("x=1; for x in $y; do ((x)); done", "", VALUE),
        ("x=1 bash -c '((x))'", "bash", VALUE),
        ("env x=1 bash -c '((x))'", "env bash", VALUE),
        ("x=y; [[ $x -eq 1 ]]", "", VALUE),
        ("x=$1; for ((i=0; i<x; i++)); do id; done", "id", VALUE),
        ("IFS=/ ; read x", "read", DECIDES),
        ("IFS=/ ls", "ls", DECIDES),
        ("find \"$x\" -exec ls {} \\;", "find ls", FIND),
        ("find \"$x\" \"$y\"", "find", FIND),
        ("find -name $x", "find", FIND),
        ("find \"$x\" -name \"$y\"", "find", FIND),
        ("find . \"$x\" ls -name ';'", "find", FIND),
        ("find . -exec echo -name \\; \"$x\" id -name \"$y\"", "find echo", FIND),
        ("find . -newer \"$x\" -exec \"$y\" \\;", "find", FIND),
        ("find . -unknown x -name \"$y\" -exec ls \\;", "find ls", FIND),
        ("IFS=0 y=$(ls) read x", "ls read", DECIDES),
        ("IFS=$x read y", "read", DECIDES),
        ("trap ls USR1; IFS=0 read x", "trap ls read", DECIDES),
        ("[[ ~+ -eq 1 ]]", "", VALUE),
        ("echo \"${x:-'$y'}\"", "echo", UNREAD),
        ("echo \"$$(\"; id; echo \")\"", "echo", UNREAD),
        ("echo $[1]", "echo", VALUE),
        ("echo ${a[$(id)]}", "echo", VALUE),
        ("y=$1; echo ${x:y}", "echo", VALUE),
        ("x=$1; a[x]=1", "", VALUE),
        ("x=$1; echo ${a[$x]}", "echo", VALUE),
        ("let $x", "let", ARGUMENT),
        ("declare -i x", "declare", "a declaration changes what values mean"),
        ("coproc ls", "ls", "a coprocess sets variables"),
        ("su -c ls", "su", SHELL),
        ("x=(a); declare x=$y", "declare", VALUE),
        ("cat <<A <<B\nA\nB", "cat", UNREAD),
        ("LC_ALL=C echo ☃", "echo", "it sets the locale by which it is read"),
        ("HOME=x ls", "ls", DECIDES),
        ("HOME=/x bash -lc ls", "bash ls", DECIDES),
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
        ("read x; wait $x", UNQUOTED),
        ("wait $! \"$x\"", ARGUMENT),
        ("read x; [ $x = y ]", UNQUOTED),
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
        ("env A=1 - ls", "a program has the name of a keyword or an option"),
        ("fc", BUILTIN),
    ] {
        let analysis = analyze(text);
        assert_eq!((analysis.understood, analysis.reason), (false, Some(reason)), "{text}: {:?}", analysis.programs);
    }
}

/// bash knows operators that are not documented, and more in later versions.
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
