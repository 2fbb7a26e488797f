//! Who may do what: policies in Cedar, over agents that have one.

mod approvals;
mod each_command;
mod environment;
mod examples;
mod explained;
mod matrix;
mod open_calls;
mod ownership;
mod programs;
mod rules;
mod tooling;

use telexec_client::CommandCheck;
use telexec_executor::{Command, CommandBuilder, ExecutorError};
use telexec_tests::{Agent, AgentBuilder, Certs, Leaf, Pair, run, within};
use tempfile::TempDir;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// An agent with mTLS and a policy.
struct Ruled {
    agent: Agent,
    certs: Certs,
    /// Where its audit log is, if it has one.
    _log: Option<TempDir>,
}

impl Ruled {
    fn start(policy: &str, config: &str) -> Self {
        Self::start_with(policy, config, |builder| builder)
    }

    fn start_with(policy: &str, config: &str, more: impl FnOnce(AgentBuilder) -> AgentBuilder) -> Self {
        let certs = Certs::new();
        let agent = more(Agent::builder().mtls(&certs).policy(policy).config(config)).start();
        Self { agent, certs, _log: None }
    }

    fn pair(&self, name: &str) -> Pair {
        self.certs.ca.issue(Leaf::client(name))
    }

    /// The agent, as this caller has it.
    async fn to(&self, name: &str) -> telexec_client::Agent {
        self.agent.connect_as(&self.pair(name)).await
    }

    async fn check(&self, name: &str, command: CommandBuilder) -> CommandCheck {
        within(self.to(name).await.check(&command.build().unwrap())).await.unwrap()
    }

    /// Runs it as this caller; the name of the rule that denies it.
    async fn denied(&self, name: &str, command: CommandBuilder) -> Option<String> {
        match run(&self.to(name).await.executor(), command).await {
            Ok(_) => None,
            Err(ExecutorError::Denied { rule, reason, .. }) => {
                Some(rule.unwrap_or_else(|| panic!("no rule: {reason}")))
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// The rule that a denial names.
fn rule(status: &Status) -> String {
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    let info = status.get_details_error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.domain.as_str()), ("POLICY_DENIED", "telexec"));
    info.metadata["rule"].clone()
}

fn sh(text: &str) -> CommandBuilder {
    Command::shell(text)
}
