//! Mistakes about actions: those that are unknown, and groups of them in the place of one, which no call has as its action.

use std::collections::{BTreeSet, HashMap};

use cedar_policy::{ActionConstraint, EntityUid, Policy, PolicyId, PolicySet, Schema};
use serde_json::Value;

use super::Rule;
use super::check::line_of;
use super::fault::Source;
use crate::similar::suggestion;

/// Further unknown actions of a rule are not listed.
const MAX_ACTIONS: usize = 8;

/// The groups of actions: `read`, `start`.
pub(super) fn action_groups(schema: &Schema) -> BTreeSet<String> {
    schema.action_groups().map(|group| group.id().unescaped().to_owned()).collect()
}

/// The faults of scopes with actions that the schema lacks. What else is wrong with these rules may follow from that.
pub(super) fn unknown_actions(
    set: &PolicySet,
    rules: &HashMap<PolicyId, Rule>,
    schema: &Schema,
    source: &Source<'_>,
) -> HashMap<PolicyId, String> {
    let all = schema.actions().chain(schema.action_groups());
    let known: BTreeSet<_> = all.map(|uid| uid.id().unescaped().to_owned()).collect();
    let described = |name: &String| format!("{name:?}{}", suggestion(name, known.iter().map(String::as_str)));
    let unknown = |policy: &Policy| {
        let names = of_scope(policy).into_iter().map(|uid| uid.id().unescaped().to_owned());
        let unknown = names.filter(|name| !known.contains(name)).take(MAX_ACTIONS);
        let unknown: Vec<_> = unknown.map(|name| described(&name)).collect();
        (!unknown.is_empty()).then_some(())?;
        let fault = format!("unknown action {}", unknown.join(", "));
        let fault = source.at_rule(policy, line_of(policy, rules, source), &fault);
        Some((policy.id().clone(), fault))
    };
    set.policies().filter_map(unknown).collect()
}

/// The actions that the scope of a rule names.
fn of_scope(policy: &Policy) -> Vec<EntityUid> {
    match policy.action_constraint() {
        ActionConstraint::Any => Vec::new(),
        ActionConstraint::Eq(one) => vec![one],
        ActionConstraint::In(all) => all,
    }
}

/// Warnings of scopes and conditions such as `action == Action::"start"`. That these rules never apply follows from that.
pub(super) fn compared_groups(
    set: &PolicySet,
    rules: &HashMap<PolicyId, Rule>,
    groups: &BTreeSet<String>,
    source: &Source<'_>,
) -> HashMap<PolicyId, String> {
    let of_scope = |policy: &Policy| match policy.action_constraint() {
        ActionConstraint::Eq(one) => Some(one.id().unescaped().to_owned()).filter(|name| groups.contains(name)),
        _ => None,
    };
    let of_conditions = |policy: &Policy| compared_group(policy.to_json().ok()?.get("conditions")?, groups);
    let compared = |policy: &Policy| {
        let rule = rules.get(policy.id())?;
        let group = of_scope(policy).or_else(|| of_conditions(policy))?;
        let fault = format!("no call has the action {group:?}, which is a group: write `action in Action::{group:?}`");
        Some((policy.id().clone(), source.at_rule(policy, rule.line, &fault)))
    };
    set.policies().filter_map(compared).collect()
}

/// The first group that the action is compared with, in Cedar's JSON format of policies.
fn compared_group(condition: &Value, groups: &BTreeSet<String>) -> Option<String> {
    match condition {
        Value::Object(fields) => {
            let sides = fields.get("==").or_else(|| fields.get("!="));
            let compared = sides.and_then(|sides| {
                let sides = [sides.get("left")?, sides.get("right")?];
                let is_action = sides.iter().any(|side| side.get("Var").is_some_and(|var| var == "action"));
                let id = sides.iter().find_map(|side| side.pointer("/Value/__entity/id")?.as_str());
                id.filter(|id| is_action && groups.contains(*id)).map(str::to_owned)
            });
            compared.or_else(|| fields.values().find_map(|field| compared_group(field, groups)))
        }
        Value::Array(elements) => elements.iter().find_map(|element| compared_group(element, groups)),
        _ => None,
    }
}
