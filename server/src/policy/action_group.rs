//! Rules that compare the action with a group of actions, which no call has as its action.

use std::collections::{BTreeSet, HashMap};

use cedar_policy::{PolicyId, PolicySet, Schema};
use serde_json::Value;

use super::Rule;
use super::fault::Source;

/// The groups of actions: `read`, `start`.
pub(super) fn action_groups(schema: &Schema) -> BTreeSet<String> {
    schema.action_groups().map(|group| group.id().unescaped().to_owned()).collect()
}

/// Warnings of conditions such as `action == Action::"start"`.
pub(super) fn compared_groups(
    set: &PolicySet,
    rules: &HashMap<PolicyId, Rule>,
    groups: &BTreeSet<String>,
    source: &Source<'_>,
) -> Vec<String> {
    let compared = |policy: &cedar_policy::Policy| {
        let rule = rules.get(policy.id())?;
        let group = compared_group(policy.to_json().ok()?.get("conditions")?, groups)?;
        let fault = format!("no call has the action {group:?}, which is a group: write `action in Action::{group:?}`");
        Some(source.at_rule(policy, rule.line, &fault))
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
