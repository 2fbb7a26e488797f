//! Lines that a backslash continues. Shells take both characters out before they read words; the parser does so in some places
//! only. Where the words are the same with blanks there, it gets blanks.

/// What a character stands in.
enum Context {
    /// Commands, with so many open parentheses; in a substitution that begins here, or in none.
    Commands { open: usize, substitution: Option<usize> },
    /// Double quotes.
    Quotes,
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    joined: Vec<u8>,
    contexts: Vec<Context>,
    /// A word may go on.
    in_word: bool,
    /// A here-document begins in the next line, and ends with this one; whether it is quoted.
    heredoc: Option<(String, bool)>,
}

/// The text with blanks where a line is continued between words, or a comment seems to be; `None`: it is continued somewhere
/// else, or that could not be told.
pub(super) fn joined(text: &str) -> Option<String> {
    let commands = Context::Commands { open: 0, substitution: None };
    let joined = text.as_bytes().to_vec();
    let mut scanner = Scanner { text, at: 0, joined, contexts: vec![commands], in_word: false, heredoc: None };
    while scanner.at < text.len() {
        scanner.step()?;
    }
    let is_whole = scanner.contexts.len() == 1 && scanner.heredoc.is_none();
    is_whole.then(|| String::from_utf8(scanner.joined).ok())?
}

impl Scanner<'_> {
    fn rest(&self) -> &[u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn step(&mut self) -> Option<()> {
        match self.contexts.last()? {
            Context::Quotes => self.quoted(),
            Context::Commands { .. } => self.command(),
        }
    }

    fn quoted(&mut self) -> Option<()> {
        match self.rest() {
            [b'\\', _, ..] => self.at += 2,
            [b'"', ..] => {
                self.contexts.pop();
                self.at += 1;
            }
            [b'$', b'(', ..] => self.substitution(),
            [b'$', b'{', ..] => self.expansion()?,
            [b'`', ..] => return None,
            _ => self.at += 1,
        }
        Some(())
    }

    fn command(&mut self) -> Option<()> {
        let before = self.at.checked_sub(1).and_then(|at| self.joined.get(at)).copied().unwrap_or(b' ');
        let was_in_word = std::mem::replace(&mut self.in_word, true);
        match self.rest() {
            [b'\\', b'\n', after @ ..] => {
                let after = after.first().copied();
                if !self.is_between_words(was_in_word, before, after) {
                    return None;
                }
                self.blank(2);
                self.in_word = false;
            }
            [b'\\', _, ..] => self.at += 2,
            [b'\'' | b'"', ..] if before == b'$' => return None,
            [b'\'', rest @ ..] => self.at += 2 + rest.iter().position(|byte| *byte == b'\'')?,
            [b'"', ..] => {
                self.contexts.push(Context::Quotes);
                self.at += 1;
            }
            [b'`', ..] => return None,
            [b'$', b'(', ..] => self.substitution(),
            [b'$', b'{', ..] => self.expansion()?,
            [b'#', ..] if !was_in_word => self.comment(),
            [b'<', b'<', b'<', ..] => {
                self.at += 3;
                self.in_word = false;
            }
            [b'<', b'<', ..] => self.heredoc()?,
            [b'\n', ..] => self.line()?,
            [b'(', ..] => self.parenthesis(true)?,
            [b')', ..] => self.parenthesis(false)?,
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
        self.contexts.push(Context::Commands { open: 0, substitution: Some(self.at) });
        self.at += 2;
        self.in_word = false;
    }

    fn parenthesis(&mut self, opens: bool) -> Option<()> {
        let Some(Context::Commands { open, substitution }) = self.contexts.last_mut() else { return None };
        self.in_word = false;
        self.at += 1;
        match (opens, *open, *substitution) {
            (true, ..) => *open += 1,
            (false, 0, Some(start)) => {
                // the parenthesis may be of a pattern
                if self.text.get(start..self.at).is_none_or(|text| text.contains("case")) {
                    return None;
                }
                self.contexts.pop();
                self.in_word = true;
            }
            (false, ..) => *open = open.saturating_sub(1),
        }
        Some(())
    }

    /// `${…}` without quotes in it.
    fn expansion(&mut self) -> Option<()> {
        let length = self.rest().iter().position(|byte| *byte == b'}')?;
        let inside = self.rest().get(2..length)?;
        if inside.iter().any(|byte| b"'\"\\`${(\n".contains(byte)) {
            return None;
        }
        self.at += length + 1;
        Some(())
    }

    /// `<<E`, `<<-E`, `<<'E'`; one in a line, and in no substitution.
    fn heredoc(&mut self) -> Option<()> {
        let rest = self.text.get(self.at + 2..)?;
        let word = rest.trim_start_matches('-').trim_start_matches([' ', '\t']);
        let quote = word.chars().next().filter(|c| matches!(c, '\'' | '"'));
        let name = quote.map_or(word, |quote| word.trim_start_matches(quote));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = name.get(..name.find(|c: char| !is_plain(c)).unwrap_or(name.len()))?;
        let after = word.get(name.len()..).filter(|_| quote.is_none());
        let after = after.or_else(|| word.get(1 + name.len()..)?.strip_prefix(quote?))?;
        let ends = after.starts_with([' ', '\t', '\n', ';', '&', '|', '>', ')']);
        if name.is_empty() || !ends || self.heredoc.is_some() || self.contexts.len() > 1 {
            return None;
        }
        self.heredoc = Some((name.to_owned(), quote.is_some()));
        self.at = self.text.len() - after.len();
        self.in_word = false;
        Some(())
    }

    /// Goes to the next line, after a here-document that begins there.
    fn line(&mut self) -> Option<()> {
        self.at += 1;
        self.in_word = false;
        let Some((end, is_quoted)) = self.heredoc.take() else { return Some(()) };
        loop {
            let line = self.text.get(self.at..)?.split_inclusive('\n').next()?;
            self.at += line.len();
            let line = line.trim_end_matches('\n');
            if line.trim_start_matches('\t') == end {
                return Some(());
            }
            if line.ends_with('\\') && !is_quoted {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::joined;

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
            "$'a' \\\nb",
            "\"a",
            "$(a",
            "a <<E\nb",
            "$(case a in b) c;; esac \\\n d)",
            "${a-\"b\"} \\\n c",
            "a <<E <<F\nE\nF",
        ] {
            assert_eq!(joined(text), None, "{text:?}");
        }
    }
}
