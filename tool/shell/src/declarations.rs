//! Assignments, and the builtins that declare variables.

use shuck_ast::{ArrayElem, Assignment, AssignmentValue, DeclClause, DeclOperand};

use super::expansion::Expansion;
use super::item::{Item, Reader};
use super::programs::ONLY_BASH;
use super::walk::{EVALUATED, Walk};
use super::{builtins, variables};

impl Walk<'_> {
    pub(super) fn declaration(&mut self, command: &DeclClause) {
        self.assignments(&command.assignments);
        self.exported(&command.assignments);
        let (mut arguments, mut is_array, mut is_associative, mut has_value) = (Vec::new(), false, false, false);
        let (mut names, mut exports) = (Vec::new(), command.variant.as_ref() == "export");
        for operand in &command.operands {
            arguments.push(match operand {
                DeclOperand::Flag(word) => {
                    let flags = self.word(word);
                    is_associative |= flags.known().is_some_and(|flags| flags.contains('A'));
                    is_array |= flags.known().is_some_and(|flags| flags.contains(['a', 'A']));
                    exports |= flags.known().is_some_and(|flags| flags.contains('x'));
                    if !builtins::is_flags(flags.known(), "aAxrgfFplu") {
                        self.unknown("a declaration changes what values mean");
                    }
                    flags
                }
                DeclOperand::Dynamic(word) => {
                    self.unknown("which variable is set is not known");
                    self.word(word)
                }
                DeclOperand::Name(name) => {
                    self.name(command.variant.as_ref(), name.name.as_str());
                    // it has none, or keeps its own
                    self.items.push(Item::Number(name.name.to_string()));
                    names.push(name.name.to_string());
                    self.reference(name);
                    self.written(name.span).map_or(Expansion::Any, Expansion::Known)
                }
                DeclOperand::Assignment(assignment) => {
                    let argument = self.assignment(assignment);
                    self.declared(assignment, &argument);
                    names.push(assignment.target.name.to_string());
                    has_value |= matches!(assignment.value, AssignmentValue::Scalar(_));
                    argument
                }
            });
        }
        if is_associative {
            self.items.extend(names.iter().cloned().map(Item::Associative));
        }
        if is_array {
            self.items.extend(names.iter().cloned().map(Item::Array));
        }
        if is_array && has_value {
            self.unknown(EVALUATED);
        }
        if exports {
            self.items.extend(names.into_iter().map(Item::Exported));
        }
        self.items.push(Item::Command(super::SimpleCommand::new(command.variant.as_ref(), &arguments)));
    }

    /// The value of an array is evaluated again by `declare`, and split into words by `export` of other shells.
    fn declared(&mut self, assignment: &Assignment, argument: &Expansion) {
        match (&assignment.value, argument) {
            (AssignmentValue::Compound(_), _) => {}
            (_, Expansion::Known(argument)) if argument.contains("=(") => self.unknown(EVALUATED),
            (_, Expansion::Known(_)) => {}
            (_, argument) if self.reader == Reader::Posix && !argument.is_one() => self.unknown(EVALUATED),
            _ => self.items.push(Item::Declared(assignment.target.name.to_string())),
        }
    }

    /// A declaration without a value.
    fn name(&mut self, declaration: &str, variable: &str) {
        let keeps_value = matches!(declaration, "export" | "readonly");
        match variable {
            "PATH" | "HOME" if keeps_value => self.items.push(Item::Assigned(variable.to_owned())),
            // or what separates words at first
            "IFS" => self.items.push(Item::Assigned(variable.to_owned())),
            _ => self.set(variable),
        }
    }

    pub(super) fn assignments(&mut self, assignments: &[Assignment]) {
        for assignment in assignments {
            self.assignment(assignment);
        }
    }

    /// These assignments are for the environment of what they stand before.
    pub(super) fn exported(&mut self, assignments: &[Assignment]) {
        let names = assignments.iter().map(|assignment| assignment.target.name.to_string());
        self.items.extend(names.map(Item::Exported));
    }

    /// Goes into an assignment, and returns its value as an argument.
    fn assignment(&mut self, assignment: &Assignment) -> Expansion {
        let is_list = matches!(assignment.value, AssignmentValue::Compound(_));
        if self.reader == Reader::Posix && (is_list || assignment.append) {
            self.unknown(ONLY_BASH);
        }
        self.reference(&assignment.target);
        match &assignment.value {
            AssignmentValue::Scalar(word) => {
                // where an array is not closed, the parser drops it and all that comes after it
                let end = assignment.target.name_span.end.offset();
                let after = self.source.get(end..).unwrap_or_default();
                if after.trim_start_matches('+').starts_with("=(") {
                    self.unknown(EVALUATED);
                }
                let operator = if assignment.append { "+=" } else { "=" };
                let value = self.word(word);
                let target = &assignment.target;
                if target.subscript.is_some() {
                    self.items.extend(variables::set_in_list(target.name.as_str()));
                } else if assignment.append {
                    self.set(target.name.as_str());
                } else {
                    let written = self.written(word.span).unwrap_or_default();
                    self.items.extend(variables::set_to(target.name.as_str(), &value, &written));
                }
                if target.subscript.is_none() {
                    self.note_value(target.name.as_str(), word, &value);
                }
                let start = match target.subscript {
                    None => Expansion::Known(format!("{}{operator}", target.name)),
                    Some(_) => Expansion::One(target.name.to_string()),
                };
                start.followed_by(value)
            }
            AssignmentValue::Compound(array) => {
                self.items.extend(variables::set_in_list(assignment.target.name.as_str()));
                self.ends_with(assignment.span, ')');
                // within `$(…)` bash takes these for operators too
                let is_hidden = |text: &str| {
                    // with both the parser loses the end
                    text.contains('{') && text.contains('`') || has_escaped_operator(text)
                };
                if self.written(assignment.span).is_none_or(|text| is_hidden(&text)) {
                    self.unknown(EVALUATED);
                }
                self.items.push(Item::Array(assignment.target.name.to_string()));
                self.scanned(assignment.span, |walk| array.elements.iter().for_each(|element| walk.element(element)));
                Expansion::Any
            }
        }
    }

    fn element(&mut self, element: &ArrayElem) {
        match element {
            ArrayElem::Sequential(value) => {
                // a subscript that the parser does not know
                if self.written(value.span).is_none_or(|text| text.starts_with('[')) {
                    self.unknown(EVALUATED);
                }
                self.word(value);
            }
            ArrayElem::Keyed { key, value } | ArrayElem::KeyedAppend { key, value } => {
                self.subscript(key);
                self.word(value);
            }
        }
    }
}

/// A backslash stands before a character that is an operator without it, or ends a word or a quote.
fn has_escaped_operator(text: &str) -> bool {
    let mut escaped = text.split('\\').skip(1);
    escaped.any(|rest| rest.starts_with(['(', ')', '&', ';', '|', '<', '>', '\'', '"', '\n']))
}
