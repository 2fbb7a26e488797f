//! Why a call is denied: the rule that came nearest to permitting it, and its conditions that do not hold.
//!
//! Whoever is denied hears of the rules that are about this identity, by their principal, and of no others; and of values,
//! of those of the request alone, and not of what the definition of a named command makes of it.

use std::cmp::Reverse;

use cedar_policy::Effect;

use super::condition::Condition;
use super::question::Question;
use super::rule::Rule;
use super::simple_command::{self, EACH_COMMAND};
use super::{Decision, Detail, FileUse, Policy, Subject};
use crate::call::caller::Caller;

/// Further conditions are not named, nor are further variables.
const MAX_CONDITIONS: usize = 16;
const MAX_VARIABLES: usize = 8;

/// A rule that is about the caller and the action.
struct Candidate<'a> {
    rule: &'a Rule,
    /// How many of its conditions hold.
    held: usize,
    unmet: Vec<&'a Condition>,
}

impl Policy {
    /// No rule permits it.
    pub(super) fn unpermitted(&self, denied: &Question<'_>, detail: Detail) -> Decision {
        let (call, who) = (self.describe(denied), self.who(denied.caller));
        let reason = format!("no rule of the policy permits {call} for {who}");
        if detail == Detail::Verdict {
            return Decision { reason, ..Decision::default() };
        }
        let rules = self.rules_about(denied.caller).map(|(_, rule)| rule);
        let about: Vec<_> =
            rules.filter(|rule| rule.effect == Effect::Permit).filter(|rule| denied.is_about(rule)).collect();
        let candidates = about.iter().filter(|rule| denied.is_about_action(rule)).map(|rule| denied.candidate(rule));
        let nearest = candidates.max_by_key(|candidate| denied.nearness(candidate));
        let hint = match &nearest {
            Some(nearest) => format!("the closest rule is {}", nearest.rule.name),
            None if about.is_empty() => "no rule applies to this identity".to_owned(),
            None => format!("no rule for this identity covers {}", denied.action),
        };
        Decision {
            reason: format!("{reason}; {hint}"),
            missing: nearest.as_ref().map(|nearest| denied.missing(nearest)).unwrap_or_default(),
            nearest: nearest.map(|nearest| nearest.rule.name.clone()),
            ..Decision::default()
        }
    }

    /// These rules forbid it.
    pub(super) fn forbidden(&self, denied: &Question<'_>, mut rules: Vec<&Rule>, detail: Detail) -> Decision {
        rules.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let names: Vec<_> = rules.iter().map(|rule| rule.name.clone()).collect();
        let explained = rules.iter().filter(|_| detail == Detail::Explained);
        let unmet = explained.flat_map(|rule| denied.check(rule).1);
        let (call, who) = (self.describe(denied), self.who(denied.caller));
        Decision {
            reason: format!("the policy forbids {call} for {who}: {}", names.join(", ")),
            missing: denied.explain_all(unmet.take(MAX_CONDITIONS)),
            rules: names,
            ..Decision::default()
        }
    }

    fn describe(&self, denied: &Question<'_>) -> String {
        match denied.subject {
            Subject::Identity(identity) => format!("{} {identity} on {}", denied.action, self.agent.hostname),
            _ => format!("{} on {}", denied.action, self.agent.hostname),
        }
    }

    /// The identity with its roles.
    fn who(&self, caller: &Caller) -> String {
        let identity = caller.identity.as_str();
        match self.roles_of(caller).collect::<Vec<_>>().as_slice() {
            [] => format!("{identity} (no role)"),
            [role] => format!("{identity} (role {role})"),
            roles => format!("{identity} (roles {})", roles.join(", ")),
        }
    }
}

impl Question<'_> {
    /// Of a named command not what its definition decides: who may not run it learns nothing of that.
    fn holds(&self, condition: &Condition) -> bool {
        condition.holds(self.request, self.entities) && !condition.looks_at(|attribute| self.is_hidden(attribute))
    }

    fn is_hidden(&self, attribute: &str) -> bool {
        matches!(self.subject, Subject::Command(facts) if facts.is_defined(attribute))
    }

    /// Whether the rule is about the caller, by its scope and by what its clauses say of the principal alone.
    fn is_about(&self, rule: &Rule) -> bool {
        let [principal, ..] = &rule.scope;
        let clauses = rule.conditions.iter().filter(|condition| condition.is_about_principal);
        principal.iter().chain(clauses).all(|condition| self.holds(condition))
    }

    fn is_about_action(&self, rule: &Rule) -> bool {
        let [_, action, _] = &rule.scope;
        action.iter().all(|condition| self.holds(condition))
    }

    /// How many of the other conditions hold, and which do not.
    fn check<'a>(&self, rule: &'a Rule) -> (usize, Vec<&'a Condition>) {
        let [.., resource] = &rule.scope;
        let clauses = rule.conditions.iter().filter(|condition| !condition.is_about_principal);
        let (mut held, mut unmet) = (0, Vec::<&Condition>::new());
        for condition in resource.iter().chain(clauses) {
            if self.holds(condition) {
                held += 1;
            } else if !unmet.iter().any(|other| condition.follows(other)) {
                unmet.push(condition);
            }
        }
        (held, unmet)
    }

    fn candidate<'a>(&'a self, rule: &'a Rule) -> Candidate<'a> {
        let (held, unmet) = self.check(rule);
        Candidate { rule, held, unmet }
    }

    /// Rules whose conditions hold are nearest, by the number of variables that they do not permit; then those that are not about
    /// named commands, of a command that is none; then those about the program of the single command, and not those about another
    /// one; then those of which the most hold, and the fewest do not; then the first.
    fn nearness(&self, Candidate { rule, held, unmet }: &Candidate<'_>) -> impl Ord + use<> {
        let applies = unmet.is_empty();
        let variables = if applies { rule.uncovered(self.subject).len() } else { 0 };
        let is_unnamed = matches!(self.subject, Subject::Command(facts) if !facts.are_of_named_command());
        let is_unrelated = is_unnamed && !rule.own_commands.is_empty();
        let is_about = |condition: &&Condition| condition.is_about_part([EACH_COMMAND, "program"]);
        let of_program = match rule.conditions.iter().find(is_about) {
            Some(_) if unmet.iter().copied().any(|condition| is_about(&condition)) => 0,
            Some(_) => 2,
            None => 1,
        };
        let place = Reverse((rule.line, rule.name.clone()));
        (applies, Reverse(variables), !is_unrelated, of_program, *held, Reverse(unmet.len()), place)
    }

    fn missing(&self, nearest: &Candidate<'_>) -> Vec<String> {
        // there is room for the variables in any case
        let conditions = self.explain_all(nearest.unmet.iter().copied().take(MAX_CONDITIONS - 1));
        let variables = nearest.rule.uncovered(self.subject);
        let more = if variables.len() > MAX_VARIABLES { ", …" } else { "" };
        let names = variables.iter().take(MAX_VARIABLES).map(|name| name.escape_debug().to_string());
        let names = names.collect::<Vec<_>>().join(", ");
        let environment = (!names.is_empty())
            .then(|| format!("{} (the command sets {names}{more})", nearest.rule.environment.annotation()));
        conditions.into_iter().chain(environment).collect()
    }

    /// The conditions, of which the first one about the single command says which that is.
    fn explain_all<'a>(&self, conditions: impl Iterator<Item = &'a Condition>) -> Vec<String> {
        let mut command = self.command.filter(|_| !self.is_hidden(EACH_COMMAND));
        let explain = |condition: &Condition| {
            let text = self.explain(condition);
            match command.take_if(|_| condition.is_about(EACH_COMMAND)) {
                Some(command) => format!("{text}, of the command: {}", simple_command::print(command)),
                None => text,
            }
        };
        conditions.map(explain).collect()
    }

    fn explain(&self, condition: &Condition) -> String {
        let missing = |attribute: &str| match self.subject {
            Subject::Command(_) if attribute.starts_with(EACH_COMMAND) && self.command.is_some() => {
                self.command.map(|command| simple_command::why_missing(command, attribute)).unwrap_or_default()
            }
            Subject::Command(facts) => facts.why_missing(attribute),
            Subject::Port(used) => used.why_missing(attribute).to_owned(),
            Subject::File(_) => FileUse::why_missing(attribute).to_owned(),
            _ => format!("{attribute} is not known"),
        };
        condition.explain(self.request, missing, |attribute| self.is_hidden(attribute))
    }
}
