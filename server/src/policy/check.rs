//! Mistakes in a policy: what is invalid, what the configuration or the machine lacks, and rules that permit something else than they
//! seem to.

use std::collections::{BTreeSet, HashMap, HashSet};

use cedar_policy::{Effect, PolicyId, PolicySet, Schema, ValidationError, ValidationResult, ValidationWarning};
use tracing::warn;

use super::action_group::{action_groups, compared_groups, unknown_actions};
use super::condition::Condition;
use super::fault::Source;
use super::reliance::Open;
use super::simple_command::{EACH_COMMAND, NUMBERED, PROGRAMS, REDIRECTIONS};
use super::{AgentFacts, Names, Roles, Rule};
use crate::identity::patterns::{OF_NOBODY, is_of_nobody};
use crate::similar::misspelled;

/// Logs the rules with `@share`, of an agent that cannot divide processors.
pub(super) fn warn_of_shares(agent: &AgentFacts, rules: &HashMap<PolicyId, Rule>) {
    let with_share = rules.values().filter(|rule| rule.allowance.share.is_some());
    let mut names: Vec<_> = with_share.map(|rule| rule.name.as_str()).collect();
    names.sort_unstable();
    if agent.lacks_shares && !names.is_empty() {
        warn!(
            rules = names.join(", "),
            "@share does not divide processor time: cgroup v2 with the controller cpu is not available; it divides only starts and data transfer"
        );
    }
}

/// What is checked.
pub(super) struct Check<'a> {
    pub(super) set: &'a PolicySet,
    pub(super) rules: &'a HashMap<PolicyId, Rule>,
    pub(super) schema: &'a Schema,
    pub(super) names: &'a Names,
    /// What Cedar says.
    pub(super) checked: &'a ValidationResult,
    pub(super) source: &'a Source<'a>,
}

impl Check<'_> {
    /// What is wrong whatever the configuration is.
    pub(super) fn faults(&self) -> Vec<String> {
        let unknown_actions = unknown_actions(self.set, self.rules, self.schema, self.source);
        let invalid = |error: &ValidationError| {
            let fault = self.source.located_in(self.set.policy(error.policy_id()), error);
            match error {
                ValidationError::EmptySetForbidden(_) => {
                    format!("{fault}: `SET.isEmpty()` asks whether a set is empty")
                }
                _ => fault,
            }
        };
        // what Cedar says of rules with an unknown action follows from that
        let others = self.checked.validation_errors().filter(|error| !unknown_actions.contains_key(error.policy_id()));
        let mut faults: Vec<_> = others.map(invalid).collect();
        faults.extend(unknown_actions.into_values());
        faults.extend(impossible_users(self.set, self.rules, self.names, self.source));
        faults
    }

    /// What the configuration lacks.
    pub(super) fn missing(&self, roles: &Roles, agent: &AgentFacts) -> Vec<String> {
        let mut faults = unknown_roles(self.set, self.rules, self.names, roles, self.source);
        faults.extend(unknown_commands(self.set, self.rules, &agent.named_commands, self.source));
        if !agent.keeps_audit_log {
            faults.extend(unrecordable(self.set, self.rules, self.source));
        }
        faults
    }

    /// Likely mistakes.
    pub(super) fn warnings(&self) -> Vec<String> {
        let (set, rules, source) = (self.set, self.rules, self.source);
        let compared_groups = compared_groups(set, rules, &action_groups(self.schema), source);
        let of_cedar = self.checked.validation_warnings();
        let mut warnings: Vec<_> = of_cedar
            .filter(|warning| !(is_of_actions(warning) && compared_groups.contains_key(warning.policy_id())))
            .map(|warning| source.located_in(set.policy(warning.policy_id()), warning))
            .collect();
        warnings.extend(compared_groups.into_values());
        for find in [misread_commands, open_programs, open_redirections, unapproved] {
            warnings.extend(find(set, rules, source));
        }
        let mut warnings = source.sorted(warnings);
        if permits_nothing(rules, self.checked.validation_warnings()) {
            warnings.push(source.about_all("no rule permits anything: every call would be denied"));
        }
        warnings
    }
}

/// Roles that the configuration lacks, most likely typos.
fn unknown_roles(
    set: &PolicySet,
    rules: &HashMap<PolicyId, Rule>,
    names: &Names,
    roles: &Roles,
    source: &Source<'_>,
) -> Vec<String> {
    let unknown = |policy: &cedar_policy::Policy| {
        let line = line_of(policy, rules, source);
        named_roles(policy, names)
            .filter(|role| !roles.contains(role))
            .map(|role| {
                let did_you_mean = misspelled(&role, roles.names());
                source.at_rule(policy, line, &format!("the configuration has no role {role:?}{did_you_mean}"))
            })
            .collect::<Vec<_>>()
    };
    set.policies().flat_map(unknown).collect()
}

/// Identities of local users that no caller has.
fn impossible_users(
    set: &PolicySet,
    rules: &HashMap<PolicyId, Rule>,
    names: &Names,
    source: &Source<'_>,
) -> Vec<String> {
    let impossible = |policy: &cedar_policy::Policy| {
        let identities = policy.entity_literals().into_iter().filter(|uid| *uid.type_name() == names.identity);
        let literals = identities.map(|uid| (uid.id().unescaped().to_owned(), uid.to_string()));
        let compared = rules.get(policy.id()).into_iter().flat_map(|rule| &rule.identity_names);
        let compared = compared.map(|name| (name.clone(), format!("{name:?}")));
        let line = line_of(policy, rules, source);
        literals
            .chain(compared)
            .filter(|(identity, _)| is_of_nobody(identity))
            .map(|(_, text)| source.at_rule(policy, line, &format!("{text} {OF_NOBODY}")))
            .collect::<Vec<_>>()
    };
    set.policies().flat_map(impossible).collect()
}

/// Where a rule begins, also one that is invalid.
pub(super) fn line_of(policy: &cedar_policy::Policy, rules: &HashMap<PolicyId, Rule>, source: &Source<'_>) -> usize {
    let search = || source.line_after(&mut 0, &policy.to_cedar().unwrap_or_default());
    rules.get(policy.id()).map_or_else(search, |rule| rule.line)
}

/// Named commands that the configuration lacks, likewise.
fn unknown_commands(
    set: &PolicySet,
    rules: &HashMap<PolicyId, Rule>,
    known: &BTreeSet<String>,
    source: &Source<'_>,
) -> Vec<String> {
    let unknown = |policy: &cedar_policy::Policy| {
        let rule = rules.get(policy.id());
        let names = rule.into_iter().flat_map(|rule| &rule.named_commands).filter(|name| !known.contains(*name));
        let fault = |name: &String| {
            let did_you_mean = misspelled(name, known.iter().map(String::as_str));
            format!("the configuration has no command {name:?}{did_you_mean}")
        };
        let line = rule.map_or(0, |rule| rule.line);
        names.map(|name| source.at_rule(policy, line, &fault(name))).collect::<Vec<_>>()
    };
    set.policies().flat_map(unknown).collect()
}

/// The roles that a rule names.
pub(super) fn named_roles(policy: &cedar_policy::Policy, names: &Names) -> impl Iterator<Item = String> {
    let roles = policy.entity_literals().into_iter().filter(|uid| *uid.type_name() == names.role);
    roles.map(|uid| uid.id().unescaped().to_owned())
}

/// Rules about single commands, or the names of commands, that permit or forbid something else than they seem to.
fn misread_commands(set: &PolicySet, rules: &HashMap<PolicyId, Rule>, source: &Source<'_>) -> Vec<String> {
    let misread = |policy: &cedar_policy::Policy| {
        let rule = rules.get(policy.id())?;
        let looks_at =
            |part: &str| rule.conditions.iter().any(|condition| condition.is_about_part([EACH_COMMAND, part]));
        let permits = rule.effect == Effect::Permit;
        let is_limited = looks_at("argument_count")
            || rule.conditions.iter().any(|condition| condition.bounds(&[EACH_COMMAND, "arguments"]));
        let is_open = !is_limited && NUMBERED.iter().chain(&["arguments"]).any(|arguments| looks_at(arguments));
        let is_mixed = looks_at("program") && rule.conditions.iter().any(|condition| condition.is_about(PROGRAMS));
        let asks = rule.conditions.iter().any(Condition::asks_each_command);
        let asks_name = rule.conditions.iter().any(|condition| condition.asks("named_command"))
            && !rule.conditions.iter().any(|condition| condition.reads("named_command"));
        let faults = [
            (
                permits && is_open,
                "it looks at arguments, but not at argument_count: any further arguments are permitted",
            ),
            (
                permits && is_mixed,
                "it mixes context.programs, of the whole text, with context.each_command, of one command in it",
            ),
            (
                !permits && asks,
                "`has` is false for an argument that is known only when it runs too: it is not forbidden then",
            ),
            (asks_name, "`context has named_command` is true of every command: write `context.named_command != \"\"`"),
        ];
        let faults = faults.into_iter().filter(|(is_found, _)| *is_found);
        Some(faults.map(|(_, fault)| source.at_rule(policy, rule.line, fault)).collect::<Vec<_>>())
    };
    set.policies().filter_map(misread).flatten().collect()
}

/// Rules that permit by some of the programs, or by a pattern of the text, and so any other programs too.
fn open_programs(set: &PolicySet, rules: &HashMap<PolicyId, Rule>, source: &Source<'_>) -> Vec<String> {
    let open = |policy: &cedar_policy::Policy| {
        let rule = rules.get(policy.id())?;
        // which are judged one by one, and what another identity reads first
        let is_judged =
            rule.conditions.iter().any(|condition| condition.is_about(EACH_COMMAND)) || rule.approval.is_some();
        let fault = match rule.relies_on.filter(|_| rule.effect == Effect::Permit && !is_judged)? {
            Open::Programs => {
                "it looks at context.programs, but permits others too: write `[\"a\", \"b\"].containsAll(context.programs)`"
            }
            Open::Text => "context.command is the whole text: `like \"id*\"` also permits `id; rm -r /`",
        };
        Some(source.at_rule(policy, rule.line, fault))
    };
    set.policies().filter_map(open).collect()
}

/// Rules that list programs, and let them write to any file: `ls > FILE`.
fn open_redirections(set: &PolicySet, rules: &HashMap<PolicyId, Rule>, source: &Source<'_>) -> Vec<String> {
    let fault = "it lists programs, but does not look at context.redirections.writes: `program > FILE` writes to any file that the user may write to";
    let is_open = |rule: &&Rule| {
        let lists = rule.conditions.iter().any(|condition| condition.is_about(PROGRAMS));
        let is_limited = |condition: &Condition| {
            condition.looks_at(|path| path == REDIRECTIONS || path.strip_prefix(REDIRECTIONS) == Some(".writes"))
                // of a program without a shell nothing is redirected
                || condition.is(r#"context.shell == """#)
        };
        rule.effect == Effect::Permit && lists && !rule.conditions.iter().any(is_limited)
    };
    let open = |policy: &cedar_policy::Policy| {
        let rule = rules.get(policy.id()).filter(is_open)?;
        Some(source.at_rule(policy, rule.line, fault))
    };
    set.policies().filter_map(open).collect()
}

/// Rules that ask for an approval where no rule lets anybody give it.
fn unapproved(set: &PolicySet, rules: &HashMap<PolicyId, Rule>, source: &Source<'_>) -> Vec<String> {
    if rules.values().any(|rule| rule.effect == Effect::Permit && rule.is_about_action(&["Approve", "review"])) {
        return Vec::new();
    }
    let fault = "nobody can approve what it permits: no rule permits Action::\"Approve\"";
    let unapproved = |policy: &cedar_policy::Policy| {
        let rule = rules.get(policy.id()).filter(|rule| rule.approval.is_some())?;
        Some(source.at_rule(policy, rule.line, fault))
    };
    set.policies().filter_map(unapproved).collect()
}

/// Rules that have executions recorded where there is no audit log.
fn unrecordable(set: &PolicySet, rules: &HashMap<PolicyId, Rule>, source: &Source<'_>) -> Vec<String> {
    let fault = "@record: requires an audit log, audit.file in the configuration";
    let recorded = |policy: &cedar_policy::Policy| {
        let rule = rules.get(policy.id()).filter(|rule| rule.record)?;
        Some(source.at_rule(policy, rule.line, fault))
    };
    set.policies().filter_map(recorded).collect()
}

/// Whether it is that the rule can never apply, as one about no action.
fn is_of_actions(warning: &ValidationWarning) -> bool {
    matches!(warning, ValidationWarning::ImpossiblePolicy(_) | ValidationWarning::InvalidActionApplication(_))
}

/// Whether each rule forbids, or can never apply.
fn permits_nothing<'a>(rules: &HashMap<PolicyId, Rule>, warnings: impl Iterator<Item = &'a ValidationWarning>) -> bool {
    let idle = warnings.filter_map(|warning| match warning {
        ValidationWarning::ImpossiblePolicy(idle) => Some(idle.policy_id()),
        ValidationWarning::InvalidActionApplication(idle) => Some(idle.policy_id()),
        _ => None,
    });
    let idle: HashSet<_> = idle.collect();
    rules.iter().all(|(id, rule)| rule.effect == Effect::Forbid || idle.contains(id))
}
