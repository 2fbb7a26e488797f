//! Whether a rule permits by a condition that says nothing about the rest of a command: `context.programs.contains("id")`.
//!
//! The conditions are evaluated for a command that runs a program no rule lists, where each part may be true, false or
//! either. A rule relies on a kind of condition if it can hold for such a command, but not without one of these.

use cedar_policy::pst::{BinaryOp, Clause, Expr, Literal, PatternElem, Template, UnaryOp};

use super::condition::{literal, literals, path};
use super::simple_command::PROGRAMS;

/// The kinds of conditions that further programs meet as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    /// Some of the programs are listed: `context.programs.contains("id")`.
    Programs,
    /// The text matches a pattern: `context.command like "id*"`.
    Text,
}

/// Which kind the clauses of a rule rely on.
pub(super) fn relies_on(rule: &Template) -> Option<Open> {
    let may_hold = |in_shell, without| {
        let assumed = Assumed { in_shell, without };
        rule.clauses().iter().all(|clause| assumed.meets(clause))
    };
    let (programs, text): (&[_], &[_]) = (&[Open::Programs], &[Open::Text]);
    [true, false].into_iter().find_map(|in_shell| {
        let relies = may_hold(in_shell, &[]) && !may_hold(in_shell, &[Open::Programs, Open::Text]);
        // where either is enough, the first is named
        let is_of_text = may_hold(in_shell, programs) && !may_hold(in_shell, text);
        relies.then_some(if is_of_text { Open::Text } else { Open::Programs })
    })
}

/// What a condition may be.
#[derive(Clone, Copy)]
struct Possible {
    holds: bool,
    fails: bool,
}

const EITHER: Possible = Possible { holds: true, fails: true };

/// A command without a name, with a program that is not listed.
struct Assumed<'a> {
    /// A shell runs its text.
    in_shell: bool,
    /// No condition of these kinds holds.
    without: &'a [Open],
}

impl Assumed<'_> {
    fn meets(&self, clause: &Clause) -> bool {
        match clause {
            Clause::When(expr) => self.possible(expr).holds,
            Clause::Unless(expr) => self.possible(expr).fails,
        }
    }

    fn possible(&self, expr: &Expr) -> Possible {
        match expr {
            Expr::Literal(Literal::Bool(value)) => just(*value),
            Expr::UnaryOp { op: UnaryOp::Not, expr } => not(self.possible(expr)),
            Expr::BinaryOp { op: BinaryOp::And, left, right } => both(self.possible(left), self.possible(right)),
            Expr::BinaryOp { op: BinaryOp::Or, left, right } => {
                not(both(not(self.possible(left)), not(self.possible(right))))
            }
            Expr::BinaryOp { op: BinaryOp::Eq, left, right } => self.compared(left, right),
            Expr::BinaryOp { op: BinaryOp::NotEq, left, right } => not(self.compared(left, right)),
            Expr::IfThenElse { cond, then_expr, else_expr } => {
                let (cond, then, otherwise) = (self.possible(cond), self.possible(then_expr), self.possible(else_expr));
                Possible {
                    holds: cond.holds && then.holds || cond.fails && otherwise.holds,
                    fails: cond.holds && then.fails || cond.fails && otherwise.fails,
                }
            }
            expr => self.part(expr).unwrap_or(EITHER),
        }
    }

    fn compared(&self, left: &Expr, right: &Expr) -> Possible {
        for (one, other) in [(left, right), (right, left)] {
            match other {
                Expr::Literal(Literal::Bool(true)) => return self.possible(one),
                Expr::Literal(Literal::Bool(false)) => return not(self.possible(one)),
                _ => {}
            }
            if is(one, PROGRAMS) && literals(other).is_some() {
                return just(false);
            }
            match literal(other) {
                Some(name) if is(one, "named_command") => return just(name.is_empty()),
                Some(shell) if is(one, "shell") && shell.is_empty() => return just(!self.in_shell),
                // it is none that a rule lists
                Some(_) if is(one, "command") => return just(false),
                _ => {}
            }
        }
        EITHER
    }

    /// A condition that is neither a comparison nor made of others; `None`: it may be either.
    fn part(&self, expr: &Expr) -> Option<Possible> {
        match expr {
            Expr::UnaryOp { op: UnaryOp::IsEmpty, expr } if is(expr, PROGRAMS) => Some(just(false)),
            Expr::BinaryOp { op: BinaryOp::ContainsAll, left, right } if is(right, PROGRAMS) => {
                literals(left).map(|_| just(false))
            }
            Expr::BinaryOp { op: BinaryOp::Contains, left, right } if is(right, "named_command") => {
                literals(left).map(|names| just(names.iter().any(String::is_empty)))
            }
            Expr::BinaryOp { op: BinaryOp::Contains, right, .. } if is(right, PROGRAMS) || is(right, "command") => {
                Some(just(false))
            }
            Expr::BinaryOp { op: BinaryOp::Contains | BinaryOp::ContainsAny | BinaryOp::ContainsAll, left, right }
                if is(left, PROGRAMS) || is(right, PROGRAMS) =>
            {
                Some(self.of_kind(Open::Programs))
            }
            Expr::Like { expr, pattern } if is(expr, "named_command") => Some(just(is_any(pattern))),
            Expr::Like { expr, pattern } if is(expr, "command") && self.in_shell => match is_any(pattern) {
                true => Some(just(true)),
                false if pattern.contains(&PatternElem::Wildcard) => Some(self.of_kind(Open::Text)),
                false => Some(just(false)),
            },
            _ => None,
        }
    }

    fn of_kind(&self, kind: Open) -> Possible {
        if self.without.contains(&kind) { just(false) } else { EITHER }
    }
}

fn just(value: bool) -> Possible {
    Possible { holds: value, fails: !value }
}

fn not(one: Possible) -> Possible {
    Possible { holds: one.fails, fails: one.holds }
}

fn both(one: Possible, other: Possible) -> Possible {
    Possible { holds: one.holds && other.holds, fails: one.fails || other.fails }
}

fn is_any(pattern: &[PatternElem]) -> bool {
    !pattern.is_empty() && pattern.iter().all(|element| *element == PatternElem::Wildcard)
}

/// Whether it is this attribute of the context.
fn is(expr: &Expr, attribute: &str) -> bool {
    path(expr).is_some_and(|path| path == [attribute])
}

#[cfg(test)]
mod tests {
    use cedar_policy::Policy;

    use super::*;

    #[test]
    fn what_a_rule_permits_by_is_known() {
        let (programs, text) = (Some(Open::Programs), Some(Open::Text));
        for (clauses, expected) in [
            ("", None),
            (r#"when { ["id"].containsAll(context.programs) }"#, None),
            (r#"when { ["id"].containsAll(context.programs) == true }"#, None),
            (r#"when { context.programs.isEmpty() || ["id"].containsAll(context.programs) }"#, None),
            (r#"when { context.programs.contains("id") && ["id", "df"].containsAll(context.programs) }"#, None),
            (r#"when { context.programs.contains("id") } when { ["id", "df"].containsAll(context.programs) }"#, None),
            (r#"when { context.programs == ["id"] }"#, None),
            (r#"when { ["id"].containsAny(context.programs) }"#, programs),
            (r#"when { context.programs.containsAll(["id"]) }"#, programs),
            (r#"when { context.programs.contains("id") }"#, programs),
            (r#"when { context.programs.contains("id") == true }"#, programs),
            (r#"when { if context.programs.contains("id") then true else false }"#, programs),
            (r#"unless { !context.programs.contains("id") }"#, programs),
            (r#"when { context.named_command == "a" || context.programs.contains("id") }"#, programs),
            (r#"when { ["a"].contains(context.named_command) || context.programs.contains("id") }"#, programs),
            (r#"when { context.programs.contains("id") && context.named_command != "a" }"#, programs),
            (r#"when { context.programs.contains("id") && context.named_command == "a" }"#, None),
            (r#"when { context.programs.contains("id") && context.named_command like "a*" }"#, None),
            (r#"when { context.user == "a" && ["id"].containsAny(context.programs) }"#, programs),
            // all but a few, or of others too: that is what they say
            (r#"when { !context.programs.contains("rm") }"#, None),
            (r#"when { context.user == "a" || context.programs.contains("id") }"#, None),
            (r#"when { context.user == "a" } unless { context.programs == ["uptime"] }"#, None),
            (r#"when { context.command like "id*" }"#, text),
            (r#"when { context.command like "id*" || context.named_command == "a" }"#, text),
            (r#"when { context.command like "id*" } unless { context.named_command == "a" }"#, text),
            (r#"when { context.command like "id*" && ["id"].containsAll(context.programs) }"#, None),
            (r#"when { context.command like "id*" && context.shell == "" }"#, None),
            (r#"when { context.command like "id*" && context.shell != "" }"#, text),
            (r#"when { context.programs.contains("id") && context.shell == "" }"#, programs),
            (r#"when { context.programs.contains("id") || context.command == "w" }"#, programs),
            (r#"when { context.programs.contains("id") || context.command like "df*" }"#, programs),
            (r#"when { [["id"]].contains(context.programs) }"#, None),
            (r#"when { context.command like "*" && context.user == "a" }"#, None),
            (r#"when { context.command == "id" || context.command like "id *" }"#, text),
            (r#"when { ["id", "w"].contains(context.command) || context.command like "id *" }"#, text),
            (r#"when { context.command like "id" }"#, None),
            (r#"when { context.command == "id" }"#, None),
            (r#"when { context.user == "a" } unless { context.command like "*;*" }"#, None),
        ] {
            let rule = Policy::parse(None, format!("permit(principal, action, resource) {clauses};")).unwrap();
            assert_eq!(relies_on(rule.to_pst().unwrap().body()), expected, "{clauses}");
        }
    }
}
