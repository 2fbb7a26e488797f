//! `ExecuteRequest` and [`Command`].

use std::time::Instant;

use telexec_tool::{Command, Descendants, InvalidCommand, Program};

use super::time::{duration_from_wire, duration_to_wire};
use crate::v1::{DescendantPolicy, ExecuteRequest};

/// A command out of a request that must be answered before `deadline`.
///
/// # Errors
/// The first malformed field.
pub fn command_from_wire(request: ExecuteRequest, deadline: Option<Instant>) -> Result<Command, InvalidCommand> {
    let descendants = match DescendantPolicy::try_from(request.descendants) {
        Ok(DescendantPolicy::Unspecified | DescendantPolicy::Keep) => Descendants::Keep,
        Ok(DescendantPolicy::Kill) => Descendants::Kill,
        Err(_) => return Err(InvalidCommand::new("descendants", "is not a value that this agent knows")),
    };
    let mut builder = match (request.command.is_empty(), request.argv.is_empty()) {
        (false, true) => Command::shell(request.command),
        (true, false) => Command::argv(request.argv),
        (true, true) => return Err(InvalidCommand::new("command", "give either command or argv; neither is set")),
        (false, false) => return Err(InvalidCommand::new("command", "give either command or argv; both are set")),
    };
    if !request.shell.is_empty() {
        builder = builder.shell(request.shell);
    }
    if !request.working_directory.is_empty() {
        builder = builder.working_directory(request.working_directory);
    }
    if let Some(timeout) = request.timeout {
        builder = builder.timeout(duration_from_wire("timeout", timeout)?);
    }
    if let Some(grace) = request.kill_grace {
        builder = builder.kill_grace(duration_from_wire("kill_grace", grace)?);
    }
    if let Some(deadline) = deadline {
        builder = builder.deadline(deadline);
    }
    if !request.execution_id.is_empty() {
        builder = builder.execution_id(request.execution_id.parse()?);
    }
    builder
        .login(request.login)
        .envs(request.environment)
        .clear_environment(request.clear_environment)
        .stdin(request.stdin)
        .max_output_bytes(request.max_output_bytes)
        .labels(request.labels)
        .report_working_directory(request.report_working_directory)
        .descendants(descendants)
        .build()
}

/// The request for a command; its deadline and its identity travel outside of the message.
pub fn command_to_wire(command: &Command) -> ExecuteRequest {
    let (text, argv, shell, login) = match command.program().clone() {
        Program::Shell { text, shell, login } => (text, Vec::new(), shell.unwrap_or_default(), login),
        Program::Argv(argv) => (String::new(), argv, String::new(), false),
    };
    let descendants = match command.descendants() {
        Descendants::Keep => DescendantPolicy::Keep,
        Descendants::Kill => DescendantPolicy::Kill,
    };
    ExecuteRequest {
        command: text,
        argv,
        shell,
        login,
        working_directory: command.working_directory().unwrap_or_default().to_owned(),
        environment: command.environment().clone().into_iter().collect(),
        clear_environment: command.clear_environment(),
        timeout: command.timeout().map(duration_to_wire),
        kill_grace: command.kill_grace().map(duration_to_wire),
        stdin: command.stdin().clone(),
        execution_id: command.execution_id().map(ToString::to_string).unwrap_or_default(),
        max_output_bytes: command.max_output_bytes(),
        labels: command.labels().clone().into_iter().collect(),
        report_working_directory: command.report_working_directory(),
        descendants: descendants.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(change: impl FnOnce(&mut ExecuteRequest)) -> Result<Command, InvalidCommand> {
        let mut request = ExecuteRequest { command: "true".into(), ..Default::default() };
        change(&mut request);
        command_from_wire(request, None)
    }

    #[test]
    fn malformed_fields_are_named() {
        let seconds = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
        type Change = Box<dyn FnOnce(&mut ExecuteRequest)>;
        let cases: [(Change, &str); 10] = [
            (Box::new(|r| r.command.clear()), "command"),
            (Box::new(|r| r.argv.push("x".into())), "command"),
            (Box::new(|r| r.descendants = 3), "descendants"),
            (Box::new(move |r| r.timeout = seconds(-1, 0)), "timeout"),
            (Box::new(move |r| r.timeout = seconds(0, 0)), "timeout"),
            (Box::new(move |r| r.timeout = seconds(1, -1)), "timeout"),
            (Box::new(move |r| r.timeout = seconds(i64::MAX, 0)), "timeout"),
            (Box::new(move |r| r.kill_grace = seconds(0, 1_000_000_000)), "kill_grace"),
            (Box::new(|r| r.execution_id = "../x".into()), "execution_id"),
            (Box::new(|r| r.shell = "a\0".into()), "shell"),
        ];
        for (change, field) in cases {
            assert_eq!(request(change).unwrap_err().field, field);
        }
    }

    proptest! {
        #[test]
        fn a_command_survives_the_wire(
            argv in prop::collection::vec("[^\0]{1,20}", 1..5),
            env in prop::collection::btree_map("[^\0=]{1,9}", "[^\0]{0,9}", 0..4),
            stdin in prop::collection::vec(any::<u8>(), 0..50),
            millis in 1..10_000_000u64,
        ) {
            let command = Command::argv(argv)
                .envs(env)
                .stdin(stdin)
                .timeout(std::time::Duration::from_millis(millis))
                .descendants(Descendants::Kill)
                .build()
                .unwrap();
            prop_assert_eq!(command_from_wire(command_to_wire(&command), None).unwrap(), command);
        }
    }
}
