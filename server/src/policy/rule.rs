//! One rule of a policy: its name and annotations.

use std::time::Duration;

use cedar_policy::{ActionConstraint, Effect, Policy, PrincipalConstraint};
use telexec_engine::Allowance;
use telexec_executor::parse_size;

use super::Subject;
use super::condition::{self, Condition};
use super::environment::Variables;
use super::simple_command::{EACH_COMMAND, REDIRECTIONS, opens_files};

/// The annotations of rules.
const KNOWN: &str = "id, description, max_timeout, max_concurrent, max_output, any_owner, environment";

/// A rule. Cedar evaluates it; its conditions are here to explain why it does not permit.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// From `@id`, or else its line.
    pub(crate) name: String,
    pub(crate) effect: Effect,
    /// The limits that it sets.
    pub(crate) allowance: Allowance,
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
    /// Those of its clauses.
    pub(crate) conditions: Vec<Condition>,
    /// It may look at the commands of a text one by one.
    is_about_each_command: bool,
    /// The named commands that it compares with.
    pub(crate) named_commands: Vec<String>,
}

impl Rule {
    /// Parses the annotations of a rule that begins in this line.
    ///
    /// # Errors
    /// The first annotation that is unknown or malformed.
    pub(crate) fn new(policy: &Policy, line: usize) -> Result<Self, String> {
        let effect = policy.effect();
        let name = policy.annotation("id").map_or_else(|| format!("line {line}"), str::to_owned);
        // only explanations lack what this tree cannot have
        let tree = policy.to_pst().ok();
        let (scope, conditions, named_commands) = tree
            .map(|tree| {
                let rule = tree.body();
                (Condition::of_scope(rule), Condition::of_clauses(rule), condition::named_commands(rule))
            })
            .unwrap_or_default();
        let mut rule = Self {
            name,
            effect,
            allowance: Allowance::default(),
            any_owner: false,
            principal: policy.principal_constraint(),
            action: policy.action_constraint(),
            environment: Variables::default(),
            line,
            scope,
            conditions,
            is_about_each_command: policy.to_string().contains(EACH_COMMAND),
            named_commands,
        };
        for (key, value) in policy.annotations() {
            if !rule.read(key, value).map_err(|fault| format!("@{key}({value:?}): {fault}"))? {
                return Err(format!("@{key}: unknown annotation, expected one of {KNOWN}"));
            }
        }
        Ok(rule)
    }

    /// Whether what a command sets and opens is among what it permits.
    pub(super) fn covers(&self, subject: &Subject<'_>) -> bool {
        self.uncovered(subject).is_empty() && !self.excludes_redirections(subject)
    }

    /// The variables of a command that it does not permit.
    pub(super) fn uncovered<'a>(&self, subject: &Subject<'a>) -> Vec<&'a str> {
        let Subject::Command(facts) = subject else { return Vec::new() };
        let is_permitted = |name: &&str| facts.sets_harmlessly(name) || self.environment.covers(name);
        facts.variables().into_iter().filter(|name| !is_permitted(name)).collect()
    }

    /// Whether the text has redirections that it does not permit: it is about single commands, and not about these.
    pub(super) fn excludes_redirections(&self, subject: &Subject<'_>) -> bool {
        let Subject::Command(facts) = subject else { return false };
        // the text of a named command is not the caller's
        if facts.are_of_named_command() {
            return false;
        }
        let is_about_redirections = || self.conditions.iter().any(|condition| condition.is_about(REDIRECTIONS));
        self.is_about_each_command && opens_files(facts.analysis()) && !is_about_redirections()
    }

    /// Returns whether the annotation is known.
    fn read(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            "id" if value.is_empty() || value.contains(char::is_control) => return Err("expected a name".to_owned()),
            "id" | "description" => {}
            "max_timeout" | "max_concurrent" | "max_output" | "any_owner" | "environment"
                if self.effect == Effect::Forbid =>
            {
                return Err("allowed only on permit rules".to_owned());
            }
            "max_timeout" => self.allowance.timeout = Some(timeout(value)?),
            "max_concurrent" => self.allowance.concurrent = Some(concurrent(value)?),
            "max_output" => self.allowance.output_bytes = Some(parse_size(value)?),
            "environment" => self.environment = Variables::parse(value)?,
            // has no value, like other annotations of Cedar that are flags
            "any_owner" if value.is_empty() => self.any_owner = true,
            "any_owner" => return Err("takes no value: @any_owner".to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    let positive = humantime::parse_duration(text).ok().filter(|timeout| !timeout.is_zero());
    positive.ok_or_else(|| "expected a duration such as 30s or 10m".to_owned())
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
        assert_eq!(read.allowance, Allowance { timeout, concurrent: Some(20), output_bytes: Some(64 << 20) });
        let plain = rule("forbid(principal, action, resource);").unwrap();
        assert_eq!((plain.name.as_str(), plain.effect, plain.any_owner), ("line 7", Effect::Forbid, false));
        assert_eq!(plain.allowance, Allowance::default());
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
        ] {
            let refused = rule(&format!("{annotation} permit(principal, action, resource);")).unwrap_err();
            assert!(refused.starts_with(annotation.split('(').next().unwrap()), "{refused}");
        }
        let refused = rule(r#"@max_timeout("1s") forbid(principal, action, resource);"#).unwrap_err();
        assert!(refused.contains("allowed only on permit"), "{refused}");
    }
}
