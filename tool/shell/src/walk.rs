//! The commands of a parsed text.

use shuck_ast::{
    Assignment, AssignmentValue, BackgroundOperator, BuiltinCommand, CaseCommand, Command, CompoundCommand,
    ConditionalExpr, ConditionalUnaryOp, FunctionDef, IfCommand, LiteralText, Redirect, RedirectKind, RedirectTarget,
    SimpleCommand, Stmt, StmtSeq, StmtTerminator, VarRef, Word, WordPart,
};
use shuck_parser::parser::Parser;
use shuck_parser::{ShellDialect, ShellProfile};

use super::checks::{is_arithmetic, is_descriptor, is_only_bash};
use super::expansion::Expansion;
use super::item::{Item, Mark, Reader};
use super::programs::ONLY_BASH;
use super::scan::Scanned;
use super::{Access, MAX_TEXT_BYTES, programs, refused, variables};

/// For the parser, and with it for all that goes through its tree.
pub(super) const MAX_TREE_DEPTH: usize = 60;
/// In steps of the parser, of which a real text needs fewer than it has bytes.
const MAX_PARSE_STEPS: usize = 2 * MAX_TEXT_BYTES;

/// What makes the parser slow, or deep beyond its own bounds, if there is much of it.
const BOUNDED: [(&str, usize); 10] = [
    ("$(", 4096),
    ("<(", 1024),
    (">(", 1024),
    ("`", 8192),
    ("${", 1024),
    ("<<", 64),
    ("time", 64),
    ("coproc", 64),
    ("((", 512),
    ("&&", 1024),
];
/// In bytes that the parser looks at for the ends of braces and subscripts.
const MAX_SCANNED_BYTES: usize = 64 * MAX_TEXT_BYTES;
/// The same for the ends of braces in quotes.
const MAX_BRACED_BYTES: usize = 768 * MAX_TEXT_BYTES;
/// Of one subscript.
const MAX_SUBSCRIPT_BYTES: usize = 1024;

pub(super) const COMPLICATED: &str = "it is too complicated";
pub(super) const SYNTAX_ERROR: &str = "it has a syntax error, or is nested too deeply";
pub(super) const EVALUATED: &str =
    "bash would evaluate a value that is known only when it runs; [ \"$n\" -gt 5 ] compares without that";
const OTHER_SHELL: &str = "it has syntax of another shell";

/// What is found in a text.
pub(super) fn items(reader: Reader, text: &str, scanned: Option<Scanned>) -> Vec<Item> {
    if text.len() > MAX_TEXT_BYTES {
        return vec![Item::Unknown("it is too long")];
    }
    let is_over = |(mark, most): &(&str, usize)| text.matches(mark).count() > *most;
    let openings = openings(text);
    if BOUNDED.iter().any(is_over)
        || openings.iter().map(|at| scanned_bytes(text, *at)).sum::<usize>() > MAX_SCANNED_BYTES
        || braces(text, scanned.as_ref()).saturating_mul(text.len()) > MAX_BRACED_BYTES
        || has_long_subscript(text, &openings)
    {
        return vec![Item::Unknown(COMPLICATED)];
    }
    if let Some(reason) = refused::outright(text) {
        return vec![Item::Unknown(reason)];
    }
    let joined = match refused::joined(text, scanned) {
        Ok(joined) => joined,
        Err(reason) => return vec![Item::Unknown(reason)],
    };
    let text = &*joined;
    let profile = ShellProfile::native(ShellDialect::Bash);
    let parsed = Parser::with_limits_and_profile(text, MAX_TREE_DEPTH, MAX_PARSE_STEPS, profile).parse();
    let mut walk = Walk { reader, source: text, items: Vec::new(), substitutions: 0, in_quotes: 0, in_expansions: 0 };
    if parsed.is_err() {
        walk.unknown(SYNTAX_ERROR);
    }
    walk.sequence(&parsed.file.body);
    if !walk.is_all_read(&parsed.file.body) {
        walk.unknown(SYNTAX_ERROR);
    }
    walk.items
}

/// The parser takes long for these.
fn has_long_subscript(text: &str, openings: &[usize]) -> bool {
    let is_long = |rest: &str| rest.find(']').unwrap_or(rest.len()) > MAX_SUBSCRIPT_BYTES;
    openings.iter().any(|at| text.get(at + 1..).is_some_and(|rest| rest.starts_with('[') && is_long(rest)))
}

/// Braces for whose ends the parser may look through all of the text, each as often as that is read.
fn braces(text: &str, scanned: Option<&Scanned>) -> usize {
    scanned.map_or_else(
        || text.matches('{').count(),
        |scanned| scanned.quoted_braces.saturating_mul(1 + scanned.deepest.substitutions),
    )
}

/// How much the parser may look at for the end of the brace or subscript here, in bytes: all that follows, if quotes might hide it.
fn scanned_bytes(text: &str, at: usize) -> usize {
    let rest = text.get(at + 1..).unwrap_or_default();
    let end = if text.get(at..).is_some_and(|text| text.starts_with('[')) { ']' } else { '}' };
    let is_end = |c: char| c == end || matches!(c, '\'' | '"' | '\\' | '`' | '{' | '[' | '(');
    match rest.find(is_end) {
        Some(length) if rest.get(length..).is_some_and(|rest| rest.starts_with(end)) => length,
        _ => rest.len(),
    }
}

/// Braces at words and subscripts, by the bytes before them: for the end of each the parser may look through all of the text.
fn openings(text: &str) -> Vec<usize> {
    let is_name = |c: &u8| c.is_ascii_alphanumeric() || *c == b'_';
    let is_opening = |pair: &[u8]| match pair {
        [before, b'['] => is_name(before),
        [b'{', after] => !matches!(after, b' ' | b'\t' | b'\n'),
        _ => false,
    };
    text.as_bytes().windows(2).enumerate().filter(|(_, pair)| is_opening(pair)).map(|(at, _)| at).collect()
}

pub(super) struct Walk<'a> {
    pub(super) reader: Reader,
    pub(super) source: &'a str,
    pub(super) items: Vec<Item>,
    /// How many were gone into.
    pub(super) substitutions: usize,
    /// How many double quotes are around.
    pub(super) in_quotes: usize,
    /// How many words and patterns of expansions, and other patterns.
    pub(super) in_expansions: usize,
}

impl Walk<'_> {
    pub(super) fn unknown(&mut self, reason: &'static str) {
        self.items.push(Item::Unknown(reason));
    }

    pub(super) fn sequence(&mut self, sequence: &StmtSeq) {
        for (at, statement) in sequence.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|at| sequence.as_slice().get(at));
            if before.is_some_and(|before| before.terminator.is_none() && !self.is_line_between(before, statement)) {
                self.unknown(SYNTAX_ERROR);
            }
            self.statement(statement);
        }
    }

    fn is_line_between(&self, before: &Stmt, after: &Stmt) -> bool {
        let between = self.source.get(before.span.start.offset()..after.span.start.offset());
        between.is_some_and(|text| text.contains('\n') && !text.trim_end_matches([' ', '\t']).ends_with(['}', ')']))
    }

    fn sequences<'s>(&mut self, sequences: impl IntoIterator<Item = &'s StmtSeq>) {
        for sequence in sequences {
            self.sequence(sequence);
        }
    }

    fn statement(&mut self, statement: &Stmt) {
        for redirect in &statement.redirects {
            self.redirect(redirect);
        }
        if matches!(statement.terminator, Some(StmtTerminator::Background(operator)) if operator != BackgroundOperator::Plain)
        {
            self.unknown(OTHER_SHELL);
        }
        if self.reader == Reader::Posix && is_only_bash(statement) {
            self.unknown(ONLY_BASH);
        }
        match &statement.command {
            Command::Simple(command) => {
                self.apart(command, &statement.redirects);
                self.simple(command);
            }
            Command::Builtin(command) => self.builtin(command),
            Command::Decl(command) => self.declaration(command),
            Command::Binary(command) => {
                self.statement(&command.left);
                self.statement(&command.right);
            }
            Command::Compound(command) => {
                // after a redirection `case` is the name of a program
                let begin = statement.span.start.offset();
                if statement.redirects.iter().any(|redirect| redirect.span.start.offset() <= begin) {
                    self.unknown(SYNTAX_ERROR);
                }
                self.compound(command);
            }
            Command::Function(function) => self.function(function),
            Command::AnonymousFunction(function) => {
                self.unknown(OTHER_SHELL);
                self.statement(&function.body);
            }
        }
    }

    fn simple(&mut self, command: &SimpleCommand) {
        let separates = self.separates(command);
        match separates {
            true => self.items.push(Item::Mark(Mark::Split)),
            false => self.assignments(&command.assignments),
        }
        let words = || [&command.name].into_iter().chain(&command.args);
        words().for_each(|word| self.is_one(word));
        let values: Vec<_> = words().map(|word| self.word(word)).collect();
        if values.len() == 1 && is_absent(&command.name) {
            return;
        }
        if !separates {
            self.exported(&command.assignments);
        }
        // bash reads on to the `]`, through spaces
        if values.iter().find_map(Expansion::known).is_some_and(|name| name.contains('[') && name != "[") {
            self.unknown(SYNTAX_ERROR);
        }
        programs::run(self.reader, values, &mut self.items);
    }

    /// The parser takes a comment after a parenthesis for a word, and drops what comes after a parenthesis behind one.
    fn is_one(&mut self, word: &Word) {
        let (begin, end) = (word.span.start.offset(), word.span.end.offset());
        let at = |start: usize, text: char| self.source.get(start..).is_some_and(|rest| rest.starts_with(text));
        if begin < end && (at(begin, '#') || at(end, '(')) {
            self.unknown(SYNTAX_ERROR);
        }
    }

    /// It is `IFS=… read …`: the value is for `read` to split lines by, and is as before afterwards.
    fn separates(&mut self, command: &SimpleCommand) -> bool {
        let reads = self.written(command.name.span).as_deref() == Some("read");
        let [Assignment { target, value: AssignmentValue::Scalar(word), append: false, .. }] = &*command.assignments
        else {
            return false;
        };
        if !reads || target.name != "IFS" || target.subscript.is_some() {
            return false;
        }
        // an array that is not closed
        let after = self.source.get(target.name_span.end.offset()..).unwrap_or_default();
        !after.starts_with("=(") && self.word(word).known().is_some()
    }

    fn builtin(&mut self, command: &BuiltinCommand) {
        let (name, first, rest, assignments) = match command {
            BuiltinCommand::Break(c) => ("break", &c.depth, &c.extra_args, &c.assignments),
            BuiltinCommand::Continue(c) => ("continue", &c.depth, &c.extra_args, &c.assignments),
            BuiltinCommand::Return(c) => ("return", &c.code, &c.extra_args, &c.assignments),
            BuiltinCommand::Exit(c) => ("exit", &c.code, &c.extra_args, &c.assignments),
        };
        self.assignments(assignments);
        self.exported(assignments);
        let mut values = vec![Expansion::Known(name.to_owned())];
        for word in first.iter().chain(rest) {
            values.push(self.word(word));
        }
        programs::run(self.reader, values, &mut self.items);
    }

    fn compound(&mut self, command: &CompoundCommand) {
        match command {
            CompoundCommand::If(command) => self.condition(command),
            CompoundCommand::For(command) => {
                let are_numbers = command.words.as_deref().is_some_and(|words| self.are_numbers(words));
                let keys_of = command.words.as_deref().and_then(|words| self.keys_of(words));
                let plain = command.words.as_deref().and_then(|words| self.all_plain_by(words));
                for target in &command.targets {
                    match &target.name {
                        Some(name) => self.set(name.as_str()),
                        None => self.unknown(OTHER_SHELL),
                    }
                    let name = target.name.as_ref().map(ToString::to_string);
                    let note = name.and_then(|name| match (are_numbers, &keys_of) {
                        (true, _) => Some(Item::Number(name)),
                        (false, Some(array)) => Some(Item::Key(name, array.clone())),
                        (false, None) => plain.clone().map(|of| Item::Plain(name, of)),
                    });
                    self.items.extend(note);
                }
                self.words(command.words.iter().flatten());
                self.sequence(&command.body);
            }
            CompoundCommand::Select(command) => {
                self.set(command.variable.as_str());
                self.words(&command.words);
                self.sequence(&command.body);
            }
            CompoundCommand::While(command) => self.sequences([&command.condition, &command.body]),
            CompoundCommand::Until(command) => self.sequences([&command.condition, &command.body]),
            CompoundCommand::Case(command) => self.case(command),
            CompoundCommand::Subshell(body) | CompoundCommand::BraceGroup(body) if body.is_empty() => {
                self.unknown(SYNTAX_ERROR);
            }
            CompoundCommand::Subshell(body) | CompoundCommand::BraceGroup(body) => {
                let start = body.first().map_or(0, |first| first.span.start.offset());
                if start.checked_sub(1).and_then(|before| self.source.get(before..=start)) == Some("((") {
                    self.unknown(EVALUATED);
                }
                self.sequence(body);
            }
            CompoundCommand::Arithmetic(command) => {
                self.in_parentheses(command.left_paren_span, command.right_paren_span);
            }
            CompoundCommand::ArithmeticFor(command) => {
                self.in_parentheses(command.left_paren_span, command.right_paren_span);
                self.sequence(&command.body);
            }
            CompoundCommand::Time(command) => {
                // as an option of the keyword, or an argument of the program where there is no such keyword
                self.items.push(Item::Command(super::SimpleCommand::new("time", &vec![Expansion::Any])));
                command.command.iter().for_each(|timed| self.statement(timed));
            }
            CompoundCommand::Conditional(command) => {
                self.ends_at_brackets(command.span);
                self.scanned(command.span, |walk| walk.conditional(&command.expression));
            }
            CompoundCommand::Coproc(command) => {
                self.unknown("a coprocess sets variables");
                self.statement(&command.body);
            }
            CompoundCommand::Repeat(_) | CompoundCommand::Foreach(_) | CompoundCommand::Always(_) => {
                self.unknown(OTHER_SHELL);
            }
        }
    }

    fn condition(&mut self, command: &IfCommand) {
        self.sequences([&command.condition, &command.then_branch]);
        for (condition, branch) in &command.elif_branches {
            self.sequences([condition, branch]);
        }
        self.sequences(&command.else_branch);
    }

    fn case(&mut self, command: &CaseCommand) {
        self.word(&command.word);
        for case in &command.cases {
            case.patterns.iter().for_each(|pattern| self.pattern(pattern));
            self.sequence(&case.body);
        }
    }

    fn conditional(&mut self, expression: &ConditionalExpr) {
        match expression {
            ConditionalExpr::Binary(expression) => {
                if is_arithmetic(expression.op) {
                    self.compared(&expression.left);
                    self.compared(&expression.right);
                }
                self.conditional(&expression.left);
                self.conditional(&expression.right);
            }
            ConditionalExpr::Unary(expression) => {
                if matches!(expression.op, ConditionalUnaryOp::VariableSet | ConditionalUnaryOp::ReferenceVariable) {
                    self.unknown(EVALUATED);
                }
                self.conditional(&expression.expr);
            }
            ConditionalExpr::Parenthesized(expression) => self.conditional(&expression.expr),
            ConditionalExpr::Word(word) => drop(self.word(word)),
            ConditionalExpr::Regex(word) => {
                if !self.written(word.span).is_some_and(|text| refused::is_plain_regex(&text)) {
                    self.unknown(SYNTAX_ERROR);
                }
                self.expression(word);
            }
            ConditionalExpr::Pattern(pattern) => self.pattern(pattern),
            ConditionalExpr::VarRef(reference) => self.reference(reference),
        }
    }

    fn function(&mut self, function: &FunctionDef) {
        self.items.push(Item::Mark(Mark::Positional));
        if function.header.entries.is_empty() {
            self.unknown(OTHER_SHELL);
        }
        for entry in &function.header.entries {
            match &entry.static_name {
                Some(name) if programs::is_special(name.as_str()) => self.unknown("a function hides a program"),
                Some(_) => {}
                None => self.unknown("a function's name is not known"),
            }
        }
        self.statement(&function.body);
    }

    fn redirect(&mut self, redirect: &Redirect) {
        match &redirect.target {
            RedirectTarget::Word(word) => {
                let target = self.word(word);
                let copies = matches!(redirect.kind, RedirectKind::DupInput | RedirectKind::DupOutput);
                if !copies && !self.ends_word(word.span.end.offset()) {
                    self.unknown(SYNTAX_ERROR);
                }
                if copies && !target.known().is_some_and(is_descriptor) {
                    self.unknown("a redirection to a descriptor could not be read");
                }
                if let Some(access) = access(redirect.kind) {
                    let path = target.known().map(str::to_owned);
                    self.items.push(Item::Redirection(super::Redirection { path, access }));
                }
            }
            RedirectTarget::Heredoc(heredoc) => self.heredoc(heredoc),
        }
        if self.reader == Reader::Posix && self.is_redirected_by_bash(redirect) {
            self.unknown(ONLY_BASH);
        }
        if self.has_odd_descriptor(redirect) {
            self.unknown("a redirection to a descriptor could not be read");
        }
        if redirect.fd_var.is_some() {
            self.unknown(EVALUATED);
        }
    }

    /// A variable gets a value.
    pub(super) fn set(&mut self, variable: &str) {
        self.items.extend(variables::set(variable));
    }

    pub(super) fn reference(&mut self, reference: &VarRef) {
        if let Some(subscript) = &reference.subscript {
            self.subscript(subscript);
            self.items.push(Item::Array(reference.name.to_string()));
        }
    }

    fn words<'w>(&mut self, words: impl IntoIterator<Item = &'w Word>) {
        for word in words {
            self.word(word);
        }
    }
}

/// How a redirection opens a file, if it opens one.
fn access(kind: RedirectKind) -> Option<Access> {
    match kind {
        RedirectKind::Input => Some(Access::Read),
        RedirectKind::Output | RedirectKind::Clobber | RedirectKind::Append | RedirectKind::OutputBoth => {
            Some(Access::Write)
        }
        RedirectKind::ReadWrite => Some(Access::ReadWrite),
        RedirectKind::HereDoc
        | RedirectKind::HereDocStrip
        | RedirectKind::HereString
        | RedirectKind::DupOutput
        | RedirectKind::DupInput => None,
    }
}

/// Only assignments or redirections stand there. (A name written as `''` is a command, which is not found.)
fn is_absent(name: &Word) -> bool {
    matches!(name.parts.as_slice(), [part] if matches!(&part.kind, WordPart::Literal(LiteralText::Owned(text)) if text.is_empty()))
}
