//! The words of a parsed text: what is known of their values, and the commands in them.
//!
//! Where the parser gives up on the inside of a word, it keeps it as text. So text that has a substitution in it is not
//! understood.

use shuck_ast::{
    ArithmeticExpr, ArithmeticExprNode, ArithmeticLvalue, BourneParameterExpansion, Heredoc, HeredocBodyPart,
    LiteralText, ParameterExpansion, ParameterExpansionSyntax, ParameterOp, Pattern, PatternPart, Span, Subscript,
    Word, WordPart, WordPartNode,
};

use super::walk::{Item, Walk};

const UNREAD: &str = "a substitution could not be read";
const OTHER_SHELL: &str = "it has an expansion of another shell";

/// Where text stands, by which a backslash and other characters mean different things.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Bare,
    /// In double quotes, a here-document or an expression.
    Quoted,
}

impl Walk<'_> {
    /// Goes into a word, and tells its value if that is known here.
    pub(super) fn word(&mut self, word: &Word) -> Option<String> {
        let mut value = Some(String::new());
        for part in &word.parts {
            append(&mut value, self.part(part, Place::Bare));
        }
        let expands = word.has_active_brace_expansion();
        value.filter(|_| !expands)
    }

    /// Goes into a word that is an arithmetic or a regular expression, in which parentheses are its own.
    pub(super) fn expression(&mut self, word: &Word) {
        for part in &word.parts {
            self.part(part, Place::Quoted);
        }
    }

    fn part(&mut self, part: &WordPartNode, place: Place) -> Option<String> {
        self.closed(part.span);
        match &part.kind {
            WordPart::Literal(text) => return self.literal(text, part.span, place),
            WordPart::SingleQuoted { value, .. } if value.is_source_backed() => {
                return self.written(value.span());
            }
            WordPart::SingleQuoted { value, .. } => return Some(value.slice("").to_owned()),
            WordPart::DoubleQuoted { parts, .. } => {
                let mut value = Some(String::new());
                for part in parts {
                    append(&mut value, self.part(part, Place::Quoted));
                }
                return value;
            }
            WordPart::CommandSubstitution { .. } | WordPart::ProcessSubstitution { .. } => self.substitution(part.span),
            WordPart::ArithmeticExpansion { expression_word_ast, .. } => self.expression(expression_word_ast),
            WordPart::Variable(_) | WordPart::PrefixMatch { .. } => {}
            WordPart::Length(reference)
            | WordPart::ArrayAccess(reference)
            | WordPart::ArrayLength(reference)
            | WordPart::ArrayIndices(reference) => self.reference(reference),
            WordPart::Parameter(parameter) => self.parameter(parameter),
            WordPart::ParameterExpansion { reference, operator, operand_word_ast, .. } => {
                self.checked(part.span, |walk| {
                    walk.reference(reference);
                    walk.operation(&reference.name, operator, operand_word_ast.as_deref());
                });
            }
            WordPart::IndirectExpansion { reference, operator, operand_word_ast, .. } => {
                self.checked(part.span, |walk| {
                    walk.indirect(reference, operator.as_deref(), operand_word_ast.as_deref())
                });
            }
            WordPart::Substring { reference, offset_word_ast, length_word_ast, .. }
            | WordPart::ArraySlice { reference, offset_word_ast, length_word_ast, .. } => {
                self.checked(part.span, |walk| {
                    walk.reference(reference);
                    walk.expression(offset_word_ast);
                    length_word_ast.iter().for_each(|word| walk.expression(word));
                });
            }
            WordPart::Transformation { reference, operator } => self.transformation(reference, *operator),
            WordPart::ZshQualifiedGlob(_) => self.unknown(OTHER_SHELL),
        }
        None
    }

    fn parameter(&mut self, parameter: &ParameterExpansion) {
        let ParameterExpansionSyntax::Bourne(syntax) = &parameter.syntax else {
            return self.unknown(OTHER_SHELL);
        };
        self.checked(parameter.span, |walk| match syntax {
            BourneParameterExpansion::PrefixMatch { .. } => {}
            BourneParameterExpansion::Access { reference }
            | BourneParameterExpansion::Length { reference }
            | BourneParameterExpansion::Indices { reference } => walk.reference(reference),
            BourneParameterExpansion::Indirect { reference, operator, operand_word_ast, .. } => {
                walk.indirect(reference, operator.as_deref(), operand_word_ast.as_deref());
            }
            BourneParameterExpansion::Slice { reference, offset_word_ast, length_word_ast, .. } => {
                walk.reference(reference);
                walk.expression(offset_word_ast);
                length_word_ast.iter().for_each(|word| walk.expression(word));
            }
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
            | ParameterOp::RemoveSuffixLong { pattern } => self.pattern(pattern),
            ParameterOp::ReplaceFirst { pattern, replacement_word_ast, .. }
            | ParameterOp::ReplaceAll { pattern, replacement_word_ast, .. } => {
                self.pattern(pattern);
                self.word(replacement_word_ast);
            }
            _ => {}
        }
        operand.into_iter().for_each(|word| drop(self.word(word)));
    }

    fn indirect(&mut self, reference: &shuck_ast::VarRef, operator: Option<&ParameterOp>, operand: Option<&Word>) {
        self.reference(reference);
        let Some(operator) = operator else { return };
        if matches!(operator, ParameterOp::AssignDefault) {
            self.unknown("which variable is set is not known");
        }
        self.operation(&reference.name, operator, operand);
    }

    /// `${x@P}` expands the value of a variable as a prompt, with the substitutions in it.
    fn transformation(&mut self, reference: &shuck_ast::VarRef, operator: char) {
        self.reference(reference);
        if operator == 'P' {
            self.unknown("the value of a variable is expanded");
        }
    }

    pub(super) fn subscript(&mut self, subscript: &Subscript) {
        self.checked(subscript.syntax_source_text().span(), |walk| {
            subscript.word_ast().into_iter().for_each(|word| walk.expression(word));
        });
    }

    pub(super) fn pattern(&mut self, pattern: &Pattern) {
        for part in &pattern.parts {
            match &part.kind {
                PatternPart::Literal(text) => drop(self.literal(text, part.span, Place::Bare)),
                PatternPart::AnyString | PatternPart::AnyChar => {}
                PatternPart::CharClass(text) => self.checked(text.span(), |_| {}),
                PatternPart::Group { patterns, .. } => patterns.iter().for_each(|pattern| self.pattern(pattern)),
                PatternPart::Word(word) => drop(self.word(word)),
            }
        }
    }

    /// Goes by the delimiter as it is written: the parser takes the second of a line for quoted.
    pub(super) fn heredoc(&mut self, heredoc: &Heredoc) {
        if self.slice(heredoc.delimiter.span).is_some_and(|text| text.contains(['\'', '"', '\\'])) {
            return;
        }
        for part in &heredoc.body.parts {
            self.closed(part.span);
            match &part.kind {
                HeredocBodyPart::Literal(text) => drop(self.literal(text, part.span, Place::Quoted)),
                HeredocBodyPart::Variable(_) => {}
                HeredocBodyPart::CommandSubstitution { .. } => self.substitution(part.span),
                HeredocBodyPart::ArithmeticExpansion { expression_word_ast, .. } => {
                    self.expression(expression_word_ast)
                }
                HeredocBodyPart::Parameter(parameter) => self.parameter(parameter),
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
            (Some(text), _) => Item::Text(text.to_owned()),
            // in double quotes the backslash would go, elsewhere it stays
            (None, Some(text)) if !text.contains("\\\"") => Item::Text(unescaped(text)),
            _ => Item::Unknown(UNREAD),
        };
        self.items.push(item);
    }

    /// `((…))`, of which `tree` is what the parser made of it.
    pub(super) fn arithmetic_span(&mut self, span: Option<Span>, tree: Option<&ArithmeticExprNode>) {
        let Some(span) = span else { return };
        self.checked(span, |walk| tree.into_iter().for_each(|tree| walk.arithmetic(tree)));
    }

    fn arithmetic(&mut self, node: &ArithmeticExprNode) {
        match &node.kind {
            ArithmeticExpr::Number(_) | ArithmeticExpr::Variable(_) => {}
            ArithmeticExpr::Indexed { index, .. } => self.arithmetic(index),
            ArithmeticExpr::ShellWord(word) => drop(self.word(word)),
            ArithmeticExpr::Parenthesized { expression } => self.arithmetic(expression),
            ArithmeticExpr::Unary { expr, .. } | ArithmeticExpr::Postfix { expr, .. } => self.arithmetic(expr),
            ArithmeticExpr::Binary { left, right, .. } => {
                self.arithmetic(left);
                self.arithmetic(right);
            }
            ArithmeticExpr::Conditional { condition, then_expr, else_expr } => {
                self.arithmetic(condition);
                self.arithmetic(then_expr);
                self.arithmetic(else_expr);
            }
            ArithmeticExpr::Assignment { target, value, .. } => {
                if let ArithmeticLvalue::Indexed { index, .. } = target {
                    self.arithmetic(index);
                }
                self.arithmetic(value);
            }
        }
    }

    /// Looks at what stands there, and whether a substitution stands there that was not found.
    fn checked(&mut self, span: Span, look: impl FnOnce(&mut Self)) {
        let before = self.substitutions;
        look(self);
        let read = self.substitutions > before || self.slice(span).is_some_and(|text| !may_substitute(text));
        if !read {
            self.unknown(UNREAD);
        }
    }

    /// The parser takes the end of the text for the end of an expansion as well.
    fn closed(&mut self, span: Span) {
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

    /// The value of text that stands in a word; `None` if it is a pattern for names of files or the like.
    fn literal(&mut self, text: &LiteralText, span: Span, place: Place) -> Option<String> {
        let (written, cooked) = match text {
            LiteralText::Source => (self.slice(span), None),
            LiteralText::CookedSource(cooked) => (self.slice(span), Some(cooked)),
            LiteralText::Owned(text) => (Some(&**text), None),
        };
        let value = written.and_then(|text| literal_value(text, place));
        match value {
            Some(Literal::Is(value)) if cooked.is_none_or(|cooked| **cooked == *value) => Some(value),
            Some(Literal::Expands) => None,
            _ => {
                self.unknown(UNREAD);
                None
            }
        }
    }

    pub(super) fn written(&self, span: Span) -> Option<String> {
        self.slice(span).map(str::to_owned)
    }

    fn slice(&self, span: Span) -> Option<&str> {
        self.source.get(span.start.offset()..span.end.offset())
    }
}

enum Literal {
    Is(String),
    /// It becomes something else: the names of files, of a home directory.
    Expands,
}

/// Takes the backslashes out; `None` if there is more in it than text.
fn literal_value(text: &str, place: Place) -> Option<Literal> {
    let mut value = String::with_capacity(text.len());
    let mut expands = place == Place::Bare && text.starts_with('~');
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some('\n')) => drop(chars.next()),
            ('\\', Some(next)) if place == Place::Bare || matches!(next, '$' | '`' | '"' | '\\') => {
                value.extend(chars.next());
            }
            ('`', _) | ('$', Some('(' | '{' | '[')) => return None,
            // the parser takes some unfinished words to go on to the end of the text
            ('(' | ')' | ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>', _) if place == Place::Bare => return None,
            (c, _) => {
                expands |= place == Place::Bare && matches!(c, '*' | '?');
                value.push(c);
            }
        }
    }
    expands |=
        place == Place::Bare && (has_pair(text, '[', "]") || has_pair(text, '{', ",") || has_pair(text, '{', ".."));
    Some(if expands { Literal::Expands } else { Literal::Is(value) })
}

fn has_pair(text: &str, open: char, then: &str) -> bool {
    text.split_once(open).is_some_and(|(_, rest)| rest.contains(then))
}

fn may_substitute(text: &str) -> bool {
    ["`", "$(", "<(", ">("].iter().any(|mark| text.contains(mark))
}

/// What a shell makes of the text between backticks.
fn unescaped(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let escaped = (c == '\\').then(|| chars.next_if(|next| matches!(next, '$' | '`' | '\\'))).flatten();
        value.push(escaped.unwrap_or(c));
    }
    value
}

fn append(value: &mut Option<String>, part: Option<String>) {
    match (value.as_mut(), part) {
        (Some(value), Some(part)) => value.push_str(&part),
        _ => *value = None,
    }
}
