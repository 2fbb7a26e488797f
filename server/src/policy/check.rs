//! Likely mistakes in a policy that is valid by itself: what the configuration or the machine lacks, and rules that permit nothing.

use std::collections::{BTreeSet, HashMap, HashSet};

use cedar_policy::{Effect, PolicyId, PolicySet, ValidationWarning};
use tracing::warn;

use super::condition::Condition;
use super::fault::Source;
use super::simple_command::{EACH_COMMAND, NUMBERED, REDIRECTIONS};
use super::{AgentFacts, Names, Roles, Rule};
use crate::identity::patterns::{OF_NOBODY, is_of_nobody};

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

/// Roles that the configuration lacks, most likely typos.
pub(super) fn unknown_roles(
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
            .map(|role| source.at_rule(policy, line, &format!("the configuration has no role {role:?}")))
            .collect::<Vec<_>>()
    };
    set.policies().flat_map(unknown).collect()
}

/// Identities of local users that no caller has.
pub(super) fn impossible_users(
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

fn line_of(policy: &cedar_policy::Policy, rules: &HashMap<PolicyId, Rule>, source: &Source<'_>) -> usize {
    let search = || source.line_after(&mut 0, &policy.to_cedar().unwrap_or_default());
    rules.get(policy.id()).map_or_else(search, |rule| rule.line)
}

/// Named commands that the configuration lacks, likewise.
pub(super) fn unknown_commands(
    set: &PolicySet,
    rules: &HashMap<PolicyId, Rule>,
    known: &BTreeSet<String>,
    source: &Source<'_>,
) -> Vec<String> {
    let unknown = |policy: &cedar_policy::Policy| {
        let rule = rules.get(policy.id());
        let names = rule.into_iter().flat_map(|rule| &rule.named_commands).filter(|name| !known.contains(*name));
        let fault = |name: &String| format!("the configuration has no command {name:?}");
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

/// Rules about single commands that permit or forbid something else than they seem to.
pub(super) fn misread_commands(set: &PolicySet, rules: &HashMap<PolicyId, Rule>, source: &Source<'_>) -> Vec<String> {
    let misread = |policy: &cedar_policy::Policy| {
        let rule = rules.get(policy.id())?;
        let looks_at =
            |part: &str| rule.conditions.iter().any(|condition| condition.is_about_part([EACH_COMMAND, part]));
        let permits = rule.effect == Effect::Permit;
        let is_limited = looks_at("argument_count")
            || rule.conditions.iter().any(|condition| condition.bounds([EACH_COMMAND, "arguments"]));
        let is_open = !is_limited && NUMBERED.iter().chain(&["arguments"]).any(|arguments| looks_at(arguments));
        let is_mixed = looks_at("program") && rule.conditions.iter().any(|condition| condition.is_about("programs"));
        let asks = rule.conditions.iter().any(Condition::asks_each_command);
        let asks_name = rule.conditions.iter().any(|condition| condition.asks("named_command"));
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

/// Rules that list programs, and let them write to any file: `ls > FILE`.
pub(super) fn open_redirections(set: &PolicySet, rules: &HashMap<PolicyId, Rule>, source: &Source<'_>) -> Vec<String> {
    let fault = "it lists programs, but does not look at context.redirections.writes: `program > FILE` writes to any file that the user may write to";
    let is_open = |rule: &&Rule| {
        let lists = rule.conditions.iter().any(|condition| condition.is_about("programs"));
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
pub(super) fn unapproved(set: &PolicySet, rules: &HashMap<PolicyId, Rule>, source: &Source<'_>) -> Vec<String> {
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
pub(super) fn unrecordable(set: &PolicySet, rules: &HashMap<PolicyId, Rule>, source: &Source<'_>) -> Vec<String> {
    let fault = "@record: requires an audit log, audit.file in the configuration";
    let recorded = |policy: &cedar_policy::Policy| {
        let rule = rules.get(policy.id()).filter(|rule| rule.record)?;
        Some(source.at_rule(policy, rule.line, fault))
    };
    set.policies().filter_map(recorded).collect()
}

/// Whether each rule forbids, or can never apply.
pub(super) fn permits_nothing<'a>(
    rules: &HashMap<PolicyId, Rule>,
    warnings: impl Iterator<Item = &'a ValidationWarning>,
) -> bool {
    let idle = warnings.filter_map(|warning| match warning {
        ValidationWarning::ImpossiblePolicy(idle) => Some(idle.policy_id()),
        ValidationWarning::InvalidActionApplication(idle) => Some(idle.policy_id()),
        _ => None,
    });
    let idle: HashSet<_> = idle.collect();
    rules.iter().all(|(id, rule)| rule.effect == Effect::Forbid || idle.contains(id))
}
