//! Finds quotes, substitutions and comments in a text without the parser: how deep they stand in each other, and lines that a
//! backslash continues. Shells take both characters out before they read words; the parser does so in some places only. Where
//! the words are the same with blanks there, it gets blanks.

/// More is not looked through.
const MAX_DEPTH: usize = 32;

/// What a character stands in.
struct Context {
    kind: Kind,
    begin: usize,
    parentheses: Vec<Parenthesis>,
}

/// An open one.
struct Parenthesis {
    /// It is that of a pattern group, such as `@(a|b)`.
    is_group: bool,
    /// It stands in a word, as that of an array does, too.
    in_word: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Commands; in a substitution that begins here, or in none.
    Commands(Option<usize>),
    /// Double quotes.
    Quotes,
    /// `${…}`
    Expansion,
}

/// How deep constructs of a text stand in others of their kind.
#[derive(Clone, Copy, Default)]
pub(super) struct Depths {
    pub(super) substitutions: usize,
    /// `${…}`
    pub(super) expansions: usize,
    pub(super) groups: usize,
}

/// What a scan finds.
pub(super) struct Scanned {
    /// The text with blanks where a line is continued between words, or a comment seems to be; `None`: it is continued somewhere
    /// else.
    pub(super) joined: Option<String>,
    pub(super) deepest: Depths,
    /// Braces in quotes and backticks, but those of `${…}`.
    pub(super) quoted_braces: usize,
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    joined: Vec<u8>,
    is_joined: bool,
    contexts: Vec<Context>,
    /// A word may go on.
    in_word: bool,
    /// One begins in the next line.
    heredoc: Option<Heredoc>,
    deepest: Depths,
    quoted_braces: usize,
}

struct Heredoc {
    end: String,
    is_quoted: bool,
    /// `<<-`
    strips_tabs: bool,
}

/// Goes through a text once; `None`: it could not be told what stands in what.
pub(super) fn scan(text: &str) -> Option<Scanned> {
    let mut scanner = Scanner {
        text,
        at: 0,
        joined: text.as_bytes().to_vec(),
        is_joined: true,
        contexts: vec![Context::new(Kind::Commands(None), 0)],
        in_word: false,
        heredoc: None,
        deepest: Depths::default(),
        quoted_braces: 0,
    };
    while scanner.at < text.len() {
        scanner.step()?;
        let open = scanner.contexts.last().map_or(0, |context| context.parentheses.len());
        if scanner.contexts.len() > MAX_DEPTH || open > MAX_DEPTH {
            return None;
        }
    }
    let is_whole = matches!(scanner.contexts.as_slice(), [outer] if outer.parentheses.is_empty());
    let joined = scanner.is_joined.then_some(scanner.joined).and_then(|joined| String::from_utf8(joined).ok());
    (is_whole && scanner.heredoc.is_none()).then_some(Scanned {
        joined,
        deepest: scanner.deepest,
        quoted_braces: scanner.quoted_braces,
    })
}

impl Context {
    fn new(kind: Kind, begin: usize) -> Self {
        Self { kind, begin, parentheses: Vec::new() }
    }
}

impl Scanner<'_> {
    fn rest(&self) -> &[u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn step(&mut self) -> Option<()> {
        match self.contexts.last()?.kind {
            Kind::Quotes => self.quoted(),
            Kind::Commands(_) => self.command(),
            Kind::Expansion => self.expansion(),
        }
    }

    fn enter(&mut self, kind: Kind, bytes: usize) {
        self.contexts.push(Context::new(kind, self.at));
        self.at += bytes;
        self.note_depths(Depths::default());
    }

    /// What is open, and so many of each kind in it.
    fn note_depths(&mut self, inside: Depths) {
        let kinds = || self.contexts.iter().map(|context| context.kind);
        let groups = self.contexts.iter().flat_map(|context| &context.parentheses).filter(|open| open.is_group);
        let Depths { substitutions, expansions, groups: most } = self.deepest;
        self.deepest = Depths {
            substitutions: substitutions
                .max(kinds().filter(|kind| matches!(kind, Kind::Commands(Some(_)))).count() + inside.substitutions),
            expansions: expansions.max(kinds().filter(|kind| *kind == Kind::Expansion).count() + inside.expansions),
            groups: most.max(groups.count() + inside.groups),
        };
    }

    /// Of text that is not gone through: as deep as if each stood in the one before.
    fn note_inside(&mut self, text: &str) {
        let count = |openings: &[&str]| openings.iter().map(|opening| text.matches(opening).count()).sum();
        self.note_depths(Depths {
            substitutions: count(&["$(", "<(", ">("]),
            expansions: count(&["${"]),
            groups: count(&["?(", "*(", "+(", "@(", "!("]),
        });
    }

    fn leave(&mut self) {
        let begin = self.contexts.pop().map_or(self.at, |context| context.begin);
        self.at += 1;
        self.note_braces(begin);
    }

    /// Of the quotes or expansion that began there.
    fn note_braces(&mut self, begin: usize) {
        let quoted = self.text.get(begin..self.at).unwrap_or_default();
        self.quoted_braces += quoted.matches('{').count() - quoted.matches("${").count();
    }

    /// Goes behind a text in single quotes, whose end is so far away.
    fn single_quoted(&mut self, length: usize) {
        let begin = self.at;
        self.at += 2 + length;
        self.note_braces(begin);
    }

    fn quoted(&mut self) -> Option<()> {
        match self.rest() {
            [b'\\', next, ..] => {
                self.is_joined &= *next != b'\n' || !self.is_in_name();
                self.at += 2;
            }
            [b'"', ..] => self.leave(),
            [b'$', b'(', ..] => self.substitution(),
            [b'$', b'{', ..] => self.enter(Kind::Expansion, 2),
            [b'`', ..] => self.backticks()?,
            _ => self.at += 1,
        }
        Some(())
    }

    /// Whether the name of a variable, or an expansion, may go on here.
    fn is_in_name(&self) -> bool {
        let before = self.text.as_bytes().get(..self.at).unwrap_or_default();
        let name = before.iter().rev().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
        before.get(..before.len() - name).is_none_or(|before| before.ends_with(b"$"))
    }

    /// Between `${` and `}`.
    fn expansion(&mut self) -> Option<()> {
        let is_quoted = self.contexts.iter().any(|context| context.kind == Kind::Quotes);
        match self.rest() {
            [b'\\', b'\n', ..] | [b'{', ..] => return None,
            [b'\\', _, ..] => self.at += 2,
            // a character like any other, or a quote
            [b'\'', ..] if is_quoted => return None,
            [b'\'', rest @ ..] => {
                let length = rest.iter().position(|byte| *byte == b'\'')?;
                self.single_quoted(length);
            }
            [b'"', ..] => self.enter(Kind::Quotes, 1),
            [b'$', b'(', ..] => self.substitution(),
            [b'$', b'{', ..] => self.enter(Kind::Expansion, 2),
            [b'`', ..] => self.backticks()?,
            [b'(', ..] => self.open(true)?,
            [b')', ..] => self.close()?,
            [b'}', ..] => self.leave(),
            _ => self.at += 1,
        }
        Some(())
    }

    /// Shells look for the next backtick without a backslash, also behind quotes.
    fn backticks(&mut self) -> Option<()> {
        let (text, begin) = (self.text, self.at);
        let mut rest = text.bytes().enumerate().skip(begin + 1);
        loop {
            match rest.next()? {
                (_, b'\\') => self.is_joined &= rest.next()?.1 != b'\n',
                (end, b'`') => {
                    self.note_inside(text.get(begin..end)?);
                    self.at = end + 1;
                    self.note_braces(begin);
                    return Some(());
                }
                _ => {}
            }
        }
    }

    fn command(&mut self) -> Option<()> {
        let before = self.at.checked_sub(1).and_then(|at| self.joined.get(at)).copied().unwrap_or(b' ');
        let was_in_word = std::mem::replace(&mut self.in_word, true);
        match self.rest() {
            [b'\\', b'\n', after @ ..] => {
                let after = after.first().copied();
                self.is_joined &= self.is_between_words(was_in_word, before, after);
                self.blank(2);
                self.in_word = false;
            }
            [b'\\', _, ..] => self.at += 2,
            // a backslash may stand before its end, or not
            [b'\'', rest @ ..] if before == b'$' => {
                let length = rest.iter().position(|byte| *byte == b'\'')?;
                if rest.get(..length)?.ends_with(b"\\") {
                    return None;
                }
                self.single_quoted(length);
            }
            [b'\'', rest @ ..] => {
                let length = rest.iter().position(|byte| *byte == b'\'')?;
                self.single_quoted(length);
            }
            [b'"', ..] => self.enter(Kind::Quotes, 1),
            [b'`', ..] => self.backticks()?,
            [b'$', b'(', ..] => self.substitution(),
            [b'$', b'{', ..] => self.enter(Kind::Expansion, 2),
            [b'#', ..] if !was_in_word => self.comment(),
            [b'<', b'<', b'<', ..] => {
                self.at += 3;
                self.in_word = false;
            }
            [b'<', b'<', ..] => self.heredoc()?,
            [b'\n', ..] => self.line()?,
            [b'<' | b'>', b'(', ..] => self.substitution(),
            [b'(', ..] => self.open(was_in_word)?,
            // a comment, or not
            [b')', b'#', ..] => return None,
            [b')', ..] => self.close()?,
            [b' ' | b'\t' | b';' | b'&' | b'|' | b'<' | b'>', ..] => {
                self.in_word = false;
                self.at += 1;
            }
            _ => self.at += 1,
        }
        Some(())
    }

    /// Whether blanks here neither split a word nor an operator.
    fn is_between_words(&self, in_word: bool, before: u8, after: Option<u8>) -> bool {
        let ends_word = after.is_none_or(|after| matches!(after, b' ' | b'\t' | b'\n'));
        let continues = after.is_some_and(|after| b"|&;<>()\\".contains(&after));
        let is_blank = !in_word && matches!(before, b' ' | b'\t' | b'\n');
        self.heredoc.is_none() && (is_blank || ends_word || !in_word && !continues)
    }

    fn blank(&mut self, bytes: usize) {
        let blanks = self.joined.iter_mut().skip(self.at).take(bytes);
        blanks.for_each(|byte| *byte = b' ');
        self.at += bytes;
    }

    /// Shells end it with the line.
    fn comment(&mut self) {
        let length = self.rest().iter().position(|byte| *byte == b'\n').unwrap_or(self.rest().len());
        let comment = self.joined.iter_mut().skip(self.at).take(length);
        comment.filter(|byte| **byte == b'\\').for_each(|byte| *byte = b' ');
        self.at += length;
        self.in_word = false;
    }

    fn substitution(&mut self) {
        self.enter(Kind::Commands(Some(self.at)), 2);
        self.in_word = false;
    }

    fn open(&mut self, in_word: bool) -> Option<()> {
        let before = self.at.checked_sub(1).and_then(|at| self.text.as_bytes().get(at));
        let is_group = before.is_some_and(|before| b"?*+@!".contains(before));
        self.contexts.last_mut()?.parentheses.push(Parenthesis { is_group, in_word });
        self.in_word = false;
        self.at += 1;
        self.note_depths(Depths::default());
        Some(())
    }

    fn close(&mut self) -> Option<()> {
        let context = self.contexts.last_mut()?;
        self.at += 1;
        self.in_word = match (context.parentheses.pop(), context.kind) {
            (Some(open), _) => open.in_word,
            (None, Kind::Commands(Some(start))) => {
                // the parenthesis may be of a pattern
                if self.text.get(start..self.at).is_none_or(|text| text.contains("case")) {
                    return None;
                }
                self.contexts.pop();
                true
            }
            // that of a pattern of `case`
            (None, _) => false,
        };
        Some(())
    }

    /// `<<E`, `<<-E`, `<<'E'`; one in a line, and in no substitution.
    fn heredoc(&mut self) -> Option<()> {
        let rest = self.text.get(self.at + 2..)?;
        let stripping = rest.strip_prefix('-');
        let word = stripping.unwrap_or(rest).trim_start_matches([' ', '\t']);
        let quote = word.chars().next().filter(|c| matches!(c, '\'' | '"'));
        let name = quote.map_or(word, |quote| word.trim_start_matches(quote));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = name.get(..name.find(|c: char| !is_plain(c)).unwrap_or(name.len()))?;
        let after = word.get(name.len()..).filter(|_| quote.is_none());
        let after = after.or_else(|| word.get(1 + name.len()..)?.strip_prefix(quote?))?;
        let ends = after.starts_with([' ', '\t', '\n', ';', '&', '|', '>', ')']);
        // in parentheses it may be of an expression
        let is_outside = matches!(self.contexts.as_slice(), [outer] if outer.parentheses.is_empty());
        if name.is_empty() || !ends || self.heredoc.is_some() || !is_outside {
            return None;
        }
        let (end, is_quoted) = (name.to_owned(), quote.is_some());
        self.heredoc = Some(Heredoc { end, is_quoted, strips_tabs: stripping.is_some() });
        self.at = self.text.len() - after.len();
        self.in_word = false;
        Some(())
    }

    /// Goes to the next line, after a here-document that begins there.
    fn line(&mut self) -> Option<()> {
        self.at += 1;
        self.in_word = false;
        let Some(Heredoc { end, is_quoted, strips_tabs }) = self.heredoc.take() else { return Some(()) };
        let begin = self.at;
        loop {
            let line = self.text.get(self.at..)?.split_inclusive('\n').next()?;
            self.at += line.len();
            let line = line.trim_end_matches('\n');
            if if strips_tabs { line.trim_start_matches('\t') } else { line } == end {
                if !is_quoted {
                    self.note_inside(self.text.get(begin..self.at)?);
                }
                return Some(());
            }
            self.is_joined &= is_quoted || !line.ends_with('\\');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::scan;

    fn joined(text: &str) -> Option<String> {
        scan(text)?.joined
    }

    #[test]
    fn blanks_stand_where_a_line_is_continued_between_words() {
        for (text, expected) in [
            ("a \\\nb", "a   b"),
            ("a\\\n b", "a   b"),
            ("a||\\\nb", "a||  b"),
            ("a \\\n# b \\\nc", "a   # b  \nc"),
            ("a 'b\\\nc' \\\n\"d\\\ne\"", "a 'b\\\nc'   \"d\\\ne\""),
            ("a \"$(\\\n b)\"", "a \"$(   b)\""),
            ("a <<'E'\nb\\\nE\nc \\\n d", "a <<'E'\nb\\\nE\nc    d"),
            ("a) \\\n b", "a)    b"),
            ("a=(b) \\\n <(c) \\\n d", "a=(b)    <(c)    d"),
            ("`a` \"`b \\` '`\" \\\n c", "`a` \"`b \\` '`\"    c"),
            ("${a-\"${b}\"} \\\n c", "${a-\"${b}\"}    c"),
        ] {
            assert_eq!(joined(text).as_deref(), Some(expected), "{text:?}");
        }
    }

    #[test]
    fn anything_else_is_left_alone() {
        for text in [
            "a\\\nb",
            "a\\ \\\nb",
            ">\\\n>a",
            "2\\\n>a",
            "$(\\\n(a))",
            "a <<E \\\n b\nE",
            "a <<E\nb\\\nE\nE",
            "`a \\\n b`",
            "${a-\\\nb}",
            "a=(b)\\\nc",
            "a <(b)\\\nc",
            "a=(b)\\\n#",
            "@(a)#b \\\n c",
            "((1<<2))\n2\n \\\n",
            "a <<E \n\tE\nE \\\n b",
            "$'a\\' \\\nb",
            "\"$\\\n(a)\"",
            "\"$\\\n{a}\"",
            "\"$a\\\nb\"",
            "\"a",
            "$(a",
            "a <<E\nb",
            "$(case a in b) c;; esac \\\n d)",
            "\"${a-'b'}\" \\\n c",
            "a <<E <<F\nE\nF",
        ] {
            assert_eq!(joined(text), None, "{text:?}");
        }
    }
}
