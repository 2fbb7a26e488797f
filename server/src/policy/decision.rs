//! What a policy decides on a call.

use std::sync::Arc;

use telexec_engine::Allowance;
use telexec_executor::ExecutorError;

use super::rule::Rule;

/// How much a denial says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// That it is one.
    Verdict,
    /// Which rule is nearest, and which conditions do not hold: each is evaluated by itself, which takes time.
    Explained,
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

    /// The decision of several permitting rules: the strictest of each limit.
    pub(super) fn permitted_by(applied: &[&Rule]) -> Self {
        let mut rules: Vec<_> = applied.iter().map(|rule| rule.name.clone()).collect();
        rules.sort_unstable();
        rules.dedup();
        Self {
            allowed: true,
            any_owner: applied.iter().any(|rule| rule.any_owner),
            reason: format!("the policy permits it: {}", rules.join(", ")),
            rules,
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
                Err(ExecutorError::Denied { rule: Some(rule), reason, nearest, missing })
            }
        }
    }
}
