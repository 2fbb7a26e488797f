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

/// The action of a call: its RPC, or what it is judged as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Action {
    pub(super) name: &'static str,
    /// The group of actions that it is in.
    pub(super) group: Option<&'static str>,
}

/// A call to decide.
pub(super) struct Call<'a> {
    pub(super) caller: &'a Caller,
    pub(super) rpc: Rpc,
    pub(super) subject: &'a Subject<'a>,
    /// Those that decide it.
    pub(super) rules: &'a CallerRules,
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
    pub(super) entities: &'a Entities,
    /// The rules that decide it.
    pub(super) set: &'a PolicySet,
}

impl Policy {
    /// The question that a call, or one command of its text, puts to Cedar.
    pub(super) fn ask(
        &self,
        call: &Call<'_>,
        command: Option<&SimpleCommand>,
    ) -> Result<(Request, Arc<Entities>), Box<dyn Error>> {
        let Call { caller, rpc, subject, rules, context } = call;
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
        let mut entities = Arc::clone(&rules.entities);
        if !others.is_empty() {
            entities = Arc::new(Entities::clone(&entities).add_entities(others, None)?);
        }
        let action = uid(&names.action, Action::of(*rpc, subject).name);
        // not validated against the schema: attributes that a command lacks are missing from the context
        let request = Request::new(principal, action, resource, Context::from_pairs(context)?, None)?;
        Ok((request, entities))
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

    /// An identity, as a member of its roles, and of those that a token gives it.
    pub(super) fn identity(&self, name: &str, by_token: &[String]) -> Result<Entity, Box<dyn Error>> {
        let attributes = HashMap::from([("name".to_owned(), Value::new_string(name.to_owned()))]);
        let roles = self.roles.of(name).chain(by_token.iter().map(String::as_str));
        let roles = roles.map(|role| uid(&self.names.role, role)).collect();
        Ok(Entity::new(uid(&self.names.identity, name), attributes, roles)?)
    }

    pub(super) fn agent_attributes(&self) -> impl Iterator<Item = (String, Value)> {
        let labels = self.agent.labels.iter().map(|(key, value)| Value::new_string(format!("{key}={value}")));
        let hostname = Value::new_string(self.agent.hostname.clone());
        [("hostname".to_owned(), hostname), ("labels".to_owned(), Value::new_set(labels))].into_iter()
    }
}

impl Action {
    pub(super) fn of(rpc: Rpc, subject: &Subject<'_>) -> Self {
        match subject {
            Subject::Identity(_) => Self { name: "CheckAs", group: None },
            Subject::Port(used) => Self { name: used.action.as_str(), group: rpc.group() },
            Subject::File(file) => Self { name: file.action.as_str(), group: rpc.group() },
            _ => Self { name: rpc.as_str(), group: rpc.group() },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use cedar_policy::Authorizer;

    use super::*;
    use crate::call::caller::Transport;
    use crate::identity::Identity;
    use crate::policy::{AgentFacts, Endpoint, FileAction, PortAction, Roles};

    /// With rules of every scope, and others that fail to be evaluated.
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
            r#"action == Action::"ReadFile""#,
            r#"action in Action::"read""#,
            r#"action in Action::"start""#,
            r#"action in Action::"files""#,
            r#"action in [Action::"Attach", Action::"Execute", Action::"Forward"]"#,
        ];
        let mut text = String::new();
        let of_bob = r#"when { resource has owner && resource.owner.name == "bob" }"#;
        for (effect, condition) in [("permit", ""), ("forbid", of_bob)] {
            for principal in principals {
                for action in actions {
                    text += &format!("{effect}({principal}, {action}, resource) {condition};\n");
                }
            }
        }
        text +=
            r#"forbid(principal == Identity::"bob", action in Action::"start", resource) when { context.uses_sudo };"#;
        text += "\n";
        text += r#"permit(principal, action in Action::"files", resource) when { context.path == "/" };"#;
        let roles = BTreeMap::from([("ops".to_owned(), vec!["carl*".to_owned()]), ("audit".to_owned(), Vec::new())]);
        Policy::parse("policy".as_ref(), &text, Some(&Roles::new(&roles).unwrap()), AgentFacts::default()).unwrap()
    }

    /// The decision, the rules that determined it, and those that failed.
    fn decided(set: &PolicySet, request: &Request, entities: &Entities) -> (bool, BTreeSet<String>, BTreeSet<String>) {
        let response = Authorizer::new().is_authorized(request, set, entities);
        let ids = response.diagnostics().reason().map(ToString::to_string).collect();
        let failed = response.diagnostics().errors().map(ToString::to_string).collect();
        (response.decision() == cedar_policy::Decision::Allow, ids, failed)
    }

    #[test]
    fn the_rules_that_are_left_out_decide_nothing() {
        let policy = policy();
        let (mut left_out, mut has_failed) = (0, false);
        let port = PortUse { action: PortAction::Forward, endpoint: Endpoint::Unix("/run/x".to_owned()), user: None };
        let file = FileUse { action: FileAction::Read, path: None, user: None };
        for name in ["anna", "bob", "carl"] {
            let caller = Caller::new(Identity::from_name(name).unwrap(), Transport::Unix, "");
            for rpc in Rpc::ALL {
                let subjects = [
                    Subject::Agent,
                    Subject::Identity("bob"),
                    Subject::Port(&port),
                    Subject::File(&file),
                    Subject::Execution { id: "1", owner: "anna" },
                    Subject::Execution { id: "1", owner: "bob" },
                ];
                for subject in &subjects {
                    let rules = policy.caller_rules(&caller, *rpc, subject).unwrap();
                    let call = Call { caller: &caller, rpc: *rpc, subject, rules: &rules, context: Vec::new() };
                    let (request, entities) = policy.ask(&call, None).unwrap();
                    let by_all = decided(&policy.set, &request, &entities);
                    assert_eq!(decided(&rules.set, &request, &entities), by_all);
                    has_failed |= !by_all.2.is_empty();
                    left_out = left_out.max(policy.len() - rules.set.num_of_policies());
                }
            }
        }
        assert!(has_failed && left_out > policy.len() / 2, "{left_out} of {}", policy.len());
    }
}
