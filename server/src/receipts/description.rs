//! What a receipt says of a request: who asks for what, and why that is permitted. Never values of variables or input, which
//! may be secrets; and parts too long for the 64 KiB of the proto are left out.

use serde::{Deserialize, Serialize};
use telexec_executor::{Command, ExecutionId, Program};
use telexec_receipt::{Agent, COMMAND, Caller, Limits, Policy, Request, STDIN, Subject};

use crate::audit::json_length;
use crate::call::Call;
use crate::digest::sha256_of_parts;
use crate::policy::Decision;
use crate::timestamp::ms;

/// Of parts of it, each as it is in JSON: longer ones are left out.
const MAX_TEXT: u64 = 16 * 1024;
const MAX_NAMES: u64 = 4 * 1024;
const MAX_RULES: u64 = 4 * 1024;
const MAX_SHELL: u64 = 512;

/// What is known of an execution before its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) subject: Vec<Subject>,
    pub(super) execution_id: String,
    pub(super) agent: Agent,
    pub(super) caller: Caller,
    pub(super) policy: Option<Policy>,
    pub(super) request: Request,
}

pub(super) fn describe(agent: &Agent, call: &Call, id: &ExecutionId, command: &Command, decision: &Decision) -> Asked {
    let caller = &call.caller;
    let mut subject = vec![Subject::sha256(COMMAND, sha256_of_parts(parts(command.program())))];
    if !command.stdin().is_empty() {
        subject.push(Subject::sha256(STDIN, sha256_of_parts([&command.stdin()[..]])));
    }
    Asked {
        subject,
        execution_id: id.to_string(),
        agent: agent.clone(),
        caller: Caller {
            identity: caller.identity.to_string(),
            transport: caller.transport.as_str().to_owned(),
            certificate_sha256: caller.certificate().map(|certificate| certificate.fingerprint.clone()),
            presented_by: caller.presented_by.as_ref().map(ToString::to_string),
        },
        policy: policy(decision),
        request: request(command),
    }
}

/// What the digest of a command is of.
fn parts(program: &Program) -> Vec<&[u8]> {
    match program {
        Program::Shell { text, .. } => vec![text.as_bytes()],
        Program::Argv(argv) => argv.iter().flat_map(|argument| [argument.as_bytes(), b"\0"]).collect(),
    }
}

fn policy(decision: &Decision) -> Option<Policy> {
    let mut left = MAX_RULES;
    let fits = |rule: &&String| {
        left = left.saturating_sub(json_length(rule) + 1);
        left > 0
    };
    let rules: Vec<_> = decision.rules.iter().take_while(fits).cloned().collect();
    let (rule_count, approved_by) = (decision.rules.len(), decision.approved_by.as_ref().map(ToString::to_string));
    (rule_count > 0 || approved_by.is_some()).then_some(Policy { rules, rule_count, approved_by })
}

fn request(command: &Command) -> Request {
    let (text, argv, shell, login) = match command.program() {
        Program::Shell { text, shell, login } => (Some(text), None, shell.as_ref(), *login),
        Program::Argv(argv) => (None, Some(argv), None, false),
    };
    let names: Vec<_> = command.environment().keys().cloned().collect();
    let limits = command.limits();
    Request {
        command: text.filter(|text| json_length(text) <= MAX_TEXT).cloned(),
        argv: argv.filter(|argv| json_length(argv) <= MAX_TEXT).cloned(),
        command_bytes: parts(command.program()).iter().map(|part| part.len() as u64).sum(),
        named_command: command.named_command().map(str::to_owned),
        shell: shell.filter(|shell| json_length(shell) <= MAX_SHELL).cloned(),
        login,
        environment_count: names.len(),
        environment: Some(names).filter(|names| json_length(names) <= MAX_NAMES),
        clear_environment: command.clear_environment(),
        stdin_bytes: command.stdin().len() as u64,
        accepts_input: command.accepts_input(),
        terminal: command.terminal().is_some(),
        merge_output: command.merge_output(),
        no_new_privileges: command.no_new_privileges(),
        timeout_milliseconds: command.timeout().map(ms),
        limits: (!limits.is_empty()).then_some(Limits {
            memory_bytes: limits.memory_bytes,
            max_processes: limits.max_processes,
            cpus: limits.cpus,
        }),
        reason: command.reason().to_owned(),
    }
}
