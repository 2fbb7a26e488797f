//! What a receipt says of a request: who asks for what, and why that is permitted. Never values of variables or input, which
//! may be secrets; and never more than fits the length that the proto promises, whatever is asked for.

use telexec_executor::{Command, ExecutionId, Program};
use telexec_receipt::{Agent, COMMAND, Caller, Policy, Receipt, Request, STDIN, Statement, Subject};

use crate::audit::{clip_line, json_length};
use crate::call::Call;
use crate::policy::Decision;

/// Of parts of it, each as it is in JSON: longer ones are left out or cut.
const MAX_TEXT: u64 = 16 * 1024;
const MAX_NAMES: u64 = 4 * 1024;
const MAX_RULES: u64 = 4 * 1024;
const MAX_NAME: u64 = 512;

/// The statement as far as it is known before the start.
pub(super) fn describe(
    agent: &Agent,
    call: &Call,
    id: &ExecutionId,
    command: &Command,
    decision: &Decision,
) -> Statement {
    let caller = &call.caller;
    let text = bytes(command.program());
    let mut subject = vec![Subject::of(COMMAND, &text)];
    if !command.stdin().is_empty() {
        subject.push(Subject::of(STDIN, command.stdin()));
    }
    let receipt = Receipt {
        execution_id: id.to_string(),
        agent: agent.clone(),
        caller: Caller {
            identity: caller.identity.to_string(),
            transport: caller.transport.as_str().to_owned(),
            certificate_sha256: caller.certificate().map(|certificate| certificate.fingerprint.clone()),
        },
        policy: policy(decision),
        request: request(command, text.len() as u64),
        ..Receipt::default()
    };
    Statement::new(subject, receipt)
}

/// What the digest of a command is of.
fn bytes(program: &Program) -> Vec<u8> {
    match program {
        Program::Shell { text, .. } => text.as_bytes().to_owned(),
        Program::Argv(argv) => argv.iter().flat_map(|argument| argument.bytes().chain([0])).collect(),
    }
}

fn policy(decision: &Decision) -> Option<Policy> {
    let mut left = MAX_RULES;
    let fits = |rule: &&String| {
        left = left.saturating_sub(json_length(rule) + 1);
        left > 0
    };
    let rules: Vec<_> = decision.rules.iter().take_while(fits).cloned().collect();
    let approved_by = decision.approved_by.as_ref().map(ToString::to_string);
    (!decision.rules.is_empty() || approved_by.is_some()).then_some(Policy { rules, approved_by })
}

fn request(command: &Command, command_bytes: u64) -> Request {
    let (text, argv, shell, login) = match command.program() {
        Program::Shell { text, shell, login } => (Some(text), None, shell.as_deref(), *login),
        Program::Argv(argv) => (None, Some(argv), None, false),
    };
    let names: Vec<_> = command.environment().keys().cloned().collect();
    Request {
        command: text.filter(|text| json_length(text) <= MAX_TEXT).cloned(),
        argv: argv.filter(|argv| json_length(argv) <= MAX_TEXT).cloned(),
        command_bytes,
        named_command: command.named_command().map(str::to_owned),
        shell: shell.map(|shell| clip_line(MAX_NAME, shell)),
        login,
        environment_count: names.len(),
        environment: Some(names).filter(|names| json_length(names) <= MAX_NAMES),
        clear_environment: command.clear_environment(),
        stdin_bytes: command.stdin().len() as u64,
        accepts_input: command.accepts_input(),
        terminal: command.terminal().is_some(),
        merge_output: command.merge_output(),
        reason: command.reason().to_owned(),
    }
}
