//! What a policy decides on a call.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use telexec_engine::Allowance;
use telexec_executor::ExecutorError;

use super::rule::Rule;
use crate::identity::Identity;

/// How much a denial says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// That it is one.
    Verdict,
    /// Which rule is nearest, and which conditions do not hold: each is evaluated by itself, which takes time.
    Explained,
}

/// What a start needs beside the rules that permit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequiredApproval {
    /// The rules that ask for it.
    pub(crate) rules: BTreeSet<String>,
    /// How long it is valid.
    pub(crate) lifetime: Duration,
}

impl RequiredApproval {
    /// The rules, for people.
    pub(crate) fn names(&self) -> String {
        self.rules.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// One that is enough for both.
    fn and(self, other: Self) -> Self {
        let lifetime = self.lifetime.min(other.lifetime);
        Self { rules: self.rules.into_iter().chain(other.rules).collect(), lifetime }
    }
}

/// The rules that permit a call, or one command of its text.
#[derive(Default)]
pub(super) struct Permit<'a> {
    pub(super) rules: Vec<&'a Rule>,
    /// `None`: one of them permits it without.
    pub(super) approval: Option<RequiredApproval>,
    /// One of them has it recorded.
    pub(super) record: bool,
}

impl<'a> Permit<'a> {
    /// By the rules that apply, of which `covering` permit what the command sets and opens too.
    pub(super) fn new(rules: Vec<&'a Rule>, covering: &[&Rule]) -> Self {
        let lifetimes: Option<Vec<_>> = covering.iter().map(|rule| rule.approval).collect();
        let approval = lifetimes.and_then(|lifetimes| lifetimes.into_iter().min()).map(|lifetime| RequiredApproval {
            rules: covering.iter().map(|rule| rule.name.clone()).collect(),
            lifetime,
        });
        Self { rules, approval, record: covering.iter().any(|rule| rule.record) }
    }

    /// What permits both.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        let approval = match (self.approval, other.approval) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        Self { approval, record: self.record || other.record, ..self }
    }
}

/// The decision on a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Decision {
    pub(crate) allowed: bool,
    /// The rules that determined it; none: no rule permits it.
    pub(crate) rules: Vec<String>,
    /// The reason, worded for the caller. It is logged, so nothing of a command is in it.
    pub(crate) reason: String,
    /// The rule that came nearest to permitting it.
    pub(crate) nearest: Option<String>,
    /// Its conditions that do not hold, or those of the rules that forbid it, for the caller alone.
    pub(crate) missing: Vec<String>,
    /// The rules permit it once another identity has approved it.
    pub(crate) approval: Option<RequiredApproval>,
    /// The request for that, which may be pending.
    pub(crate) approval_id: Option<String>,
    pub(crate) is_pending: bool,
    /// It permits to attach to what was started with the id before, and to start nothing.
    pub(crate) repeats: bool,
    /// Who has approved it.
    pub(crate) approved_by: Option<Identity>,
    /// What the command is sent and what it writes is to be recorded.
    pub(crate) record: bool,
    /// The limits that the rules set for a command.
    pub(crate) allowance: Allowance,
    /// Applies to executions of others too.
    pub(crate) any_owner: bool,
    /// The digest of the policy; `None`: there is no policy.
    pub(crate) policy: Option<Arc<str>>,
}

impl Decision {
    /// The decision where there is no policy.
    pub(crate) fn without_policy() -> Self {
        Self {
            allowed: true,
            reason: "the agent has no policy: any authenticated caller may do this".to_owned(),
            ..Self::default()
        }
    }

    /// The denial of what cannot be put to Cedar, such as two entities with one name.
    pub(super) fn undecided(error: &dyn Error) -> Self {
        Self { reason: format!("the policy cannot decide this: {error}"), ..Self::default() }
    }

    /// The decision of several permitting rules: the strictest of each limit.
    pub(super) fn permitted_by(Permit { rules: applied, approval, record }: Permit<'_>) -> Self {
        let mut rules: Vec<_> = applied.iter().map(|rule| rule.name.clone()).collect();
        rules.sort_unstable();
        rules.dedup();
        let reason = match &approval {
            None => format!("the policy permits it: {}", rules.join(", ")),
            Some(approval) => {
                format!("the rule {} requires another identity's approval", approval.names())
            }
        };
        Self {
            allowed: approval.is_none(),
            any_owner: applied.iter().any(|rule| rule.any_owner),
            reason,
            rules,
            approval,
            record,
            allowance: applied.iter().fold(Allowance::default(), |least, rule| least.and(rule.allowance)),
            ..Self::default()
        }
    }

    /// # Errors
    /// It was denied.
    pub(crate) fn permitted(&self) -> Result<(), ExecutorError> {
        match self.allowed {
            true => Ok(()),
            false => {
                let rule = if self.rules.is_empty() { "default".to_owned() } else { self.rules.join(", ") };
                let (reason, nearest, missing) = (self.reason.clone(), self.nearest.clone(), self.missing.clone());
                Err(match &self.approval_id {
                    Some(id) if self.is_pending => {
                        let rule = self.approval.as_ref().map(RequiredApproval::names).unwrap_or_default();
                        ExecutorError::ApprovalRequired { approval_id: id.clone(), rule, reason }
                    }
                    _ => ExecutorError::Denied { rule: Some(rule), reason, nearest, missing },
                })
            }
        }
    }
}
