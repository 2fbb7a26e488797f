//! The words of a definition: `web-{1..9}` is a parameter, whose argument is one of `web-1` to `web-9`.

use std::collections::BTreeMap;

use regex::bytes::{Regex, RegexBuilder};

use super::range::Range;

/// With more values they are not listed one by one.
const MAX_VALUES: usize = 64;
/// Of a compiled regular expression.
const MAX_REGEX_BYTES: usize = 128 * 1024;
/// Of one argument: it is matched before the policy is asked.
const MAX_ARGUMENT_BYTES: usize = 1024;

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
    /// Matches the whole argument.
    regex: Regex,
    /// Its first piece is a pattern of the configuration.
    begins_with_pattern: bool,
    /// The patterns in it, by their names.
    pub(super) patterns: Vec<(String, String)>,
    /// All arguments that it accepts; empty: there are more than a few, or they are not known.
    pub(super) values: Vec<String>,
}

/// A part of a word.
#[derive(Debug)]
enum Piece<'a> {
    Text(&'a str),
    Choice(Vec<&'a str>),
    Range(Range),
    /// A pattern, by its name.
    Pattern(&'a str),
}

impl Word {
    /// Reads a word; `patterns` are regular expressions by the names that `{NAME}` has for them.
    ///
    /// # Errors
    /// A range is empty, or what is between braces is nothing that may be there.
    pub(super) fn parse(text: &str, patterns: &BTreeMap<String, String>) -> Result<Self, String> {
        let pieces = pieces(text, patterns)?;
        let texts: Option<String> = pieces.iter().map(|piece| piece.text()).collect();
        match texts {
            Some(text) => Ok(Self::Fixed(text)),
            None => Parameter::new(text, &pieces, patterns).map(Self::Parameter),
        }
    }
}

impl Parameter {
    fn new(text: &str, pieces: &[Piece<'_>], patterns: &BTreeMap<String, String>) -> Result<Self, String> {
        let expression = pieces.iter().map(|piece| piece.expression(patterns)).collect::<String>();
        let regex = compile(&format!("^(?:{expression})$"))?;
        let pattern = |piece: &Piece<'_>| match piece {
            Piece::Pattern(name) => patterns.get_key_value(*name).map(|(name, text)| (name.clone(), text.clone())),
            _ => None,
        };
        Ok(Self {
            text: text.to_owned(),
            regex,
            begins_with_pattern: matches!(pieces.first(), Some(Piece::Pattern(_))),
            patterns: pieces.iter().filter_map(pattern).collect(),
            values: values(pieces).unwrap_or_default(),
        })
    }

    /// Whether an argument may stand in its place. One that begins with a pattern of the configuration is no option: `-` is only
    /// where the configuration has it.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self, argument: &str) -> Result<(), String> {
        if argument.len() > MAX_ARGUMENT_BYTES {
            return Err(format!("is longer than {MAX_ARGUMENT_BYTES} bytes"));
        }
        if self.begins_with_pattern && argument.starts_with('-') {
            return Err(format!("begins with \"-\", which {} does not accept", self.text));
        }
        if self.regex.is_match(argument.as_bytes()) {
            return Ok(());
        }
        let patterns = self.patterns.iter().map(|(name, text)| format!("{{{name}}} is {text}")).collect::<Vec<_>>();
        let explained = if patterns.is_empty() { String::new() } else { format!(", where {}", patterns.join(" and ")) };
        Err(format!("does not match {}{explained}", self.text))
    }

    /// A regular expression for what it accepts.
    pub(super) fn pattern(&self) -> &str {
        self.regex.as_str()
    }
}

impl Piece<'_> {
    /// What is literal.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Choice(_) | Self::Range(_) | Self::Pattern(_) => None,
        }
    }

    /// The regular expression for it.
    fn expression(&self, patterns: &BTreeMap<String, String>) -> String {
        match self {
            Self::Text(text) => escape(text),
            Self::Choice(all) => format!("(?:{})", all.iter().map(|one| escape(one)).collect::<Vec<_>>().join("|")),
            Self::Range(range) => range.expression(),
            // a regular expression by itself, so that nothing of it reaches out of the group
            Self::Pattern(name) => format!("(?:{})", patterns.get(*name).map_or("", String::as_str)),
        }
    }
}

/// Compiles a regular expression. Its classes are those of ASCII, as whoever writes `\d` expects of an argument.
///
/// # Errors
/// It is malformed, or so large that matching would take long.
pub(super) fn compile(expression: &str) -> Result<Regex, String> {
    let builder = &mut RegexBuilder::new(expression);
    builder.unicode(false).size_limit(MAX_REGEX_BYTES).build().map_err(|error| error.to_string())
}

/// The regular expression for a text. That of the crate escapes more than JavaScript accepts.
fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |escaped, c| match c {
        '\\' | '^' | '$' | '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '/' => {
            escaped + "\\" + &c.to_string()
        }
        _ => escaped + &c.to_string(),
    })
}

/// What a word consists of.
fn pieces<'a>(text: &'a str, patterns: &BTreeMap<String, String>) -> Result<Vec<Piece<'a>>, String> {
    let mut pieces = Vec::new();
    let (mut rest, mut scanned) = (text, 0);
    while let Some(open) = rest.get(scanned..).and_then(|after| after.find('{')).map(|at| at + scanned) {
        let before = rest.get(..open).unwrap_or_default();
        let within = rest.get(open + 1..).and_then(|after| after.split_once('}')).map(|(within, _)| within);
        // ${HOME} and {{.Names}} are for others
        let is_ours = |within: &&str| !before.ends_with(['$', '{']) && !within.starts_with('{');
        let group = within.filter(is_ours).and_then(|within| Some((within, group(within, patterns).transpose()?)));
        let Some((within, group)) = group else {
            scanned = open + 1;
            continue;
        };
        let length = within.len() + 2;
        if let Some(before) = before.strip_suffix('\\') {
            pieces.push(Piece::Text(before));
            rest = rest.get(open..).unwrap_or_default();
            scanned = length;
            continue;
        }
        pieces.extend([Piece::Text(before), group?]);
        rest = rest.get(open + length..).unwrap_or_default();
        scanned = 0;
    }
    pieces.push(Piece::Text(rest));
    pieces.retain(|piece| piece.text() != Some(""));
    Ok(pieces)
}

/// What is between braces; `None`: they are text.
fn group<'a>(within: &'a str, patterns: &BTreeMap<String, String>) -> Result<Option<Piece<'a>>, String> {
    if patterns.contains_key(within) {
        return Ok(Some(Piece::Pattern(within)));
    }
    if let Some(range) = Range::parse(within)? {
        return Ok(Some(Piece::Range(range)));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:/@%+=-".contains(c);
    let all: Vec<_> = within.split(',').collect();
    if all.len() > 1 && all.iter().all(|one| !one.is_empty() && one.chars().all(is_plain) && !one.contains("..")) {
        return Ok(Some(Piece::Choice(all)));
    }
    // what looks like one of these is a mistake, rather than text of a shell or of awk
    let is_meant = |c: char| is_plain(c) || matches!(c, ',' | '{') || (c == ' ' && all.len() > 1);
    match !within.is_empty() && within.chars().all(is_meant) {
        true => Err(format!(
            "{{{within}}} is no range, no choice and not in parameters; literal text is written \\{{{within}}}"
        )),
        false => Ok(None),
    }
}

/// All that the pieces may be; `None`: more than a few, or not known.
fn values(pieces: &[Piece<'_>]) -> Option<Vec<String>> {
    pieces.iter().try_fold(vec![String::new()], |all, piece| {
        let ends: Vec<String> = match piece {
            Piece::Text(text) => vec![(*text).to_owned()],
            Piece::Choice(some) => some.iter().map(|one| (*one).to_owned()).collect(),
            Piece::Range(range) => range.texts().take(MAX_VALUES + 1).collect(),
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
                assert_eq!(parameter.check(argument), Ok(()), "{word} {argument:?}");
            }
            for argument in refused {
                assert!(parameter.check(argument).is_err(), "{word} {argument:?}");
            }
        }
    }

    #[test]
    fn other_braces_are_text() {
        for (word, text) in [
            ("", ""),
            ("{}", "{}"),
            ("${HOME}", "${HOME}"),
            ("${version}", "${version}"),
            ("{print $1, $2}", "{print $1, $2}"),
            (r#"{"a":1,"b":2}"#, r#"{"a":1,"b":2}"#),
            ("{{.Names}}", "{{.Names}}"),
            ("{1..", "{1.."),
            (r"\{a,b}", "{a,b}"),
            (r"\{a}", "{a}"),
            (r"x\{a,b}y\{1..2}", "x{a,b}y{1..2}"),
            (r"\{2,3\}", r"\{2,3\}"),
            (r"\{version}", "{version}"),
        ] {
            assert!(matches!(Word::parse(word, &patterns()), Ok(Word::Fixed(fixed)) if fixed == text), "{word}");
        }
        assert_eq!(parameter(r"\{a,b}{c,d}").values, ["{a,b}c", "{a,b}d"]);
    }

    #[test]
    fn what_is_likely_a_mistake_is_refused() {
        for word in [
            "{a}",
            "{missing}",
            "{a,}",
            "{,a}",
            "{a, b}",
            "{1..x}",
            "{..}",
            "{1-9}",
            "{1...9}",
            "{a..z}",
            "{1..9..2}",
            "{-1..3}",
            "{1..3,5}",
            "{1..99999999999999999999}",
            "{app,web-{1..3}}",
            "x{version }{a}",
        ] {
            let fault = Word::parse(word, &patterns()).unwrap_err();
            assert!(fault.contains("literal text is written"), "{word}: {fault}");
        }
        assert!(Word::parse("{9..1}", &patterns()).unwrap_err().contains("{9..1}: the range is empty"));
    }

    #[test]
    fn what_is_refused_says_why() {
        let why = |word: &str, argument: &str| parameter(word).check(argument).unwrap_err();
        assert_eq!(why("web-{1..9}", "x"), "does not match web-{1..9}");
        assert_eq!(why("{version}", "x"), "does not match {version}, where {version} is v[0-9.]+|latest");
        assert_eq!(why("{any}", "-x"), "begins with \"-\", which {any} does not accept");
        assert_eq!(why("{any}", &"x".repeat(MAX_ARGUMENT_BYTES + 1)), "is longer than 1024 bytes");
    }

    #[test]
    fn few_values_are_listed() {
        assert_eq!(parameter("{a,b}-{1..2}").values, ["a-1", "a-2", "b-1", "b-2"]);
        assert_eq!(parameter("{1..64}").values.len(), 64);
        assert!(parameter("{1..65}").values.is_empty());
        assert!(parameter("{version}").values.is_empty());
        assert_eq!(parameter("web-{1..10}").pattern(), "^(?:web-(?:[1-9]|10))$");
        // those are all that it accepts
        for word in ["{a,b}-{1..2}", "{9..12}{1..5}", "{01..12}", "{98..103}"] {
            let parameter = parameter(word);
            assert!(parameter.values.iter().all(|value| parameter.check(value).is_ok()), "{word}");
        }
    }
}
