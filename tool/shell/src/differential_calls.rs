//! Calls of wrappers, `find`, shells and builtins, made at random of the tables that say how their arguments are read:
//! the real ones run nothing that is not listed.

#![cfg(target_os = "linux")]

use super::builtins::SETTERS;
use super::differential::{Counts, LAST, Machine, Random, found, rounds, shells};
use super::differential_texts::{ANY, KNOWN, ONE};
use super::options::Options;
use super::wrappers::WRAPPERS;

const ROUNDS: u64 = 250;

/// Those of the tables that do nothing on their own that could not be done here.
const REAL: [&str; 14] = [
    "env", "nohup", "nice", "ionice", "time", "timeout", "stdbuf", "setsid", "xargs", "find", "sh", "bash", "dash",
    "busybox",
];

const START: &str = "f=%n a=1 n=-n k=-v x='1 zy' o='-n 1 zo' v='1 a[$(zt)]' s='a[$(zt)]'; set -- 1 zx; ";

/// What could come to be run, and leaves a mark.
const MARKS: [&str; 23] = [
    "zz", "zy", "zo", "zt", "zx", "zv", "zw", "zu", "zs", "id", "KILL", "L", "1", "2", "5", "A", "A=1", "-", "+", "-a",
    "-c", "echo", LAST,
];

/// Words that the real programs take, and others.
fn word(random: &mut Random) -> &'static str {
    match random.below(10) {
        0..7 => random.one(KNOWN),
        7..9 => random.one(ONE),
        _ => random.one(ANY),
    }
}

/// One option of a table, in any of the ways in which it can be written.
fn option(random: &mut Random, options: &Options, words: &mut Vec<String>) {
    let value = word(random);
    if !options.long.is_empty() && random.below(3) == 0 {
        let option = random.one(options.long);
        let (name, takes) = option.split_at(option.find(':').unwrap_or(option.len()));
        let cut = if random.below(3) == 0 { 1 + random.below(name.len()) } else { name.len() };
        let written = format!("--{}", &name[..cut]);
        match (takes, random.below(8)) {
            (_, 0) | ("::", 1..4) => words.push(format!("{written}={value}")),
            ("", _) | (_, 1) => words.push(written),
            (_, 2..4) => words.push(format!("{written}={value}")),
            _ => words.extend([written, value.to_owned()]),
        }
        return;
    }
    if options.short.starts_with('#') && random.below(2) == 0 {
        return words.push(random.one(&["-1", "-12", "-1n", "-12n", "--1", "-+1"]).to_owned());
    }
    let letters: Vec<&str> = options.short.split("").filter(|letter| !matches!(*letter, "" | ":" | "#")).collect();
    if letters.is_empty() {
        return;
    }
    let cluster: String = (0..1 + random.below(8) / 6).map(|_| random.one(&letters)).collect();
    let last = options.short.split(&cluster[cluster.len() - 1..]).nth(1).unwrap_or_default();
    match random.below(8) {
        0 => words.push(format!("-{cluster}")),
        1..4 if last.starts_with(':') => words.push(format!("-{cluster}{value}")),
        _ if last.starts_with("::") || !last.starts_with(':') => words.push(format!("-{cluster}")),
        _ => words.extend([format!("-{cluster}"), value.to_owned()]),
    }
}

/// A call, with others within it.
fn call(random: &mut Random, names: &[&str], depth: usize, words: &mut Vec<String>) {
    let name = if depth > 3 || random.below(6) == 0 { "zz" } else { random.one(names) };
    words.push(name.to_owned());
    if name == "find" {
        return find(random, names, depth, words);
    }
    if matches!(name, "sh" | "bash" | "dash") {
        let option = random.one(&["-c", "-c", "-ec", "-c --", "-e -c", "-o errexit -c", "-co errexit", "--"]);
        words.extend([
            option.to_owned(),
            random.one(&["zz", "'zz 1'", "'\"$0\"'", "\"$a\"", "$x", "'zy $1'"]).to_owned(),
        ]);
    }
    let wrapper = WRAPPERS.iter().find(|wrapper| wrapper.name == name);
    let setter = SETTERS.iter().find(|setter| setter.name == name);
    let own = Options { short: setter.map_or("", |setter| setter.short), long: &[] };
    let options = wrapper.map_or(&own, |wrapper| &wrapper.options);
    if name == "xargs" && random.below(4) == 0 {
        let options = [random.one(&["-I A", "-I{}", "-i"]), random.one(&["-n1", "-n2", "-L1", "-l", ""])];
        words.extend(options.map(str::to_owned));
        if random.below(2) == 0 {
            return words.push(random.one(&["env", "nohup", "nice", "setsid", "xargs"]).to_owned());
        }
    }
    for _ in 0..random.below(4) {
        option(random, options, words);
    }
    words.extend((random.below(8) == 0).then(|| "--".to_owned()));
    words.extend((random.below(8) == 0).then(|| word(random).to_owned()));
    words.extend((name == "timeout" && random.below(8) > 0).then(|| "1".to_owned()));
    words.extend((name == "env").then(|| "A=1".to_owned()).filter(|_| random.below(4) == 0));
    if name == "printf" {
        words.push(random.one(&["x%n", "%n", "'%s %-3ln'", "%%n", "\"x$f\"", "\"$f\"", "$f", "1"]).to_owned());
    }
    match (setter.is_some(), random.below(8)) {
        (true, 0..4) => {
            words.extend((0..1 + random.below(2)).map(|_| random.one(&["y", "z", "PATH", "REPLY"]).to_owned()))
        }
        (true, _) => words.push(word(random).to_owned()),
        (false, 0) => words.push(word(random).to_owned()),
        // what is run may come from elsewhere
        (false, 1) => return,
        (false, _) => call(random, names, depth + 1, words),
    }
    words.extend((0..random.below(3)).map(|_| word(random).to_owned()));
}

/// Of programs that leave a mark wherever they come to stand.
fn find(random: &mut Random, names: &[&str], depth: usize, words: &mut Vec<String>) {
    words.extend((random.below(4) > 0).then(|| "../bin/ -name '[12]'".to_owned()));
    for _ in 0..1 + random.below(3) {
        match random.below(6) {
            0 => words.push(
                random.one(&["-name 1", "-name '*'", "-name -exec ','", "-name -ok '('", "-name ';'"]).to_owned(),
            ),
            1 => words.push(random.one(&["-o", "','", "'!'", "'('", "')'", "-print", "-depth"]).to_owned()),
            _ => {
                words.push(random.one(&["-exec", "-exec", "-execdir", "-ok"]).to_owned());
                match random.below(3) {
                    0 => words.push(random.one(&["env -u", "env -u", "nice -n", "timeout 1", "xargs"]).to_owned()),
                    _ => call(random, names, depth + 1, words),
                }
                words.push(random.one(&["\\;", "\\;", "{} +", "{} +", "a{} +", "{}", "+"]).to_owned());
            }
        }
    }
}

#[test]
fn what_calls_run_is_listed() {
    let real: Vec<_> = REAL.into_iter().filter_map(found).collect();
    let mut machine = Machine::new(MARKS, &real);
    let in_shells = ["command", "exec", "builtin"].into_iter().chain(SETTERS.iter().map(|setter| setter.name));
    let there = real.iter().filter_map(|path| path.file_name()?.to_str());
    // of the former there is more to get wrong
    let names: Vec<&str> = ["find", "find", "xargs"].into_iter().chain(there).chain(in_shells).collect();
    let (mut counts, rounds, shells) = (Counts::default(), rounds(ROUNDS), shells());
    assert!(!shells.is_empty() && real.len() > 6, "there is too little to compare with: {real:?}");
    let mut random = Random::new();
    for _ in 0..rounds {
        for shell in &shells {
            let mut words = Vec::new();
            call(&mut random, &names, 0, &mut words);
            let text = format!("{START}{} <<E\n$D\n1 zs\ny\nE\n{LAST}", words.join(" "));
            counts.add(machine.check(shell, &text));
        }
    }
    println!("{counts:?} of {rounds} for each of {shells:?}");
    let least = rounds * shells.len() as u64 / 8;
    assert!(counts.understood >= least && counts.ran >= least, "{counts:?}");
}
