//! Where the parser and shells, or bash and other shells, read a parsed text differently.

use std::collections::HashSet;

use shuck_ast::{
    BinaryOp, CaseTerminator, Command, CompoundCommand, ConditionalBinaryOp, Redirect, RedirectKind, SimpleCommand,
    Span, Stmt, StmtSeq,
};

use super::walk::{SYNTAX_ERROR, Walk};

impl Walk<'_> {
    /// The parser splits some words, such as `]x`, where nothing separates them.
    pub(super) fn apart(&mut self, command: &SimpleCommand, redirects: &[Redirect]) {
        let targets = redirects.iter().filter_map(|redirect| redirect.word_target());
        let words = || [&command.name].into_iter().chain(&command.args).map(|word| word.span);
        let assigned = || command.assignments.iter().map(|assignment| assignment.span);
        let before =
            words().chain(assigned()).chain(targets.map(|word| word.span)).filter(|span| span.start != span.end);
        let ends: HashSet<_> = before.map(|span| span.end.offset()).collect();
        if words().chain(assigned()).any(|span| ends.contains(&span.start.offset())) {
            self.unknown(SYNTAX_ERROR);
        }
    }

    /// The parser has dropped nothing after a plain command at the end, but comments; with here-documents that is not
    /// known.
    pub(super) fn is_all_read(&self, sequence: &StmtSeq) -> bool {
        let Some(last) = sequence.as_slice().last() else { return true };
        let is_plain = matches!(&last.command, Command::Simple(_) | Command::Decl(_)) && last.redirects.is_empty();
        let rest = self.source.get(last.span.end.offset()..).unwrap_or_default();
        !is_plain
            || self.source.contains("<<")
            || rest.lines().all(|line| {
                let line = line.trim_start_matches([' ', '\t', ';', '&']);
                line.is_empty() || line.starts_with('#')
            })
    }

    /// Of `[[ … ]]`: in some words the parser goes past the end, and takes braces for something.
    pub(super) fn ends_at_brackets(&mut self, span: Span) {
        let written = self.written(span).unwrap_or_default();
        let inside = written.strip_prefix("[[").and_then(|text| text.strip_suffix("]]"));
        let brace = |(at, _): (usize, &str)| {
            let (before, after) = (written.get(..at).unwrap_or_default(), written.get(at + 1..).unwrap_or_default());
            !before.ends_with('$') && !after.starts_with(|c: char| c.is_ascii_digit())
        };
        let is_plain = inside.is_some_and(|text| !text.replace(":]]", "").contains("]]"));
        if !is_plain || written.match_indices('{').any(brace) {
            self.unknown(SYNTAX_ERROR);
        }
    }

    /// Whether a shell takes this for the end of a word, too. Of one in quotes the span ends before the last.
    pub(super) fn ends_word(&self, end: usize) -> bool {
        let next = self.source.get(end..).and_then(|rest| rest.chars().next());
        next.is_none_or(|next| " \t\n;&|()<>\"'".contains(next))
    }

    /// The parser takes the digits before it for something else than shells do.
    pub(super) fn has_odd_descriptor(&self, redirect: &Redirect) -> bool {
        let is_digit = |c: char| c.is_ascii_digit();
        let written = self.written(redirect.span).unwrap_or_default();
        let before = self.source.get(..redirect.span.start.offset()).unwrap_or("0");
        let is_here =
            matches!(redirect.kind, RedirectKind::HereDoc | RedirectKind::HereDocStrip | RedirectKind::HereString);
        let is_apart = before.is_empty() || before.ends_with([' ', '\t', '\n', ';', '&', '|', '(', ')', '<', '>']);
        // of here-documents it does not know that a descriptor may stand before them; others may be the end of a word
        is_here && before.ends_with(is_digit) || written.starts_with(is_digit) && !is_apart
    }

    /// `<<<`, `&>`, and descriptors of two digits, which others take for words.
    pub(super) fn is_redirected_by_bash(&self, redirect: &Redirect) -> bool {
        let written = self.written(redirect.span).unwrap_or_default();
        let begin = redirect.span.start.offset();
        let before = self.source.get(..begin).unwrap_or_default();
        matches!(redirect.kind, RedirectKind::HereString | RedirectKind::OutputBoth)
            || written.starts_with('&')
            || before.ends_with(|c: char| c == '&' || c.is_ascii_digit())
            || written.trim_start_matches(|c: char| c.is_ascii_digit()).len() + 1 < written.len()
            || redirect.fd.is_some_and(|descriptor| descriptor > 9)
    }
}

/// What other shells read in another way, or do not know.
pub(super) fn is_only_bash(statement: &Stmt) -> bool {
    match &statement.command {
        Command::Compound(command) => match command {
            CompoundCommand::Select(_)
            | CompoundCommand::Conditional(_)
            | CompoundCommand::Arithmetic(_)
            | CompoundCommand::ArithmeticFor(_)
            | CompoundCommand::Coproc(_) => true,
            CompoundCommand::Time(command) => command.command.as_ref().is_some_and(|timed| {
                timed.negated || !matches!(&timed.command, Command::Simple(timed) if timed.assignments.is_empty())
            }),
            CompoundCommand::Case(command) => {
                command.cases.iter().any(|case| !matches!(case.terminator, CaseTerminator::Break))
            }
            _ => false,
        },
        Command::Function(function) => function.header.uses_function_keyword(),
        Command::Binary(command) => matches!(command.op, BinaryOp::PipeAll),
        _ => false,
    }
}

pub(super) fn is_arithmetic(operator: ConditionalBinaryOp) -> bool {
    use ConditionalBinaryOp as Op;
    matches!(
        operator,
        Op::ArithmeticEq | Op::ArithmeticNe | Op::ArithmeticLt | Op::ArithmeticLe | Op::ArithmeticGt | Op::ArithmeticGe
    )
}

/// What can stand after `>&`: `2`, `-` or `2-`.
pub(super) fn is_descriptor(target: &str) -> bool {
    let digits = target.strip_suffix('-').unwrap_or(target);
    !target.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
}
