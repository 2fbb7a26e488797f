//! The question that a call puts to Cedar: its principal, action, resource and context.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::Arc;

use cedar_policy::{Context, Entities, Entity, PolicySet, Request, RestrictedExpression as Value};
use telexec_shell::SimpleCommand;

use super::caller_rules::CallerRules;
use super::schema::uid;
use super::simple_command::{self, EACH_COMMAND};
use super::{Facts, FileUse, Policy, PortUse};
use crate::approvals::Approval;
use crate::call::Rpc;
use crate::call::caller::Caller;

/// The resource of a call.
pub(crate) enum Subject<'a> {
    /// The agent itself.
    Agent,
    /// A command to be started.
    Command(&'a Facts),
    /// A port or a Unix socket.
    Port(&'a PortUse),
    /// A file.
    File(&'a FileUse),
    /// A request for an approval.
    Approval(&'a Approval),
    /// Another identity, to ask what it may do: the action CheckAs.
    Identity(&'a str),
    /// An execution, with the identity that owns it.
    Execution {
        /// Its id.
        id: &'a str,
        /// Its owner.
        owner: &'a str,
    },
}

/// A call to decide.
pub(super) struct Call<'a> {
    pub(super) caller: &'a Caller,
    pub(super) rpc: Rpc,
    pub(super) subject: &'a Subject<'a>,
    /// Of a command, but for its single ones.
    pub(super) context: Vec<(String, Value)>,
}

/// A call, or one command of its text, as Cedar is asked about it.
pub(super) struct Question<'a> {
    pub(super) caller: &'a Caller,
    pub(super) action: &'static str,
    pub(super) subject: &'a Subject<'a>,
    /// The command, where those of a text are decided one by one.
    pub(super) command: Option<&'a SimpleCommand>,
    pub(super) request: &'a Request,
    pub(super) rules: &'a CallerRules,
}

impl Policy {
    /// The question that a call, or one command of its text, puts to Cedar.
    pub(super) fn ask(
        &self,
        call: &Call<'_>,
        command: Option<&SimpleCommand>,
    ) -> Result<(Request, CallerRules), Box<dyn Error>> {
        let Call { caller, rpc, subject, context } = call;
        let names = &self.names;
        let principal = uid(&names.identity, caller.identity.as_str());
        let agent = uid(&names.agent, &self.agent.hostname);
        let transport = caller.transport.as_str();
        let call = || vec![("transport".to_owned(), Value::new_string(transport.to_owned()))];
        let mut others = Vec::new();
        let (resource, context) = match subject {
            Subject::Agent => (agent.clone(), call()),
            Subject::Command(_) => {
                let command = command.and_then(simple_command::record).map(|record| (EACH_COMMAND.to_owned(), record));
                (agent.clone(), context.iter().cloned().chain(command).collect())
            }
            Subject::Port(used) => (agent.clone(), call().into_iter().chain(used.context()).collect()),
            Subject::File(file) => (agent.clone(), call().into_iter().chain(file.context()).collect()),
            Subject::Approval(asked) => {
                if asked.identity != caller.identity {
                    others.push(self.identity(asked.identity.as_str(), &[])?);
                }
                (agent.clone(), call().into_iter().chain(self.context_of(asked)).collect())
            }
            Subject::Identity(name) => {
                if *name != caller.identity.as_str() {
                    others.push(self.identity(name, &[])?);
                }
                let identity = ("identity".to_owned(), Value::new_entity_uid(uid(&names.identity, name)));
                (agent.clone(), call().into_iter().chain([identity]).collect())
            }
            Subject::Execution { id, owner } => {
                let execution = uid(&names.execution, id);
                let attributes = [("owner".to_owned(), Value::new_entity_uid(uid(&names.identity, owner)))];
                let attributes = attributes.into_iter().chain(self.agent_attributes()).collect();
                others.push(Entity::new(execution.clone(), attributes, HashSet::from([agent.clone()]))?);
                if *owner != caller.identity.as_str() {
                    others.push(self.identity(owner, &[])?);
                }
                (execution, call())
            }
        };
        let action = action_name(*rpc, subject);
        let make = || self.caller_rules(caller, *rpc, subject);
        let mut rules = self.caller_rules.get(caller.identity.as_str(), caller.roles(), action, make)?;
        if !others.is_empty() {
            rules.entities = Arc::new(Entities::clone(&rules.entities).add_entities(others, None)?);
        }
        let action = uid(&names.action, action);
        // not validated against the schema: attributes that a command lacks are missing from the context
        let request = Request::new(principal, action, resource, Context::from_pairs(context)?, None)?;
        Ok((request, rules))
    }

    /// The context of Approve and Reject.
    fn context_of(&self, Approval { identity, rules, start, .. }: &Approval) -> [(String, Value); 3] {
        let named_command = start.named_command.clone().unwrap_or_default();
        [
            ("identity".to_owned(), Value::new_entity_uid(uid(&self.names.identity, identity.as_str()))),
            ("rules".to_owned(), Value::new_set(rules.iter().cloned().map(Value::new_string))),
            ("named_command".to_owned(), Value::new_string(named_command)),
        ]
    }

    /// What decides this action of a caller, whatever it is applied to.
    fn caller_rules(&self, caller: &Caller, rpc: Rpc, subject: &Subject<'_>) -> Result<CallerRules, Box<dyn Error>> {
        let (name, group) = (action_name(rpc, subject), action_group(rpc, subject));
        let agent = uid(&self.names.agent, &self.agent.hostname);
        let agent = Entity::new(agent, self.agent_attributes().collect(), HashSet::new())?;
        let principal = self.identity(caller.identity.as_str(), caller.roles())?;
        let groups = group.map(|group| uid(&self.names.action, group)).into_iter().collect();
        let action = Entity::new_no_attrs(uid(&self.names.action, name), groups);
        let entities = Arc::new(Entities::from_entities([principal, agent, action], None)?);
        let actions: Vec<_> = [name].into_iter().chain(group).collect();
        let rules: Vec<_> = self.rules_about(caller).filter(|(_, rule)| rule.is_about_action(&actions)).collect();
        let copied = if rules.len() == self.rules.len() { 0 } else { rules.len() };
        let set = match copied {
            0 if !rules.is_empty() => Arc::clone(&self.set),
            _ => {
                let rule = |id| self.set.policy(id).cloned().ok_or("a rule is missing");
                let rules = rules.into_iter().map(|(id, _)| rule(id)).collect::<Result<Vec<_>, _>>()?;
                Arc::new(PolicySet::from_policies(rules)?)
            }
        };
        Ok(CallerRules { entities, set, copied })
    }

    /// An identity, as a member of its roles, and of those that a token gives it.
    fn identity(&self, name: &str, by_token: &[String]) -> Result<Entity, Box<dyn Error>> {
        let attributes = HashMap::from([("name".to_owned(), Value::new_string(name.to_owned()))]);
        let roles = self.roles.of(name).chain(by_token.iter().map(String::as_str));
        let roles = roles.map(|role| uid(&self.names.role, role)).collect();
        Ok(Entity::new(uid(&self.names.identity, name), attributes, roles)?)
    }

    fn agent_attributes(&self) -> impl Iterator<Item = (String, Value)> {
        let labels = self.agent.labels.iter().map(|(key, value)| Value::new_string(format!("{key}={value}")));
        let hostname = Value::new_string(self.agent.hostname.clone());
        [("hostname".to_owned(), hostname), ("labels".to_owned(), Value::new_set(labels))].into_iter()
    }
}

/// The group that the action of a call is in, if it is in one.
fn action_group(rpc: Rpc, subject: &Subject<'_>) -> Option<&'static str> {
    match subject {
        Subject::Identity(_) => None,
        _ => Some(rpc.group()),
    }
}

/// The action of a call: its RPC, or what it is judged as.
pub(super) fn action_name(rpc: Rpc, subject: &Subject<'_>) -> &'static str {
    match subject {
        Subject::Identity(_) => "CheckAs",
        Subject::Port(used) => used.action.as_str(),
        Subject::File(file) => file.action.as_str(),
        _ => rpc.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use cedar_policy::Authorizer;

    use super::*;
    use crate::call::caller::Transport;
    use crate::identity::Identity;
    use crate::policy::{AgentFacts, Roles};

    /// With rules of every scope.
    fn policy() -> Policy {
        let principals = [
            "principal",
            r#"principal == Identity::"anna""#,
            r#"principal in Identity::"anna""#,
            r#"principal in Role::"ops""#,
            r#"principal in Role::"audit""#,
            "principal is Identity",
            r#"principal is Identity in Role::"ops""#,
        ];
        let actions = [
            "action",
            r#"action == Action::"Execute""#,
            r#"action == Action::"CheckAs""#,
            r#"action in Action::"read""#,
            r#"action in Action::"start""#,
            r#"action in [Action::"Attach", Action::"Execute", Action::"Forward"]"#,
        ];
        let mut text = String::new();
        for (effect, condition) in
            [("permit", ""), ("forbid", r#"when { resource has owner && resource.owner.name == "bob" }"#)]
        {
            for principal in principals {
                for action in actions {
                    text += &format!("{effect}({principal}, {action}, resource) {condition};\n");
                }
            }
        }
        let roles = BTreeMap::from([("ops".to_owned(), vec!["carl*".to_owned()]), ("audit".to_owned(), Vec::new())]);
        Policy::parse("policy".as_ref(), &text, Some(&Roles::new(&roles).unwrap()), AgentFacts::default()).unwrap()
    }

    /// The decision, the rules that determined it, and how many failed.
    fn decided(set: &PolicySet, request: &Request, rules: &CallerRules) -> (bool, BTreeSet<String>, usize) {
        let response = Authorizer::new().is_authorized(request, set, &rules.entities);
        let ids = response.diagnostics().reason().map(ToString::to_string).collect();
        (response.decision() == cedar_policy::Decision::Allow, ids, response.diagnostics().errors().count())
    }

    #[test]
    fn the_rules_that_are_left_out_decide_nothing() {
        let policy = policy();
        let mut copied = 0;
        for name in ["anna", "bob", "carl"] {
            let caller = Caller::new(Identity::from_name(name).unwrap(), Transport::Unix, "");
            for rpc in Rpc::ALL {
                let subjects = [
                    Subject::Agent,
                    Subject::Identity("bob"),
                    Subject::Execution { id: "1", owner: "anna" },
                    Subject::Execution { id: "1", owner: "bob" },
                ];
                for subject in &subjects {
                    let call = Call { caller: &caller, rpc: *rpc, subject, context: Vec::new() };
                    let (request, rules) = policy.ask(&call, None).unwrap();
                    assert_eq!(decided(&rules.set, &request, &rules), decided(&policy.set, &request, &rules));
                    copied = rules.copied.max(copied);
                }
            }
        }
        assert!(copied > 0 && copied < policy.len() * 2 / 3, "{copied} of {}", policy.len());
    }
}
