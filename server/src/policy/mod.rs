//! Authorization: each call is decided by a policy in Cedar.
//!
//! What no rule permits is denied, and so is what any rule forbids. Evaluation fails closed: a `permit` that cannot be
//! evaluated, since it uses an attribute that the call lacks, does not permit, and such a `forbid` forbids. A rule permits
//! only those environment variables of a command that it names.

mod action_group;
mod caller_rules;
mod check;
mod condition;
mod decision;
mod depth;
mod environment;
mod explanation;
mod facts;
mod fault;
mod file_use;
mod port_use;
mod question;
mod reliance;
mod role;
mod rule;
mod schema;
mod simple_command;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cedar_policy::{
    Authorizer, Effect, EntityUid, PolicyId, PolicySet, PrincipalConstraint, ValidationMode, Validator,
};
use telexec_engine::LocalExecutor;
use telexec_shell::SimpleCommand;
use tracing::{info, warn};

use self::caller_rules::{CallerRules, CallerRulesCache, attributes};
use self::check::{Check, named_roles, warn_of_shares};
use self::decision::Permit;
pub(crate) use self::decision::{Decision, Detail, RequiredApproval};
use self::depth::most_operators;
pub(crate) use self::environment::is_harmless;
pub(crate) use self::facts::{Facts, is_plain};
pub use self::fault::PolicyError;
use self::fault::Source;
pub(crate) use self::file_use::{FileAction, FileUse};
pub(crate) use self::port_use::{Endpoint, PortAction, PortUse};
pub(crate) use self::question::Subject;
use self::question::{Action, Call, Question};
pub(crate) use self::role::Roles;
use self::rule::{Rule, may_contain, rules};
pub(crate) use self::schema::SCHEMA;
use self::schema::{Names, schema, uid};
use self::simple_command::EACH_COMMAND;
use crate::call::Rpc;
use crate::call::caller::Caller;
use crate::digest::sha256;
use crate::reload;

/// A policy that is longer is not evaluated where others wait.
const MAX_QUICK_BYTES: usize = 32 * 1024;
/// The same of one that is evaluated for each command of a text.
const MAX_QUICK_BYTES_EACH: usize = 4 * 1024;

/// The same of one with a rule that has more operators: evaluation is recursive, and Cedar gives up where the stack ends.
const MAX_QUICK_OPERATORS: usize = 64;
/// Of a thread that reads or evaluates rules with as many operators as there may be, with twice what that takes: more without
/// optimization. Only what is touched takes memory, but a machine that has less in all makes no such thread.
pub(crate) const STACK_BYTES: usize = if cfg!(debug_assertions) { 64 } else { 16 } * 1024 * 1024;

/// The file of a policy, and the roles and facts that it may refer to.
#[derive(Clone, Debug)]
pub(crate) struct PolicyFile {
    pub(crate) path: PathBuf,
    pub(crate) roles: Roles,
    pub(crate) agent: AgentFacts,
}

/// The attributes of the agent in policies.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentFacts {
    pub(crate) hostname: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The names of its named commands.
    pub(crate) named_commands: BTreeSet<String>,
    /// It keeps an audit log, and can record executions.
    pub(crate) keeps_audit_log: bool,
    /// Processors cannot be divided between callers: for the log.
    pub(crate) lacks_shares: bool,
}

/// A policy in use.
pub(crate) struct Policy {
    authorizer: Authorizer,
    set: Arc<PolicySet>,
    rules: HashMap<PolicyId, Rule>,
    names: Names,
    roles: Roles,
    agent: AgentFacts,
    caller_rules: CallerRulesCache,
    /// It is short enough to be evaluated where others wait, without an explanation.
    pub(crate) is_quick: bool,
    /// SHA-256 of its text, in hexadecimal.
    pub(crate) digest: Arc<str>,
    /// Likely mistakes, with their position.
    pub(crate) warnings: Vec<String>,
}

impl reload::Source for PolicyFile {
    type Loaded = Policy;
    type Error = PolicyError;
    const WHAT: &str = "policy";

    fn files(&self) -> Vec<&Path> {
        vec![&self.path]
    }

    fn load(&self) -> Result<Policy, PolicyError> {
        Policy::parse(&self.path, &self.text()?, Some(&self.roles), self.agent.clone())
    }

    fn log_loaded(policy: &Policy) {
        info!(rules = policy.len(), digest = %policy.digest, "policy loaded");
        for warning in &policy.warnings {
            warn!(warning, "possible mistake in the policy");
        }
        warn_of_shares(&policy.agent, &policy.rules);
    }
}

impl PolicyFile {
    /// The same, with what is known once there is an engine.
    pub(crate) fn of_agent(self, engine: &LocalExecutor) -> Self {
        Self { agent: AgentFacts { lacks_shares: !engine.divides_processors(), ..self.agent }, ..self }
    }

    /// Loads it without the configuration that defines its roles.
    ///
    /// # Errors
    /// It is invalid, or cannot be read.
    pub(crate) fn load_without_roles(&self) -> Result<Policy, PolicyError> {
        Policy::parse(&self.path, &self.text()?, None, self.agent.clone())
    }

    fn text(&self) -> Result<String, PolicyError> {
        let read = |source| PolicyError::Read { path: self.path.clone(), source };
        std::fs::read_to_string(&self.path).map_err(read)
    }
}

impl Policy {
    /// Parses a policy, and checks it against the schema and the roles; without `roles` all roles are assumed to exist. `path`
    /// is its name in errors.
    ///
    /// # Errors
    /// All faults found; or there can be no thread with the stack that this takes.
    pub(crate) fn parse(
        path: &Path,
        text: &str,
        roles: Option<&Roles>,
        agent: AgentFacts,
    ) -> Result<Self, PolicyError> {
        let no_thread = |source| PolicyError::Thread { path: path.to_owned(), source };
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("policy".into()).stack_size(STACK_BYTES);
            let parse = || Self::parse_here(path, text, roles, agent);
            let parsed = builder.spawn_scoped(scope, parse).map_err(no_thread)?.join();
            parsed.unwrap_or_else(|_| Err(no_thread(std::io::Error::other("it panicked"))))
        })
    }

    fn parse_here(path: &Path, text: &str, roles: Option<&Roles>, agent: AgentFacts) -> Result<Self, PolicyError> {
        let source = Source::new(path, text);
        let operators = most_operators(&source, text).map_err(|faults| source.invalid(faults))?;
        let schema = schema().map_err(|error| source.invalid(vec![error]))?;
        let set: PolicySet = text.parse().map_err(|error: cedar_policy::ParseErrors| {
            source.invalid(error.iter().map(|error| source.located(error)).collect())
        })?;
        let mut faults = Vec::new();
        let rules = rules(&set, &source, &mut faults);
        let (schema, names) = schema;
        let checked = Validator::new(schema.clone()).validate(&set, ValidationMode::Strict);
        let check =
            Check { set: &set, rules: &rules, schema: &schema, names: &names, checked: &checked, source: &source };
        faults.extend(check.faults());
        if let Some(roles) = roles {
            faults.extend(check.missing(roles, &agent));
        }
        if !faults.is_empty() {
            return Err(source.invalid(faults));
        }
        let warnings = check.warnings();
        let (roles, digest) = (roles.cloned().unwrap_or_default(), sha256(text.as_bytes()).into());
        let (authorizer, set, caller_rules) = (Authorizer::new(), Arc::new(set), CallerRulesCache::default());
        let is_about_each_command = may_contain(attributes(rules.values()).as_ref(), EACH_COMMAND);
        let max_bytes = if is_about_each_command { MAX_QUICK_BYTES_EACH } else { MAX_QUICK_BYTES };
        let is_quick = text.len() <= max_bytes && operators <= MAX_QUICK_OPERATORS;
        Ok(Self { authorizer, set, rules, names, roles, agent, caller_rules, is_quick, digest, warnings })
    }

    /// The number of rules.
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// The roles that its rules name.
    pub(crate) fn named_roles(&self) -> BTreeSet<String> {
        let roles = self.set.policies().flat_map(|policy| named_roles(policy, &self.names));
        roles.collect()
    }

    /// The named commands that its rules name.
    pub(crate) fn named_commands(&self) -> BTreeSet<String> {
        self.rules.values().flat_map(|rule| rule.named_commands.iter().cloned()).collect()
    }

    /// Decides a call: where rules look at the commands of a text one by one, each of these has to be permitted.
    pub(crate) fn decide(&self, caller: &Caller, rpc: Rpc, subject: &Subject<'_>, detail: Detail) -> Decision {
        let decision = match self.caller_rules(caller, rpc, subject) {
            Ok(rules) => self.decide_by(&rules, caller, rpc, subject, detail),
            Err(error) => Decision::undecided(&*error),
        };
        Decision { policy: Some(Arc::clone(&self.digest)), ..decision }
    }

    fn decide_by(
        &self,
        rules: &CallerRules,
        caller: &Caller,
        rpc: Rpc,
        subject: &Subject<'_>,
        detail: Detail,
    ) -> Decision {
        let looks_at = |attribute: &str| rules.may_look_at(attribute);
        let (commands, context) = match subject {
            Subject::Command(facts) => {
                let commands = if looks_at(EACH_COMMAND) { facts.commands() } else { None };
                (commands, facts.context(caller.transport.as_str(), looks_at))
            }
            _ => (None, Vec::new()),
        };
        let call = Call { caller, rpc, subject, rules, context };
        // if they are not known, once without one
        let commands = commands.map_or_else(|| vec![None], |commands| commands.into_iter().map(Some).collect());
        let permit = match commands[..] {
            [only] => self.decide_one(&call, only, detail),
            ref several => self.decide_all(&call, several, detail),
        };
        permit.map_or_else(|denied| *denied, Decision::permitted_by)
    }

    /// What permits all of these commands.
    ///
    /// # Errors
    /// One of them is denied: the first one that is forbidden, or else the first one that no rule permits.
    fn decide_all(
        &self,
        call: &Call<'_>,
        commands: &[Option<&SimpleCommand>],
        detail: Detail,
    ) -> Result<Permit<'_>, Box<Decision>> {
        let (mut permit, mut denied) = (Permit::default(), None);
        for command in commands {
            match self.decide_one(call, *command, Detail::Verdict) {
                Ok(other) => permit = permit.and(other),
                Err(decision) => {
                    let forbids = !decision.rules.is_empty();
                    if forbids || denied.is_none() {
                        denied = Some((command, decision));
                    }
                    if forbids {
                        break;
                    }
                }
            }
        }
        match denied {
            None => Ok(permit),
            Some((command, _)) if detail == Detail::Explained => self.decide_one(call, *command, detail),
            Some((_, decision)) => Err(decision),
        }
    }

    /// What permits a call, or one command of its text.
    ///
    /// # Errors
    /// It is denied.
    fn decide_one(
        &self,
        call: &Call<'_>,
        command: Option<&SimpleCommand>,
        detail: Detail,
    ) -> Result<Permit<'_>, Box<Decision>> {
        match self.ask(call, command) {
            Ok((request, entities)) => {
                let Call { caller, rpc, subject, rules, .. } = *call;
                let (action, set) = (Action::of(rpc, subject).name, &*rules.set);
                let call = Question { caller, action, subject, command, request: &request, entities: &entities, set };
                self.permit(&call, detail)
            }
            Err(error) => Err(Box::new(Decision::undecided(&*error))),
        }
    }

    /// Whether any rule may give this caller access to executions of others: only then their owners are looked up.
    pub(crate) fn may_reach_others(&self, caller: &Caller) -> bool {
        self.rules_about(caller).any(|(_, rule)| rule.any_owner)
    }

    /// Whether any rule may permit this caller to do this with some file. Without that no process is started for it.
    pub(crate) fn may_use_files(&self, caller: &Caller, action: FileAction) -> bool {
        self.may_permit(caller, &[action.as_str(), FileAction::GROUP])
    }

    /// The same of approving or rejecting some start.
    pub(crate) fn may_review(&self, caller: &Caller, rpc: Rpc) -> bool {
        let names: Vec<_> = [rpc.as_str()].into_iter().chain(rpc.group()).collect();
        self.may_permit(caller, &names)
    }

    /// Whether a rule about an action, or its group, may permit it to this caller.
    fn may_permit(&self, caller: &Caller, action: &[&str]) -> bool {
        self.rules_about(caller).any(|(_, rule)| rule.effect == Effect::Permit && rule.is_about_action(action))
    }

    /// The roles that the configuration and its token give a caller.
    pub(crate) fn roles_of<'a>(&'a self, caller: &'a Caller) -> impl Iterator<Item = &'a str> {
        self.roles.of(caller.identity.as_str()).chain(caller.roles().iter().map(String::as_str))
    }

    /// The rules whose principal this caller is, or has as a role.
    fn rules_about(&self, caller: &Caller) -> impl Iterator<Item = (&PolicyId, &Rule)> {
        let principal = uid(&self.names.identity, caller.identity.as_str());
        let roles: Vec<_> = self.roles_of(caller).map(|role| uid(&self.names.role, role)).collect();
        let is_in = move |group: &EntityUid| *group == principal || roles.contains(group);
        self.rules.iter().filter(move |(_, rule)| match &rule.principal {
            PrincipalConstraint::Any => true,
            PrincipalConstraint::Eq(one) => is_in(one),
            PrincipalConstraint::In(group) => is_in(group),
            PrincipalConstraint::Is(kind) => *kind == self.names.identity,
            PrincipalConstraint::IsIn(kind, group) => *kind == self.names.identity && is_in(group),
        })
    }

    /// What permits `call`.
    ///
    /// # Errors
    /// It is denied.
    fn permit(&self, call: &Question<'_>, detail: Detail) -> Result<Permit<'_>, Box<Decision>> {
        let response = self.authorizer.is_authorized(call.request, call.set, call.entities);
        let rule = |id: &PolicyId| self.rules.get(id);
        let failed = response.diagnostics().errors().filter_map(|error| match error {
            cedar_policy::AuthorizationError::PolicyEvaluationError(error) => rule(error.policy_id()),
        });
        let is_forbid = |rule: &&Rule| rule.effect == Effect::Forbid;
        let failed_forbids: Vec<_> = failed.filter(is_forbid).collect();
        let applied: Vec<_> = response.diagnostics().reason().filter_map(rule).collect();
        let permits = response.decision() == cedar_policy::Decision::Allow;
        if permits && failed_forbids.is_empty() {
            let covering: Vec<_> = applied.iter().copied().filter(|rule| rule.covers(call)).collect();
            if !covering.is_empty() {
                return Ok(Permit::new(applied, &covering));
            }
        }
        // rules that permit have no part in a denial
        let forbids: Vec<_> = applied.into_iter().filter(is_forbid).chain(failed_forbids).collect();
        Err(Box::new(match forbids.is_empty() {
            true => self.unpermitted(call, detail),
            false => self.forbidden(call, forbids, detail),
        }))
    }
}
