//! How much of a collection of shell texts is understood: `coverage [--posix] [--lines] FILE...`. Each file is a text, or with
//! `--lines` each of its lines. It prints counts and why the others are not understood, with an example of each reason.

use std::collections::BTreeMap;
use std::process::ExitCode;

use telexec_shell::{Analysis, analyze, analyze_posix};

/// Reasons that are in what a text does: it does not say itself what it runs.
const OPAQUE: [&str; 8] = [
    "a program's name is not known",
    "eval makes a text of its arguments",
    "a script is read into the shell",
    "a shell runs a script or its input",
    "an alias is made",
    "a function hides a program",
    "the text of a trap is not known",
    "a function's name is not known",
];

fn main() -> ExitCode {
    let (mut is_posix, mut by_line, mut files) = (false, false, Vec::new());
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--posix" => is_posix = true,
            "--lines" => by_line = true,
            _ => files.push(argument),
        }
    }
    let mut analyses = Vec::<(String, Analysis)>::new();
    for file in files {
        let text = match std::fs::read(&file) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                eprintln!("{file}: {error}");
                return ExitCode::FAILURE;
            }
        };
        let read = if is_posix { analyze_posix } else { analyze };
        match by_line {
            true => analyses.extend(text.lines().map(|line| (line.to_owned(), read(line)))),
            false => analyses.push((file, read(&text))),
        }
    }
    print(&analyses);
    ExitCode::SUCCESS
}

fn print(analyses: &[(String, Analysis)]) {
    let mut reasons = BTreeMap::<&str, Vec<&str>>::new();
    for (text, analysis) in analyses {
        if let Some(reason) = analysis.reason {
            reasons.entry(reason).or_default().push(text);
        }
    }
    let opaque: usize = OPAQUE.iter().filter_map(|reason| reasons.get(reason)).map(Vec::len).sum();
    let understood = analyses.iter().filter(|(_, analysis)| analysis.understood).count();
    let others = analyses.len() - opaque;
    let share = understood as f64 * 100.0 / others.max(1) as f64;
    println!("{understood} of {} understood; without {opaque} that are opaque by nature: {share:.1} %", analyses.len());
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, texts)| std::cmp::Reverse(texts.len()));
    for (reason, texts) in reasons {
        let mark = if OPAQUE.contains(&reason) { "opaque" } else { "" };
        println!("{:6} {mark:6} {reason}", texts.len());
        if std::env::var_os("COVERAGE_TEXTS").is_some() && mark.is_empty() {
            texts.iter().for_each(|text| println!("                {text}"));
        }
    }
}
