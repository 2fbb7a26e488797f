//! The conditions of a rule, each of which is evaluated and explained by itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use cedar_policy::pst::{BinaryOp, Clause, Effect, Expr, Literal, Template, UnaryOp, Var};
use cedar_policy::{Entities, EvalResult, Expression, Policy, Request, eval_expression};

use super::simple_command::EACH_COMMAND;

/// Longer conditions and values are cut when they are printed.
const MAX_TEXT_BYTES: usize = 300;
const MAX_VALUE_BYTES: usize = 100;
/// Further values are not printed.
const MAX_VALUES: usize = 8;
/// Printed instead of a condition that names identities: who they are is not for others.
const ON_THE_IDENTITY: &str = "a condition on the identity";

/// What a rule needs in order to permit a call or, if it forbids, in order not to.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    /// As Cedar writes it, on one line, or what is printed instead.
    text: String,
    expression: Expression,
    /// What it looks at in the context.
    attributes: Vec<Attribute>,
    /// It looks at the context as a whole.
    is_about_context: bool,
    /// For `context has timeout`: the attribute, without which further conditions cannot hold.
    guards: Option<Attribute>,
    /// For `["cat", "df"].containsAll(context.programs)`: the list.
    list: Option<Vec<String>>,
    /// For that, and for `context.programs.isEmpty()`: the set, whose elements are known if it holds.
    bounds: Option<Attribute>,
    /// What it asks for with `has`.
    asked: Vec<Attribute>,
    /// The other attributes that it looks at.
    read: Vec<Attribute>,
    /// It says whom the rule is about.
    pub(super) is_about_principal: bool,
}

/// An attribute of the context, by its path: `limits`, `cpus`.
#[derive(Clone, Debug, PartialEq)]
struct Attribute(Vec<String>);

impl Condition {
    /// The conditions of the scope of a rule: of its principal, of its action, and of its resource. `None`: any.
    pub(super) fn of_scope(rule: &Template) -> [Option<Self>; 3] {
        let constraint = |variable: &str, constraint: &dyn ToString| match constraint.to_string() {
            any if any.is_empty() => None,
            text => Self::new(format!("{variable} {text}"), None),
        };
        [
            constraint("principal", &rule.principal),
            constraint("action", &rule.action),
            constraint("resource", &rule.resource),
        ]
    }

    /// The conditions of a rule's clauses: all have to hold for it to permit, or not to forbid.
    pub(super) fn of_clauses(rule: &Template) -> Vec<Self> {
        let clauses = rule.clauses().iter().map(|clause| match clause {
            Clause::When(expr) => Arc::clone(expr),
            Clause::Unless(expr) => not(expr),
        });
        let both = |left, right| Arc::new(Expr::BinaryOp { op: BinaryOp::And, left, right });
        let mut needed = Vec::new();
        if let Some(all) = clauses.reduce(both) {
            conjuncts(&all, rule.effect == Effect::Permit, &mut needed);
        }
        needed.into_iter().filter_map(|expr| Self::new(expr.to_string(), Some(&expr))).collect()
    }

    /// A condition that a rule has by default.
    pub(super) fn by_default(text: &str) -> Option<Self> {
        let rule = Policy::parse(None, format!("permit(principal, action, resource) when {{ {text} }};")).ok()?;
        let condition = Self::of_clauses(rule.to_pst().ok()?.body()).pop()?;
        Some(Self { text: format!("{text}, by default for rules about {EACH_COMMAND}"), ..condition })
    }

    /// `None`: the text does not read back as an expression, which the tests of Cedar exclude.
    fn new(text: String, expr: Option<&Expr>) -> Option<Self> {
        let expression = text.parse().ok()?;
        let (whole, attributes): (Vec<_>, Vec<_>) =
            expr.map(attributes).unwrap_or_default().into_iter().partition(|attribute| attribute.0.is_empty());
        let (guards, list) = match expr {
            Some(Expr::HasAttr { .. }) => (attributes.first().cloned(), None),
            Some(Expr::BinaryOp { op: BinaryOp::ContainsAll, left, right }) if path(right).is_some() => {
                (None, literals(left))
            }
            _ => (None, None),
        };
        let bounds = match expr {
            Some(Expr::BinaryOp { op: BinaryOp::ContainsAll, right, .. }) if list.is_some() => path(right),
            Some(Expr::UnaryOp { op: UnaryOp::IsEmpty, expr }) => path(expr),
            _ => None,
        };
        let bounds = bounds.map(Attribute);
        let is_about_principal = expr.is_some_and(|expr| variables(expr) == [Var::Principal]);
        let text = if expr.is_some_and(names_identities) { ON_THE_IDENTITY.to_owned() } else { text };
        let has = |expr: &Expr| match expr {
            Expr::HasAttr { .. } => path(expr).map(|path| vec![Attribute(path)]),
            _ => None,
        };
        let asked = expr.map(|expr| expr.reduce(&has, &union, Vec::new())).unwrap_or_default();
        let get = |expr: &Expr| match expr {
            Expr::GetAttr { .. } => path(expr).map(|path| vec![Attribute(path)]),
            Expr::HasAttr { .. } => path(expr).map(|_| Vec::new()),
            _ => None,
        };
        let read = expr.map(|expr| expr.reduce(&get, &union, Vec::new())).unwrap_or_default();
        let is_about_context = !whole.is_empty();
        Some(Self {
            text,
            expression,
            attributes,
            is_about_context,
            guards,
            list,
            bounds,
            asked,
            read,
            is_about_principal,
        })
    }

    /// Whether it holds; what cannot be evaluated does not.
    pub(super) fn holds(&self, request: &Request, entities: &Entities) -> bool {
        eval_expression(request, entities, &self.expression) == Ok(EvalResult::Bool(true))
    }

    /// Whether it looks at such an attribute of the context.
    pub(super) fn looks_at(&self, is_such: impl Fn(&str) -> bool) -> bool {
        self.is_about_context && is_such("command")
            || self.attributes.iter().any(|attribute| is_such(&attribute.0.join(".")))
    }

    /// Whether it may look at this attribute of the context, or at a part of it.
    pub(super) fn is_about(&self, name: &str) -> bool {
        self.is_about_context
            || self.attributes.iter().any(|attribute| attribute.0.first().is_some_and(|first| first == name))
    }

    /// Whether it is this, as Cedar writes it.
    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text
    }

    /// Whether it asks if an attribute of the single command is there.
    pub(super) fn asks_each_command(&self) -> bool {
        self.asked.iter().any(|asked| matches!(&asked.0[..], [first, _, ..] if first == EACH_COMMAND))
    }

    /// Whether it asks if this attribute of the context is there.
    pub(super) fn asks(&self, name: &str) -> bool {
        self.asked.iter().any(|asked| asked.0 == [name])
    }

    /// Whether it compares this attribute of the context with something.
    pub(super) fn reads(&self, name: &str) -> bool {
        self.read.iter().any(|read| read.0 == [name])
    }

    /// Whether it looks at this part of an attribute.
    pub(super) fn is_about_part(&self, path: [&str; 2]) -> bool {
        self.attributes.iter().any(|attribute| attribute.0 == path)
    }

    /// Whether it lists what may be in this set.
    pub(super) fn bounds(&self, path: &[&str]) -> bool {
        self.bounds.as_ref().is_some_and(|attribute| attribute.0 == path)
    }

    /// Whether it cannot hold because of another one that does not, as `context.timeout < …` after `context has timeout`.
    pub(super) fn follows(&self, other: &Self) -> bool {
        let guarded = |attribute: &Attribute| other.guards.iter().any(|guard| attribute.0.starts_with(&guard.0));
        self.attributes.iter().any(guarded)
    }

    /// Its text, and the values that it looks at: `context.user == "nobody" (user is "root")`. `missing` says why the
    /// context lacks an attribute; the values of those that are `hidden` are not for the caller.
    pub(super) fn explain(
        &self,
        request: &Request,
        missing: impl Fn(&str) -> String,
        hidden: impl Fn(&str) -> bool,
    ) -> String {
        let detail = |attribute: &Attribute| match (attribute.value(request), &self.list) {
            _ if hidden(&attribute.0.join(".")) => {
                format!("{} is set by the named command", attribute.0.join("."))
            }
            (None, _) => missing(&attribute.0.join(".")),
            (Some(EvalResult::Set(set)), Some(list)) => {
                let is_listed = |value: &&EvalResult| !matches!(value, EvalResult::String(text) if list.contains(text));
                let others: Vec<_> = set.iter().filter(is_listed).collect();
                let are = if others.len() == 1 { "is" } else { "are" };
                format!("{} {are} not among them", enumerate(&others))
            }
            (Some(value), _) => format!("{} is {}", attribute.0.join("."), print(&value)),
        };
        let text = cut(&self.text, MAX_TEXT_BYTES);
        let mut details: Vec<_> = self.attributes.iter().map(detail).collect();
        details.dedup();
        match details {
            details if details.is_empty() => text,
            details => format!("{text} ({})", details.join(", ")),
        }
    }
}

impl Attribute {
    /// `None`: the context lacks it.
    fn value(&self, request: &Request) -> Option<EvalResult> {
        let (first, rest) = self.0.split_first()?;
        let within = |value, name: &String| match value {
            EvalResult::Record(record) => record.get(name).cloned(),
            _ => None,
        };
        rest.iter().try_fold(request.context()?.get(first)?, within)
    }
}

/// What has to hold so that this does or, if it is not `needed`, does not: `!(a || b)` needs `!a` and `!b`.
fn conjuncts(expr: &Arc<Expr>, needed: bool, all: &mut Vec<Arc<Expr>>) {
    match (&**expr, needed) {
        (Expr::BinaryOp { op: BinaryOp::And, left, right }, true)
        | (Expr::BinaryOp { op: BinaryOp::Or, left, right }, false) => {
            conjuncts(left, needed, all);
            conjuncts(right, needed, all);
        }
        (Expr::UnaryOp { op: UnaryOp::Not, expr }, _) => conjuncts(expr, !needed, all),
        (_, true) => all.push(Arc::clone(expr)),
        (Expr::BinaryOp { op: BinaryOp::Eq, left, right }, false) => {
            all.push(Arc::new(Expr::BinaryOp {
                op: BinaryOp::NotEq,
                left: Arc::clone(left),
                right: Arc::clone(right),
            }));
        }
        (_, false) => all.push(not(expr)),
    }
}

/// The texts that a rule compares `context.named_command` with, alone or in a list.
pub(super) fn named_commands(rule: &Template) -> Vec<String> {
    compared_texts(rule, is_named_command, |op| matches!(op, BinaryOp::Eq | BinaryOp::NotEq))
}

/// Those of them that it permits or forbids by that.
pub(super) fn own_commands(rule: &Template) -> Vec<String> {
    compared_texts(rule, is_named_command, |op| matches!(op, BinaryOp::Eq))
}

/// The texts that the `name` of an identity may be, alone or in a list.
pub(super) fn identity_names(rule: &Template) -> Vec<String> {
    let is_name = |expr: &Expr| matches!(expr, Expr::GetAttr { attr, .. } if attr == "name");
    compared_texts(rule, is_name, |op| matches!(op, BinaryOp::Eq))
}

fn is_named_command(expr: &Expr) -> bool {
    path(expr).is_some_and(|path| path == ["named_command"])
}

fn compared_texts(
    rule: &Template,
    is_name: impl Fn(&Expr) -> bool,
    is_comparison: impl Fn(&BinaryOp) -> bool,
) -> Vec<String> {
    let names = |expr: &Expr| match expr {
        Expr::BinaryOp { op, left, right } if is_comparison(op) && is_name(left) => {
            literal(right).map(|name| vec![name])
        }
        Expr::BinaryOp { op, left, right } if is_comparison(op) && is_name(right) => {
            literal(left).map(|name| vec![name])
        }
        Expr::BinaryOp { op: BinaryOp::Contains, left, right } if is_name(right) => literals(left),
        _ => None,
    };
    let clauses = rule.clauses().iter().map(|(Clause::When(expr) | Clause::Unless(expr))| expr);
    let all = clauses.flat_map(|expr| expr.reduce(&names, &union, Vec::new()));
    // of a command that is none the name is empty
    all.filter(|name| !name.is_empty()).collect()
}

/// The attributes of the context that a rule may look at, or at a part of; `None`: all.
pub(super) fn context_attributes(rule: &Template) -> Option<BTreeSet<String>> {
    let paths = rule.clauses().iter().flat_map(|(Clause::When(expr) | Clause::Unless(expr))| attributes(expr));
    paths.map(|path| path.0.into_iter().next()).collect()
}

fn not(expr: &Arc<Expr>) -> Arc<Expr> {
    Arc::new(Expr::UnaryOp { op: UnaryOp::Not, expr: Arc::clone(expr) })
}

/// The path of an attribute of the context; empty: the context itself.
pub(super) fn path(expr: &Expr) -> Option<Vec<String>> {
    match expr {
        Expr::Var(Var::Context) => Some(Vec::new()),
        Expr::GetAttr { expr, attr } => path(expr).map(|path| [path, vec![attr.to_string()]].concat()),
        Expr::HasAttr { expr, attrs } => {
            path(expr).map(|path| path.into_iter().chain(attrs.iter().map(ToString::to_string)).collect())
        }
        _ => None,
    }
}

/// The attributes of the context that it looks at, each once; an empty one is the context as a whole.
fn attributes(expr: &Expr) -> Vec<Attribute> {
    let of = |expr: &Expr| path(expr).map(|path| vec![Attribute(path)]);
    expr.reduce(&of, &union, Vec::new())
}

/// The variables that it looks at, each once.
fn variables(expr: &Expr) -> Vec<Var> {
    let of = |expr: &Expr| match expr {
        Expr::Var(variable) => Some(vec![variable.clone()]),
        _ => None,
    };
    expr.reduce(&of, &union, Vec::new())
}

/// Whether it names identities or roles; only identities have the attribute.
fn names_identities(expr: &Expr) -> bool {
    let names = |expr: &Expr| match expr {
        Expr::Literal(Literal::EntityUID(uid)) => Some(["Identity", "Role"].contains(&uid.ty.to_string().as_str())),
        Expr::GetAttr { attr, .. } if attr == "name" => Some(true),
        _ => None,
    };
    expr.reduce(&names, &|one, other| one || other, false)
}

fn union<T: PartialEq>(mut one: Vec<T>, other: Vec<T>) -> Vec<T> {
    for value in other {
        if !one.contains(&value) {
            one.push(value);
        }
    }
    one
}

/// The texts of a set of literals; `None`: it is something else.
pub(super) fn literals(expr: &Expr) -> Option<Vec<String>> {
    let Expr::Set(elements) = expr else { return None };
    elements.iter().map(|element| literal(element)).collect()
}

/// The text of a literal; `None`: it is something else.
pub(super) fn literal(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Literal(Literal::String(text)) => Some(text.to_string()),
        _ => None,
    }
}

fn print(value: &EvalResult) -> String {
    match value {
        EvalResult::Set(set) => format!("[{}]", enumerate(&set.iter().collect::<Vec<_>>())),
        EvalResult::String(text) => format!("{:?}", cut(text, MAX_VALUE_BYTES)),
        value => cut(&value.to_string(), MAX_VALUE_BYTES),
    }
}

fn enumerate(values: &[&EvalResult]) -> String {
    let some = values.iter().take(MAX_VALUES).map(|value| print(value)).collect::<Vec<_>>().join(", ");
    if values.len() > MAX_VALUES { format!("{some}, …") } else { some }
}

fn cut(text: &str, bytes: usize) -> String {
    match text.get(..text.floor_char_boundary(bytes)) {
        Some(start) if start.len() < text.len() => format!("{start}…"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
