//! Redacts secrets in records.

use std::ops::Range;

use regex::Regex;

/// Replaces redacted text.
const HIDDEN: &str = "[redacted]";

/// Redacts all matches of its patterns.
#[derive(Debug, Default)]
pub(super) struct Redact(Vec<Regex>);

impl Redact {
    pub(super) fn new(patterns: Vec<Regex>) -> Self {
        Self(patterns)
    }

    pub(super) fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// The text, with matches redacted.
    pub(super) fn text(&self, text: &str) -> String {
        let mut matches = Vec::new();
        self.find(text, 0, &mut matches);
        replace(text, 0, &merged(matches))
    }

    /// The arguments, with matches redacted. A match may span several, as if joined by spaces: a flag and its value are two
    /// arguments.
    pub(super) fn argv(&self, argv: &[String]) -> Vec<String> {
        if self.is_none() {
            return argv.to_vec();
        }
        let starts = argv.iter().scan(0, |end, argument| {
            let start = *end;
            *end += argument.len() + 1;
            Some(start)
        });
        let placed: Vec<_> = starts.zip(argv).collect();
        let mut matches = Vec::new();
        self.find(&argv.join(" "), 0, &mut matches);
        for (start, argument) in &placed {
            self.find(argument, *start, &mut matches);
        }
        let matches = merged(matches);
        placed.into_iter().map(|(start, argument)| replace(argument, start, &matches)).collect()
    }

    fn find(&self, text: &str, start: usize, matches: &mut Vec<Range<usize>>) {
        let found = self.0.iter().flat_map(|pattern| pattern.find_iter(text).map(|found| found.range()));
        matches.extend(found.filter(|range| !range.is_empty()).map(|range| start + range.start..start + range.end));
    }
}

/// Sorted and merged, so that no two overlap or touch.
fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// The text, which begins at offset `start`, with the ranges replaced.
fn replace(text: &str, start: usize, ranges: &[Range<usize>]) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut done = 0;
    let from = ranges.partition_point(|range| range.end <= start);
    for range in ranges.iter().skip(from).take_while(|range| range.start < start + text.len()) {
        // clipped to this text: the range may extend into others
        let (from, to) = (range.start.saturating_sub(start), (range.end - start).min(text.len()));
        shown += text.get(done..from).unwrap_or_default();
        shown += HIDDEN;
        done = to;
    }
    shown + text.get(done..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redact(patterns: &[&str]) -> Redact {
        Redact::new(patterns.iter().map(|pattern| Regex::new(pattern).unwrap()).collect())
    }

    #[test]
    fn each_match_is_hidden_in_a_text() {
        let secrets = redact(&["s3cret", "(?i)token=[^ ]*", "ret-", "x*"]);
        assert_eq!(secrets.text("a s3cret-é TOKEN=1 xx b"), "a [redacted]é [redacted] [redacted] b");
        assert_eq!(secrets.text("xx"), "[redacted]");
        assert_eq!(redact(&[]).text("as it is"), "as it is");
        assert_eq!(redact(&["^"]).text("as it is"), "as it is");
    }

    #[test]
    fn a_match_may_reach_over_arguments() {
        let argv = |argv: &[&str]| argv.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let secrets = redact(&[r"--password[ =]\S+", "^exact$"]);
        assert_eq!(
            secrets.argv(&argv(&["mysql", "--password", "pä ss", "x", "exact", "", "--password=1", "--password"])),
            ["mysql", "[redacted]", "[redacted] ss", "x", "[redacted]", "", "[redacted]", "--password"]
        );
        assert_eq!(secrets.argv(&argv(&["--password"])), ["--password"]);
    }
}
