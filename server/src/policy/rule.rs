//! One rule of a policy: its name and annotations.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use cedar_policy::{ActionConstraint, Effect, EntityUid, Policy, PolicyId, PolicySet, PrincipalConstraint};
use telexec_engine::{Allowance, Share};
use telexec_executor::parse_size;

use super::Subject;
use super::condition::{self, Condition};
use super::environment::Variables;
use super::fault::Source;
use super::question::Question;
use super::reliance::{Open, relies_on};
use super::simple_command::{EACH_COMMAND, REDIRECTIONS};

/// The annotations of rules.
const KNOWN: &str =
    "id, description, approval, record, share, max_timeout, max_concurrent, max_output, any_owner, environment";
/// The actions of rules that may ask for an approval, or a recording.
const START: [&str; 4] = ["start", "Execute", "Run", "Interact"];

/// They are in memory, and few.
const MAX_APPROVAL: Duration = Duration::from_secs(24 * 60 * 60);
const STARTS_ALONE: &str = "allowed only on rules about starts: action in Action::\"start\"";

/// A rule. Cedar evaluates it; its conditions are here to explain why it does not permit.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// From `@id`, or else its line.
    pub(crate) name: String,
    pub(crate) effect: Effect,
    /// The limits that it sets.
    pub(crate) allowance: Allowance,
    /// It permits what another identity has approved within this time.
    pub(crate) approval: Option<Duration>,
    /// What it permits is recorded.
    pub(crate) record: bool,
    /// Applies to executions of others too.
    pub(crate) any_owner: bool,
    /// The principals that it applies to.
    pub(crate) principal: PrincipalConstraint,
    /// The actions that it applies to.
    pub(crate) action: ActionConstraint,
    /// The environment variables that commands may set.
    pub(crate) environment: Variables,
    /// Where it begins.
    pub(crate) line: usize,
    /// The conditions of its scope: on the principal, the action and the resource.
    pub(crate) scope: [Option<Condition>; 3],
    /// Those of its clauses, and the default ones.
    pub(crate) conditions: Vec<Condition>,
    /// The attributes of the context that it may look at; `None`: all.
    pub(super) attributes: Option<BTreeSet<String>>,
    /// What it needs beside its clauses in order to permit: of redirections, where it is about single commands.
    defaults: Vec<Condition>,
    /// The named commands that it compares with.
    pub(crate) named_commands: Vec<String>,
    /// Those of them that it permits by their names: for these it has no defaults.
    pub(super) own_commands: Vec<String>,
    /// The names of identities that it is about.
    pub(super) identity_names: Vec<String>,
    /// What it permits by, if further programs meet that as well.
    pub(super) relies_on: Option<Open>,
}

impl Rule {
    /// Parses the annotations of a rule that begins in this line.
    ///
    /// # Errors
    /// The first annotation that is unknown or malformed.
    pub(crate) fn new(policy: &Policy, line: usize) -> Result<Self, String> {
        let effect = policy.effect();
        let name = policy.annotation("id").map_or_else(|| format!("line {line}"), str::to_owned);
        // without it explanations lack its conditions, and all defaults hold
        let tree = policy.to_pst().ok();
        let (scope, mut conditions, named_commands) = tree
            .as_ref()
            .map(|tree| {
                let rule = tree.body();
                (Condition::of_scope(rule), Condition::of_clauses(rule), condition::named_commands(rule))
            })
            .unwrap_or_default();
        let own_commands = tree.as_ref().map(|tree| condition::own_commands(tree.body())).unwrap_or_default();
        let identity_names = tree.as_ref().map(|tree| condition::identity_names(tree.body())).unwrap_or_default();
        let relies_on = tree.as_ref().and_then(|tree| relies_on(tree.body()));
        let mut attributes = tree.and_then(|tree| condition::context_attributes(tree.body()));
        let is_about_each_command = may_contain(attributes.as_ref(), EACH_COMMAND);
        let defaults =
            if is_about_each_command && effect == Effect::Permit { defaults(&conditions)? } else { Vec::new() };
        if let Some(attributes) = &mut attributes
            && !defaults.is_empty()
        {
            attributes.insert(REDIRECTIONS.to_owned());
        }
        conditions.extend(defaults.iter().cloned());
        let mut rule = Self {
            name,
            effect,
            allowance: Allowance::default(),
            approval: None,
            record: false,
            any_owner: false,
            principal: policy.principal_constraint(),
            action: policy.action_constraint(),
            environment: Variables::default(),
            line,
            scope,
            conditions,
            attributes,
            defaults,
            named_commands,
            own_commands,
            identity_names,
            relies_on,
        };
        for (key, value) in policy.annotations() {
            if !rule.read(key, value).map_err(|fault| format!("@{key}({value:?}): {fault}"))? {
                return Err(format!("@{key}: unknown annotation, expected one of {KNOWN}"));
            }
        }
        // what is approved is approved by this rule
        if rule.approval.is_some() && policy.annotation("id").is_none() {
            return Err("@approval: the rule needs a name: @id(\"…\")".to_owned());
        }
        Ok(rule)
    }

    /// Whether it permits what a command sets and opens, too.
    pub(super) fn covers(&self, call: &Question<'_>) -> bool {
        let Subject::Command(facts) = call.subject else { return true };
        let is_its_own = || facts.named_command().is_some_and(|name| self.own_commands.iter().any(|own| own == name));
        let holds = |condition: &Condition| condition.holds(call.request, call.entities);
        facts.restricted_variables().iter().all(|name| self.environment.covers(name))
            && (self.defaults.iter().all(holds) || is_its_own())
    }

    /// The variables of a command that it does not permit.
    pub(super) fn uncovered<'a>(&self, subject: &Subject<'a>) -> Vec<&'a str> {
        let Subject::Command(facts) = subject else { return Vec::new() };
        let names = facts.restricted_variables().iter().map(String::as_str);
        names.filter(|name| !self.environment.covers(name)).collect()
    }

    /// Whether it is about one of these actions.
    pub(super) fn is_about_action(&self, actions: &[&str]) -> bool {
        let is_one = |action: &EntityUid| actions.contains(&action.id().unescaped());
        match &self.action {
            ActionConstraint::Any => true,
            ActionConstraint::Eq(one) => is_one(one),
            ActionConstraint::In(some) => some.iter().any(is_one),
        }
    }

    /// Whether it is about calls that start a command, and no others.
    fn is_about_starts(&self) -> bool {
        let starts = |action: &EntityUid| START.contains(&action.id().unescaped());
        match &self.action {
            ActionConstraint::Any => false,
            ActionConstraint::Eq(one) => starts(one),
            ActionConstraint::In(some) => some.iter().all(starts),
        }
    }

    /// Returns whether the annotation is known.
    fn read(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            "id" if value.is_empty() || value.contains(char::is_control) => return Err("expected a name".to_owned()),
            "id" | "description" => {}
            "approval" | "record" | "share" | "max_timeout" | "max_concurrent" | "max_output" | "any_owner"
            | "environment"
                if self.effect == Effect::Forbid =>
            {
                return Err("allowed only on permit rules".to_owned());
            }
            "approval" | "record" | "share" if !self.is_about_starts() => return Err(STARTS_ALONE.to_owned()),
            "approval" => match timeout(value)? {
                lifetime if lifetime > MAX_APPROVAL => return Err("expected a duration of at most 24h".to_owned()),
                lifetime => self.approval = Some(lifetime),
            },
            "share" => self.allowance.share = Some(share(value)?),
            "max_timeout" => self.allowance.timeout = Some(timeout(value)?),
            "max_concurrent" => self.allowance.concurrent = Some(concurrent(value)?),
            "max_output" => self.allowance.output_bytes = Some(parse_size(value)?),
            "environment" => self.environment = Variables::parse(value)?,
            // these have no value, like other annotations of Cedar that are flags
            "any_owner" if value.is_empty() => self.any_owner = true,
            "record" if value.is_empty() => self.record = true,
            "any_owner" | "record" => return Err(format!("takes no value: @{key}")),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Whether this attribute is one of `attributes`; `None`: all are.
pub(super) fn may_contain(attributes: Option<&BTreeSet<String>>, attribute: &str) -> bool {
    attributes.is_none_or(|attributes| attributes.contains(attribute))
}

/// All rules by id. Faults in their annotations are added to `faults`.
pub(super) fn rules(set: &PolicySet, source: &Source<'_>, faults: &mut Vec<String>) -> HashMap<PolicyId, Rule> {
    for template in set.templates() {
        let line = source.line_after(&mut 0, &template.to_cedar());
        faults.push(source.at(line, "templates are not supported: name a principal and a resource"));
    }
    let mut rules = HashMap::new();
    let mut names = HashSet::new();
    let mut policies: Vec<_> = set.policies().collect();
    // by the numbers that Cedar gives them, in the order of the text
    policies.sort_by_cached_key(|policy| policy.id().to_string().trim_start_matches("policy").parse::<usize>().ok());
    let mut end = 0;
    for policy in policies {
        let line = source.line_after(&mut end, &policy.to_cedar().unwrap_or_default());
        match Rule::new(policy, line) {
            Ok(rule) if !names.insert(rule.name.clone()) => {
                faults.push(source.at(line, &format!("another rule has the id {:?} too", rule.name)));
            }
            Ok(rule) => drop(rules.insert(policy.id().clone(), rule)),
            Err(fault) => faults.push(source.at_rule(policy, line, &fault)),
        }
    }
    rules
}

/// What a rule about single commands needs that does not list the files of redirections: there are none but this one.
fn defaults(conditions: &[Condition]) -> Result<Vec<Condition>, String> {
    let is_bounded = |set: &&str| conditions.iter().any(|condition| condition.bounds(&[REDIRECTIONS, set]));
    let sets = ["reads", "writes"].into_iter().filter(|set| !is_bounded(set));
    let text = |set| format!(r#"["/dev/null"].containsAll(context.{REDIRECTIONS}.{set})"#);
    sets.map(|set| Condition::by_default(&text(set)).ok_or_else(|| format!("cannot be limited: {}", text(set))))
        .collect()
}

fn timeout(text: &str) -> Result<Duration, String> {
    let positive = humantime::parse_duration(text).ok().filter(|timeout| !timeout.is_zero());
    positive.ok_or_else(|| "expected a duration such as 30s or 10m".to_owned())
}

fn share(text: &str) -> Result<Share, String> {
    Share::parse(text).ok_or_else(|| "expected a number from 0.01 to 100, with at most two decimals".to_owned())
}

fn concurrent(text: &str) -> Result<u32, String> {
    let positive = text.parse().ok().filter(|count| *count > 0);
    positive.ok_or_else(|| "expected a number greater than 0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Result<Rule, String> {
        Rule::new(&Policy::parse(None, text).unwrap(), 7)
    }

    #[test]
    fn annotations_are_read() {
        let text = r#"@id("x") @max_timeout("1h 30m") @max_concurrent("20") @max_output("64MiB") @any_owner
                      permit(principal, action, resource);"#;
        let read = rule(text).unwrap();
        assert_eq!((read.name.as_str(), read.effect, read.any_owner), ("x", Effect::Permit, true));
        let timeout = Some(Duration::from_secs(5400));
        assert_eq!(
            read.allowance,
            Allowance { timeout, concurrent: Some(20), output_bytes: Some(64 << 20), share: None }
        );
        let plain = rule("forbid(principal, action, resource);").unwrap();
        assert_eq!((plain.name.as_str(), plain.effect, plain.any_owner), ("line 7", Effect::Forbid, false));
        assert_eq!(plain.allowance, Allowance::default());
        for action in [r#"action in Action::"start""#, r#"action in [Action::"Run", Action::"Execute"]"#] {
            let approved = rule(&format!(
                r#"@id("a") @approval("15m") @record @share("2.5") permit(principal, {action}, resource);"#
            ))
            .unwrap();
            assert_eq!((approved.approval, approved.record), (Some(Duration::from_secs(900)), true));
            assert_eq!(approved.allowance.share, Share::parse("2.5"));
        }
    }

    #[test]
    fn what_is_unknown_or_malformed_is_named() {
        for annotation in [
            r#"@max_timout("10m")"#,
            r#"@max_timeout("ten")"#,
            r#"@max_timeout("0s")"#,
            "@max_timeout",
            r#"@max_concurrent("0")"#,
            r#"@max_concurrent("-1")"#,
            r#"@max_output("much")"#,
            r#"@any_owner("no")"#,
            "@environment",
            r#"@environment("A ***")"#,
            r#"@id("a\nb")"#,
            r#"@approval("15m")"#,
            "@record",
            r#"@record("yes")"#,
            r#"@share("2")"#,
        ] {
            let refused = rule(&format!("{annotation} permit(principal, action, resource);")).unwrap_err();
            assert!(refused.starts_with(annotation.split('(').next().unwrap()), "{refused}");
        }
        for action in [r#"action == Action::"Attach""#, r#"action in [Action::"Run", Action::"read"]"#] {
            let refused = rule(&format!(r#"@approval("1m") permit(principal, {action}, resource);"#)).unwrap_err();
            assert!(refused.contains("allowed only on rules about starts"), "{refused}");
        }
        let refused = rule(r#"@approval("1m") permit(principal, action in Action::"start", resource);"#).unwrap_err();
        assert!(refused.contains("needs a name"), "{refused}");
        for value in ["", "0s", "soon", "25h"] {
            let text = format!(r#"@approval("{value}") permit(principal, action in Action::"start", resource);"#);
            assert!(rule(&text).unwrap_err().contains("expected a duration"), "{value}");
        }
        for value in ["", "0", "101", "1.234", "much"] {
            let text = format!(r#"@share("{value}") permit(principal, action in Action::"start", resource);"#);
            assert!(rule(&text).unwrap_err().contains("expected a number from 0.01 to 100"), "{value}");
        }
        let refused = rule(r#"@max_timeout("1s") forbid(principal, action, resource);"#).unwrap_err();
        assert!(refused.contains("allowed only on permit"), "{refused}");
    }
}
