//! The words of a definition: `web-{1..9}` is a parameter, whose argument is one of `web-1` to `web-9`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use regex::Regex;

/// As many values as are listed one by one.
const MAX_VALUES: usize = 64;

/// A word of a named command.
#[derive(Clone, Debug)]
pub(super) enum Word {
    /// As it is.
    Fixed(String),
    /// In its place comes an argument of the caller's.
    Parameter(Parameter),
}

/// What an argument may be.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    /// As configured.
    pub(super) text: String,
    /// Matches the whole argument; a group for each range.
    regex: Regex,
    ranges: Vec<Range>,
    /// Its first piece is a pattern of the configuration.
    begins_with_pattern: bool,
    /// The names of the patterns in it.
    pub(super) names: Vec<String>,
    /// All that it may be, if these are few and known.
    pub(super) values: Vec<String>,
}

/// Numbers, all with this many digits at least.
#[derive(Clone, Debug)]
struct Range {
    numbers: RangeInclusive<u64>,
    digits: usize,
}

/// A part of a word.
#[derive(Debug)]
enum Piece<'a> {
    Text(&'a str),
    Choice(Vec<&'a str>),
    Range(Range),
    /// A pattern by its name.
    Pattern(&'a str),
}

impl Word {
    /// Reads a word; `patterns` are regular expressions by the names that `{NAME}` has for them.
    ///
    /// # Errors
    /// A range is empty, or a pattern is malformed.
    pub(super) fn parse(text: &str, patterns: &BTreeMap<String, String>) -> Result<Self, String> {
        let pieces = pieces(text, patterns)?;
        let is_text = |piece: &Piece<'_>| matches!(piece, Piece::Text(_));
        if pieces.iter().all(is_text) {
            let text = pieces.iter().map(|piece| if let Piece::Text(text) = piece { *text } else { "" }).collect();
            return Ok(Self::Fixed(text));
        }
        Parameter::new(text, &pieces, patterns).map(Self::Parameter)
    }
}

impl Parameter {
    fn new(text: &str, pieces: &[Piece<'_>], patterns: &BTreeMap<String, String>) -> Result<Self, String> {
        let expression = pieces.iter().map(|piece| piece.expression(patterns)).collect::<String>();
        let regex = Regex::new(&format!(r"\A(?:{expression})\z")).map_err(|error| error.to_string())?;
        let ranges =
            pieces.iter().filter_map(|piece| if let Piece::Range(range) = piece { Some(range.clone()) } else { None });
        let names = pieces
            .iter()
            .filter_map(|piece| if let Piece::Pattern(name) = piece { Some((*name).to_owned()) } else { None });
        Ok(Self {
            text: text.to_owned(),
            regex,
            ranges: ranges.collect(),
            begins_with_pattern: matches!(pieces.first(), Some(Piece::Pattern(_))),
            names: names.collect(),
            values: values(pieces).unwrap_or_default(),
        })
    }

    /// Whether an argument may stand in its place. One that a pattern begins is no option: `-` is only where the
    /// configuration has it.
    pub(super) fn accepts(&self, argument: &str) -> bool {
        let Some(found) = self.regex.captures(argument) else { return false };
        let numbers = found.iter().skip(1).flatten().map(|number| number.as_str());
        let are_in_range = self.ranges.iter().zip(numbers).all(|(range, number)| range.contains(number));
        are_in_range && !(self.begins_with_pattern && argument.starts_with('-'))
    }

    /// A regular expression for what it accepts, for callers; of a range it has the digits alone.
    pub(super) fn pattern(&self) -> String {
        self.regex
            .as_str()
            .replacen(r"\A", "^", 1)
            .strip_suffix(r"\z")
            .map(|start| format!("{start}$"))
            .unwrap_or_default()
    }
}

impl Range {
    fn contains(&self, text: &str) -> bool {
        let number = text.parse::<u64>().ok().filter(|number| self.numbers.contains(number));
        number.is_some_and(|number| self.print(number) == text)
    }

    fn print(&self, number: u64) -> String {
        format!("{number:0digits$}", digits = self.digits)
    }
}

impl Piece<'_> {
    /// The regular expression for it.
    fn expression(&self, patterns: &BTreeMap<String, String>) -> String {
        match self {
            Self::Text(text) => regex::escape(text),
            Self::Choice(all) => {
                format!("(?:{})", all.iter().map(|one| regex::escape(one)).collect::<Vec<_>>().join("|"))
            }
            Self::Range(range) => {
                let [least, most] =
                    [range.numbers.start(), range.numbers.end()].map(|number| range.print(*number).len());
                format!("([0-9]{{{least},{most}}})")
            }
            // checked by itself: no group of it is open, and none counts
            Self::Pattern(name) => format!("(?:{})", patterns.get(*name).map_or("", String::as_str)),
        }
    }
}

/// What a word consists of.
fn pieces<'a>(text: &'a str, patterns: &BTreeMap<String, String>) -> Result<Vec<Piece<'a>>, String> {
    let mut pieces = Vec::new();
    let (mut rest, mut scanned) = (text, 0);
    while let Some(open) = rest.get(scanned..).and_then(|after| after.find('{')).map(|at| at + scanned) {
        let within = rest.get(open + 1..).and_then(|after| after.find('}').and_then(|end| after.get(..end)));
        let group = within.map(|within| group(within, patterns)).transpose()?.flatten();
        let (Some(within), Some(group)) = (within, group) else {
            scanned = open + 1;
            continue;
        };
        let before = rest.get(..open).unwrap_or_default();
        // \{a,b} is the text {a,b}
        if let Some(before) = before.strip_suffix('\\') {
            pieces.push(Piece::Text(before));
            rest = rest.get(open..).unwrap_or_default();
            scanned = within.len() + 2;
            continue;
        }
        pieces.extend([Piece::Text(before), group]);
        rest = rest.get(open + within.len() + 2..).unwrap_or_default();
        scanned = 0;
    }
    pieces.push(Piece::Text(rest));
    pieces.retain(|piece| !matches!(piece, Piece::Text("")));
    Ok(pieces)
}

/// What is between braces; `None`: they are text.
fn group<'a>(within: &'a str, patterns: &BTreeMap<String, String>) -> Result<Option<Piece<'a>>, String> {
    if patterns.contains_key(within) {
        return Ok(Some(Piece::Pattern(within)));
    }
    if let Some((from, to)) = within.split_once("..")
        && let (Some(first), Some(last)) = (number(from), number(to))
    {
        if first > last {
            return Err(format!("{{{within}}}: the range is empty"));
        }
        let is_padded = |text: &str| text.len() > 1 && text.starts_with('0');
        let digits = if is_padded(from) || is_padded(to) { from.len().max(to.len()) } else { 1 };
        return Ok(Some(Piece::Range(Range { numbers: first..=last, digits })));
    }
    let is_plain =
        |one: &str| !one.is_empty() && one.chars().all(|c| c.is_ascii_alphanumeric() || "._:/@%+=-".contains(c));
    let all: Vec<_> = within.split(',').collect();
    Ok((all.len() > 1 && all.iter().all(|one| is_plain(one))).then_some(Piece::Choice(all)))
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// All that the pieces may be; `None`: too many, or not known.
fn values(pieces: &[Piece<'_>]) -> Option<Vec<String>> {
    pieces.iter().try_fold(vec![String::new()], |all, piece| {
        let ends: Vec<String> = match piece {
            Piece::Text(text) => vec![(*text).to_owned()],
            Piece::Choice(some) => some.iter().map(|one| (*one).to_owned()).collect(),
            Piece::Range(range) => {
                range.numbers.clone().take(MAX_VALUES + 1).map(|number| range.print(number)).collect()
            }
            Piece::Pattern(_) => return None,
        };
        let together = all.len() * ends.len() <= MAX_VALUES;
        together.then(|| all.iter().flat_map(|start| ends.iter().map(move |end| format!("{start}{end}"))).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns() -> BTreeMap<String, String> {
        [("version", r"v[0-9.]+|latest"), ("any", ".*")].map(|(name, text)| (name.to_owned(), text.to_owned())).into()
    }

    fn parameter(text: &str) -> Parameter {
        match Word::parse(text, &patterns()).unwrap() {
            Word::Parameter(parameter) => parameter,
            Word::Fixed(text) => panic!("{text} is fixed"),
        }
    }

    #[test]
    fn an_argument_has_to_match_the_whole_word() {
        for (word, accepted, refused) in [
            (
                "web-{1..9}",
                &["web-1", "web-9"][..],
                &["web-0", "web-10", "web-01", "web-", "web-1\n", "xweb-1", "web-1x"][..],
            ),
            ("{01..12}", &["01", "12"], &["1", "012", "13", "00", "-1", "+1"]),
            ("{8..11}", &["8", "11"], &["08", "7", "12"]),
            ("{start,stop}", &["start", "stop"], &["startstop", "restart", "", "Start"]),
            ("--color={a.b,c}", &["--color=a.b", "--color=c"], &["--color=axb", "--color="]),
            ("{version}", &["v1.2", "latest"], &["latest1", "v1.2 x", "xlatest", ""]),
            ("--to={version}:{1..3}", &["--to=v1:3", "--to=latest:1"], &["--to=v1:4", "--to=v1"]),
            ("{any}", &["", "a b", "a-b"], &["-x", "--", "a\nb"]),
            ("x{any}", &["x", "x-"], &["-x"]),
            ("{-v,-q}", &["-v"], &["-x"]),
            ("{0..18446744073709551615}", &["0", "18446744073709551615"], &["18446744073709551616"]),
        ] {
            let parameter = parameter(word);
            for argument in accepted {
                assert!(parameter.accepts(argument), "{word} {argument:?}");
            }
            for argument in refused {
                assert!(!parameter.accepts(argument), "{word} {argument:?}");
            }
        }
    }

    #[test]
    fn other_braces_are_text() {
        for (word, text) in [
            ("", ""),
            ("{}", "{}"),
            ("{a}", "{a}"),
            ("${HOME}", "${HOME}"),
            ("{print $1, $2}", "{print $1, $2}"),
            (r#"{"a":1,"b":2}"#, r#"{"a":1,"b":2}"#),
            ("{{.Names}}", "{{.Names}}"),
            ("{a,}", "{a,}"),
            ("{1..x}", "{1..x}"),
            ("{..}", "{..}"),
            ("{1..", "{1.."),
            (r"\{a,b}", "{a,b}"),
            (r"x\{a,b}y\{1..2}", "x{a,b}y{1..2}"),
            (r"\{2,3\}", r"\{2,3\}"),
            (r"\{version}", "{version}"),
        ] {
            assert!(matches!(Word::parse(word, &patterns()), Ok(Word::Fixed(fixed)) if fixed == text), "{word}");
        }
        assert_eq!(parameter(r"\{a,b}{c,d}").values, ["{a,b}c", "{a,b}d"]);
        assert_eq!(parameter("{{c,d}").values, ["{c", "{d"]);
    }

    #[test]
    fn few_values_are_listed() {
        assert_eq!(parameter("{a,b}-{1..2}").values, ["a-1", "a-2", "b-1", "b-2"]);
        assert_eq!(parameter("{1..64}").values.len(), 64);
        assert!(parameter("{1..65}").values.is_empty());
        assert!(parameter("{version}").values.is_empty());
        assert_eq!(parameter("web-{1..10}").pattern(), r"^(?:web\-([0-9]{1,2}))$");
    }

    #[test]
    fn empty_ranges_are_refused() {
        assert!(Word::parse("{9..1}", &patterns()).unwrap_err().contains("{9..1}"));
    }
}
