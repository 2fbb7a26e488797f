//! How much of a collection of shell texts is understood: `coverage [--posix] [--lines] [--texts] FILE...`. Each file is a text, or
//! with `--lines` each of its lines. It prints why the others are not understood, and how often; with `--texts` which they are.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use telexec_shell::{Analysis, analyze, analyze_posix};

/// Reasons for which no text says what it runs.
const OPAQUE: [&str; 8] = [
    "a program's name is not known",
    "eval runs its arguments as shell text",
    "a script is read into the shell",
    "a shell runs a script, its input or a text that is not known",
    "an alias is made",
    "a function hides a program",
    "the text of a trap is not known",
    "a function's name is not known",
];
/// Reasons for which values decide that only programs, files and callers give.
const BY_VALUE: [&str; 4] = [
    "an expansion without quotes may come to options: quote it, as in \"$x\"",
    "bash evaluates an argument",
    "bash would evaluate a value that is known only when it runs; [ \"$n\" -gt 5 ] compares without that",
    "a variable that decides what runs, such as PATH, is set or unset",
];

fn main() -> ExitCode {
    let (mut is_posix, mut by_line, mut prints_texts, mut files) = (false, false, false, Vec::new());
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--posix" => is_posix = true,
            "--lines" => by_line = true,
            "--texts" => prints_texts = true,
            _ => files.push(argument),
        }
    }
    let read = if is_posix { analyze_posix } else { analyze };
    let mut analyses = Vec::<(String, Analysis)>::new();
    for file in files {
        let text = match std::fs::read(&file) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                eprintln!("{file}: {error}");
                return ExitCode::FAILURE;
            }
        };
        match by_line {
            true => analyses.extend(text.lines().map(|line| (line.to_owned(), read(line)))),
            false => analyses.push((file, read(&text))),
        }
    }
    match print(&analyses, prints_texts) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

fn print(analyses: &[(String, Analysis)], prints_texts: bool) -> io::Result<()> {
    let mut reasons = BTreeMap::<&str, Vec<&str>>::new();
    for (text, analysis) in analyses {
        if let Some(reason) = analysis.reason {
            reasons.entry(reason).or_default().push(text);
        }
    }
    let count = |of: &[&str]| of.iter().filter_map(|reason| reasons.get(reason)).map(Vec::len).sum::<usize>();
    let understood = analyses.iter().filter(|(_, analysis)| analysis.understood).count();
    let (opaque, by_value) = (count(&OPAQUE), count(&BY_VALUE));
    let share = |of: usize| 100.0 * understood as f64 / of.max(1) as f64;
    let others = analyses.len() - opaque;
    let mut out = io::stdout().lock();
    writeln!(out, "{understood} of {} understood", analyses.len())?;
    writeln!(out, "{:.1} % without {opaque} opaque by nature", share(others))?;
    writeln!(out, "{:.1} % without {by_value} in which a value decides, too", share(others - by_value))?;
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, texts)| std::cmp::Reverse(texts.len()));
    for (reason, texts) in reasons {
        writeln!(out, "{:6} {reason}", texts.len())?;
        for text in texts.iter().filter(|_| prints_texts) {
            writeln!(out, "       {text}")?;
        }
    }
    Ok(())
}
