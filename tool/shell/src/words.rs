//! The words of a parsed text: what is known of their values, and the commands in them.
//!
//! Where the parser gives up on the inside of a word, it keeps it as text. So text that has a substitution in it is not
//! understood.

use std::ops::Range;

use shuck_ast::{
    BourneParameterExpansion, Heredoc, HeredocBodyPart, LiteralText, ParameterExpansion, ParameterExpansionSyntax,
    ParameterOp, Pattern, PatternPart, Span, Subscript, Word, WordPart, WordPartNode,
};

use super::expansion::Expansion;
use super::item::{Item, Reader};
use super::walk::{EVALUATED, Walk};
use super::{refused, written};

const UNREAD: &str = "a substitution, quotes or a here-document could not be read";
const OTHER_SHELL: &str = "it has an expansion of another shell";

/// Where text stands, by which a backslash and other characters mean different things.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Bare,
    /// In double quotes.
    Quoted,
    /// In a here-document or an expression.
    Plain,
    /// In the word or pattern of an expansion.
    Operand,
}

impl Walk<'_> {
    /// Goes into a word, and returns its value as an argument.
    pub(super) fn word(&mut self, word: &Word) -> Expansion {
        let mut expansion = Expansion::Known(String::new());
        let mut unquoted = String::new();
        self.tiled(word.span.start.offset()..word.span.end.offset(), &word.parts);
        for part in &word.parts {
            expansion = expansion.followed_by(self.part(part, Place::Bare));
            match &part.kind {
                WordPart::Literal(text) => {
                    unquoted.push_str(&written::without_escaped(self.literal_text(text, part.span)))
                }
                _ => unquoted.push('x'),
            }
        }
        // in words with braces the parser takes quotes and backslashes for text, and the end of the word for elsewhere
        let written = self.slice(word.span).unwrap_or("\\");
        let ends_in_escape = written.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
        // {} alone is for find and xargs
        let has_quotes = written.contains(['"', '\'']) && unquoted.replace("{}", "").contains('{');
        if ends_in_escape || has_quotes || (written.contains('\\') && unquoted.contains('{')) {
            self.unknown(UNREAD);
        }
        match expansion {
            _ if word.has_active_brace_expansion() || written::is_pattern(&unquoted) => Expansion::Any,
            // a home directory, in bash also there
            Expansion::Known(text) | Expansion::One(text)
                if unquoted.starts_with('~') || unquoted.contains("=~") || unquoted.contains(":~") =>
            {
                Expansion::One(text.split('~').next().unwrap_or_default().to_owned())
            }
            Expansion::Any => self.plain_by(word).map_or(Expansion::Any, Expansion::Plain),
            expansion => expansion,
        }
    }

    /// Goes into the word of an expansion, which a blank does not end.
    fn operand(&mut self, word: &Word) {
        self.in_expansions += 1;
        self.tiled(word.span.start.offset()..word.span.end.offset(), &word.parts);
        for part in &word.parts {
            self.part(part, Place::Operand);
        }
        self.in_expansions -= 1;
    }

    /// Goes into a word that is an arithmetic or a regular expression, in which parentheses are its own.
    pub(super) fn expression(&mut self, word: &Word) {
        for part in &word.parts {
            self.part(part, Place::Plain);
        }
    }

    /// The parser has left nothing out between the parts.
    fn tiled(&mut self, whole: Range<usize>, parts: &[WordPartNode]) {
        let mut end = whole.start;
        let follows =
            |part: &WordPartNode| std::mem::replace(&mut end, part.span.end.offset()) == part.span.start.offset();
        if !parts.iter().all(follows) || end != whole.end {
            self.unknown(UNREAD);
        }
    }

    fn part(&mut self, part: &WordPartNode, place: Place) -> Expansion {
        self.closed(part.span);
        self.read_alike(part.span);
        self.quotes(part);
        match &part.kind {
            WordPart::Literal(text) => return self.literal(text, part.span, place),
            WordPart::SingleQuoted { value, dollar } => {
                if *dollar && self.reader == Reader::Posix {
                    self.unknown(OTHER_SHELL);
                }
                if value.is_source_backed() {
                    return self.written(value.span()).map_or(Expansion::Any, Expansion::Known);
                }
                if self.slice(part.span).is_none_or(written::has_odd_escapes) {
                    self.unknown(UNREAD);
                }
                return Expansion::Known(value.slice("").to_owned());
            }
            WordPart::DoubleQuoted { dollar: true, .. } => self.unknown("a text is translated"),
            WordPart::DoubleQuoted { parts, .. } => {
                // in the word of a quoted expansion bash takes backslashes out, and expands what is left
                if self.in_quotes > 0 && self.slice(part.span).is_none_or(|text| text.contains('\\')) {
                    self.unknown(UNREAD);
                }
                let (start, end) = (part.span.start.offset() + 1, part.span.end.offset().saturating_sub(1));
                self.tiled(start..end, parts);
                let mut value = Expansion::Known(String::new());
                self.in_quotes += 1;
                for part in parts {
                    value = value.followed_by(self.part(part, Place::Quoted));
                }
                self.in_quotes -= 1;
                return value;
            }
            WordPart::ProcessSubstitution { .. } if self.reader == Reader::Posix => self.unknown(OTHER_SHELL),
            WordPart::CommandSubstitution { .. } | WordPart::ProcessSubstitution { .. } => self.substitution(part.span),
            WordPart::ArithmeticExpansion { .. } => self.arithmetic(part.span),
            WordPart::Variable(_) => self.plainly_named(part.span),
            WordPart::PrefixMatch { .. } => self.listed(part.span),
            WordPart::ArrayIndices(reference) => {
                self.listed(part.span);
                self.reference(reference);
            }
            WordPart::Length(reference) | WordPart::ArrayAccess(reference) | WordPart::ArrayLength(reference) => {
                self.plainly_named(part.span);
                self.reference(reference);
            }
            WordPart::Parameter(parameter) => self.parameter(parameter),
            WordPart::ParameterExpansion { reference, operator, operand_word_ast, .. } => {
                self.checked(part.span, |walk| {
                    walk.reference(reference);
                    walk.operation(&reference.name, operator, operand_word_ast.as_deref());
                });
            }
            WordPart::Substring { .. } => self.slice_of(part.span),
            WordPart::IndirectExpansion { .. } | WordPart::ArraySlice { .. } => self.unknown(EVALUATED),
            WordPart::Transformation { reference, operator } => self.transformation(reference, *operator),
            WordPart::ZshQualifiedGlob(_) => self.unknown(OTHER_SHELL),
        }
        self.expanded(part, place)
    }

    /// In `"${x:-'…'}"` single quotes are characters like any other, in some shells and places; in others they quote.
    fn quotes(&mut self, part: &WordPartNode) {
        let is_quoted = matches!(part.kind, WordPart::SingleQuoted { .. }) && self.in_quotes > 0;
        if is_quoted && self.slice(part.span).is_none_or(|text| text.contains(['$', '`', '\\', '"', '{', '}'])) {
            self.unknown(UNREAD);
        }
    }

    /// What an expansion comes to. The parser has it that it is one.
    fn expanded(&self, part: &WordPartNode, place: Place) -> Expansion {
        let one = || Expansion::One(String::new());
        match &part.kind {
            WordPart::Variable(name) if matches!(name.as_str(), "#" | "?" | "!" | "$") => Expansion::Digits,
            WordPart::ArithmeticExpansion { .. } | WordPart::Length(_) | WordPart::ArrayLength(_) => one(),
            WordPart::ProcessSubstitution { .. } => Expansion::One("/".to_owned()),
            WordPart::Parameter(_) if self.slice(part.span).is_some_and(written::is_length) => one(),
            _ if place == Place::Bare => Expansion::Any,
            // or nothing; a text that sets it to anything but a path is not understood
            WordPart::Variable(name) if name.as_str() == "HOME" => Expansion::One("/".to_owned()),
            WordPart::CommandSubstitution { .. } => one(),
            _ if self
                .slice(part.span)
                .is_none_or(|text| ["$@", "{@", "[@", "@}"].iter().any(|all| text.contains(all))) =>
            {
                Expansion::Any
            }
            _ => one(),
        }
    }

    /// `${!x}` evaluates the value of `x`. Of other `${…}`, shells read only the plainest alike.
    fn read_alike(&mut self, span: Span) {
        if self.slice(span).is_some_and(|text| text.starts_with("${!") && !written::lists_names(text)) {
            self.unknown(EVALUATED);
        }
        let Some(inside) =
            self.written(span).and_then(|text| Some(text.strip_prefix("${")?.strip_suffix('}')?.to_owned()))
        else {
            return;
        };
        if written::has_bare_brace(&inside) {
            self.unknown(UNREAD);
        }
        // only where nothing around is quoted, quotes are read alike
        let is_quoted =
            |text: &str| text.matches('"').count() == 2 && written::is_plain_operation(&text.replace('"', ""));
        let is_alike = written::is_plain_operation(&inside) || self.in_quotes == 0 && is_quoted(&inside);
        if self.reader == Reader::Posix && !is_alike {
            self.unknown(OTHER_SHELL);
        }
    }

    /// The parser passes over what it does not know behind a name, such as bash's `${x~…}` and `${ …; }`.
    fn plainly_named(&mut self, span: Span) {
        if !self.slice(span).is_some_and(written::is_plain_expansion) {
            self.unknown(UNREAD);
        }
    }

    /// `${!x[@]}`, `${!x@}`
    fn listed(&mut self, span: Span) {
        if !self.slice(span).is_some_and(written::lists_names) {
            self.unknown(EVALUATED);
        }
    }

    fn parameter(&mut self, parameter: &ParameterExpansion) {
        let ParameterExpansionSyntax::Bourne(syntax) = &parameter.syntax else {
            return self.unknown(OTHER_SHELL);
        };
        self.checked(parameter.span, |walk| match syntax {
            BourneParameterExpansion::Access { reference } | BourneParameterExpansion::Length { reference } => {
                walk.plainly_named(parameter.span);
                walk.reference(reference);
            }
            BourneParameterExpansion::PrefixMatch { .. } => walk.listed(parameter.span),
            BourneParameterExpansion::Indices { reference } => {
                walk.listed(parameter.span);
                walk.reference(reference);
            }
            BourneParameterExpansion::Indirect { .. } => walk.unknown(EVALUATED),
            BourneParameterExpansion::Slice { .. } => walk.slice_of(parameter.span),
            BourneParameterExpansion::Operation { reference, operator, operand_word_ast, .. } => {
                walk.reference(reference);
                walk.operation(&reference.name, operator, operand_word_ast.as_deref());
            }
            BourneParameterExpansion::Transformation { reference, operator } => {
                walk.transformation(reference, *operator);
            }
        });
    }

    fn operation(&mut self, name: &str, operator: &ParameterOp, operand: Option<&Word>) {
        match operator {
            ParameterOp::AssignDefault => self.set(name),
            ParameterOp::RemovePrefixShort { pattern }
            | ParameterOp::RemovePrefixLong { pattern }
            | ParameterOp::RemoveSuffixShort { pattern }
            | ParameterOp::RemoveSuffixLong { pattern } => self.pattern_in(pattern, Place::Operand),
            ParameterOp::ReplaceFirst { pattern, replacement_word_ast, .. }
            | ParameterOp::ReplaceAll { pattern, replacement_word_ast, .. } => {
                self.pattern_in(pattern, Place::Operand);
                self.operand(replacement_word_ast);
            }
            _ => {}
        }
        operand.into_iter().for_each(|word| self.operand(word));
    }

    /// `${x@P}` expands the value of a variable as a prompt, with the substitutions in it; `${x@Q}` quotes it.
    fn transformation(&mut self, reference: &shuck_ast::VarRef, operator: char) {
        self.reference(reference);
        if operator != 'Q' {
            self.unknown("the value of a variable is expanded");
        }
    }

    pub(super) fn subscript(&mut self, subscript: &Subscript) {
        let text = self.slice(subscript.syntax_source_text().span()).unwrap_or_default().to_owned();
        match text.as_str() {
            "" => self.unknown(EVALUATED),
            _ if self.reader == Reader::Posix => self.unknown(EVALUATED),
            "@" | "*" => {}
            // of an associative array the key, in which nothing is expanded either
            expression => self.evaluate(expression),
        }
    }

    pub(super) fn pattern(&mut self, pattern: &Pattern) {
        self.pattern_in(pattern, Place::Bare);
    }

    /// In an expansion a blank does not end it.
    fn pattern_in(&mut self, pattern: &Pattern, place: Place) {
        self.in_expansions += 1;
        for part in &pattern.parts {
            match &part.kind {
                PatternPart::Literal(text) => drop(self.literal(text, part.span, place)),
                PatternPart::AnyString | PatternPart::AnyChar => {}
                PatternPart::CharClass(text) => self.checked(text.span(), |_| {}),
                PatternPart::Group { patterns, .. } => {
                    // the parser takes a quoted parenthesis for the end
                    if self.slice(part.span).is_none_or(|text| text.contains(['\'', '"', '\\'])) {
                        self.unknown(UNREAD);
                    }
                    patterns.iter().for_each(|pattern| self.pattern_in(pattern, place));
                }
                PatternPart::Word(word) => drop(self.word(word)),
            }
        }
        self.in_expansions -= 1;
    }

    /// Goes by the delimiter as it is written: the parser takes the second of a line for quoted.
    pub(super) fn heredoc(&mut self, heredoc: &Heredoc) {
        let (delimiter, rest) = (heredoc.delimiter.span, heredoc.delimiter.span.end.offset()..);
        let rest_of_line = self.source.get(rest).and_then(|rest| rest.lines().next()).unwrap_or_default();
        if !self.slice(delimiter).is_some_and(|delimiter| refused::is_plain_heredoc(delimiter, rest_of_line)) {
            self.unknown(UNREAD);
        }
        // in a substitution bash lets it end in any line that begins so and has the end of that: E) or Ex)
        let end = heredoc.delimiter.cooked.as_str();
        let may_end = |line: &str| line.trim_start_matches('\t').starts_with(end);
        // the parser lets it end in a line with blanks after it, too
        let ends = |after: &str| after.lines().next().is_some_and(|line| line.trim_start_matches('\t') == end);
        let after = self.source.get(heredoc.body.span.end.offset()..);
        if self.slice(heredoc.body.span).is_none_or(|body| body.lines().any(may_end)) || !after.is_some_and(ends) {
            self.unknown(UNREAD);
        }
        if self.slice(heredoc.delimiter.span).is_some_and(|text| text.contains(['\'', '"', '\\'])) {
            return;
        }
        for part in &heredoc.body.parts {
            self.closed(part.span);
            self.read_alike(part.span);
            match &part.kind {
                HeredocBodyPart::Literal(text) => drop(self.literal(text, part.span, Place::Plain)),
                HeredocBodyPart::Variable(_) => self.plainly_named(part.span),
                HeredocBodyPart::CommandSubstitution { .. } => self.substitution(part.span),
                HeredocBodyPart::ArithmeticExpansion { .. } => self.arithmetic(part.span),
                HeredocBodyPart::Parameter(parameter) => {
                    if self.slice(part.span).is_none_or(|text| text.contains(['\'', '"', '\\'])) {
                        self.unknown(UNREAD);
                    }
                    self.parameter(parameter);
                }
            }
        }
    }

    /// `$(…)`, `<(…)` or `>(…)`, or the first between backticks, where a backslash can be for the text around. It is
    /// read as a text of its own: inside of words the parser passes over errors.
    fn substitution(&mut self, span: Span) {
        self.substitutions += 1;
        let written = self.slice(span).unwrap_or_default();
        let inside = ["$(", "<(", ">("].iter().find_map(|start| written.strip_prefix(start)?.strip_suffix(')'));
        let in_backticks = written.strip_prefix('`').and_then(|text| text.strip_suffix('`'));
        let item = match (inside, in_backticks) {
            // arithmetic, or not: bash and the parser may disagree
            (Some(text), _) if text.starts_with('(') => Item::Unknown(UNREAD),
            // bash reads what it has made of the commands, without some separators
            (Some(text), _) if written::separates_after_heredoc(text) => Item::Unknown(UNREAD),
            (Some(text), _) => Item::Text(self.reader, text.to_owned()),
            // bash expands braces before all else, and takes no notice of quotes in these
            (None, Some(text)) if self.in_quotes > 0 && text.contains('{') => Item::Unknown(UNREAD),
            // in double quotes the backslash would go, elsewhere it stays
            (None, Some(text)) if !text.contains("\\\"") => Item::Text(self.reader, written::unescaped(text)),
            (None, Some(text))
                if self.in_quotes == 1
                    && self.in_expansions == 0
                    && !text.contains("\\\\")
                    && !self.source.contains("$${") =>
            {
                Item::Text(self.reader, written::unescaped(&text.replace("\\\"", "\"")))
            }
            _ => Item::Unknown(UNREAD),
        };
        self.items.push(item);
    }

    /// Looks at what stands there, and whether a substitution stands there that was not found.
    fn checked(&mut self, span: Span, look: impl FnOnce(&mut Self)) {
        let before = self.substitutions;
        look(self);
        let read = self.substitutions > before || self.slice(span).is_some_and(|text| !written::may_substitute(text));
        if !read {
            self.unknown(UNREAD);
        }
    }

    /// The same for what the parser scans for its end, where it knows nothing of comments and here-documents.
    pub(super) fn scanned(&mut self, span: Span, look: impl FnOnce(&mut Self)) {
        self.checked(span, look);
        let begins_word = |(at, _): (usize, &str), text: &str| {
            text.get(..at).is_some_and(|text| text.ends_with([' ', '\t', '\n', '(', ';', '&', '|']))
        };
        let is_scanned =
            |text: &str| !text.contains("<<") && !text.match_indices('#').any(|found| begins_word(found, text));
        if !self.slice(span).is_some_and(is_scanned) {
            self.unknown(UNREAD);
        }
    }

    /// The parser takes the end of the text for the end of an expansion as well. And it takes `$$(` for `$` and `$(`: for
    /// shells it is `$$` and what follows.
    fn closed(&mut self, span: Span) {
        let is_expansion = self.slice(span).is_none_or(|text| text.starts_with('$'));
        if is_expansion && self.source.get(..span.start.offset()).is_none_or(|before| before.ends_with('$')) {
            self.unknown(UNREAD);
        }
        for (start, end) in [("${", '}'), ("$(", ')'), ("$[", ']'), ("<(", ')'), (">(", ')')] {
            if self.slice(span).is_none_or(|text| text.starts_with(start)) {
                self.ends_with(span, end);
            }
        }
    }

    pub(super) fn ends_with(&mut self, span: Span, end: char) {
        if !self.slice(span).is_some_and(|text| text.ends_with(end)) {
            self.unknown(UNREAD);
        }
    }

    /// The value of text that stands in a word.
    fn literal(&mut self, text: &LiteralText, span: Span, place: Place) -> Expansion {
        let value = literal_value(self.literal_text(text, span), place);
        match (value, text) {
            (Some(value), LiteralText::CookedSource(cooked)) if **cooked != *value => {}
            (Some(value), _) => return Expansion::Known(value),
            (None, _) => {}
        }
        self.unknown(UNREAD);
        Expansion::Any
    }

    /// As it is written.
    fn literal_text<'t>(&'t self, text: &'t LiteralText, span: Span) -> &'t str {
        match text {
            LiteralText::Source | LiteralText::CookedSource(_) => self.slice(span).unwrap_or("`"),
            LiteralText::Owned(text) => text,
        }
    }

    pub(super) fn written(&self, span: Span) -> Option<String> {
        self.slice(span).map(str::to_owned)
    }

    pub(super) fn slice(&self, span: Span) -> Option<&str> {
        self.source.get(span.start.offset()..span.end.offset())
    }
}

/// Takes the backslashes out; `None` if there is more in it than text.
fn literal_value(text: &str, place: Place) -> Option<String> {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some('\n')) => drop(chars.next()),
            ('\\', Some(next)) if place == Place::Bare || matches!(next, '$' | '`' | '"' | '\\') => {
                value.extend(chars.next());
            }
            ('`', _) | ('$', Some('(' | '{' | '[')) => return None,
            // the parser has gone past the end
            ('"', _) if place == Place::Quoted => return None,
            // a substitution, or not
            ('<' | '>', Some('(')) if place == Place::Operand => return None,
            // the parser takes some unfinished words to continue to the end of the text
            ('(' | ')' | ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>', _) if place == Place::Bare => return None,
            (c, _) => value.push(c),
        }
    }
    Some(value)
}
