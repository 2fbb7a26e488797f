//! `ExecuteRequest` and [`Command`].

use std::time::{Duration, Instant};

use bytes::Bytes;
use telexec_executor::{Attach, Command, Descendants, DuplicatePolicy, InvalidCommand, OnDisconnect};
use telexec_executor::{ExecutionId, Program, ResourceLimits, TerminalSize};

use super::time::{duration_from_wire, duration_to_wire};
use crate::v1::{self, DescendantPolicy, ExecuteRequest};

/// A command out of a request that must be answered before `deadline`.
///
/// # Errors
/// The first malformed field.
pub fn command_from_wire(request: ExecuteRequest, deadline: Option<Instant>) -> Result<Command, InvalidCommand> {
    let descendants = match DescendantPolicy::try_from(request.descendants) {
        Ok(DescendantPolicy::Unspecified | DescendantPolicy::Keep) => Descendants::Keep,
        Ok(DescendantPolicy::Kill) => Descendants::Kill,
        Err(_) => return Err(unknown("descendants")),
    };
    let duplicate_policy = match v1::DuplicatePolicy::try_from(request.duplicate_policy) {
        Ok(v1::DuplicatePolicy::Unspecified | v1::DuplicatePolicy::StartNew) => DuplicatePolicy::StartNew,
        Ok(v1::DuplicatePolicy::ReuseRunning) => DuplicatePolicy::ReuseRunning,
        Err(_) => return Err(unknown("duplicate_policy")),
    };
    let on_disconnect = on_disconnect_from_wire(request.on_disconnect, OnDisconnect::Kill)?;
    let mut builder = match (request.command.is_empty(), request.argv.is_empty()) {
        (false, true) => Command::shell(request.command),
        (true, false) => Command::argv(request.argv),
        (true, true) => return Err(InvalidCommand::new("command", "give either command or argv; neither is set")),
        (false, false) => return Err(InvalidCommand::new("command", "give either command or argv; both are set")),
    };
    if !request.shell.is_empty() {
        builder = builder.shell(request.shell);
    }
    if !request.user.is_empty() {
        builder = builder.user(request.user);
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
    if let Some(delay) = request.yield_after {
        builder = builder.yield_after(duration_from_wire("yield_after", delay)?);
    }
    if let Some(size) = request.terminal {
        builder = builder.terminal(size_from_wire(size)?);
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
        // a copy: it is a piece of the whole message, which it would keep
        .stdin(Bytes::copy_from_slice(&request.stdin))
        .accepts_input(request.accepts_input)
        .on_disconnect(on_disconnect)
        .disconnect_grace(grace_from_wire(request.disconnect_grace)?)
        .duplicate_policy(duplicate_policy)
        .max_output_bytes(request.max_output_bytes)
        .merge_output(request.merge_output)
        .no_new_privileges(request.no_new_privileges)
        .receipt(request.receipt)
        .limits(limits_from_wire(request.limits.unwrap_or_default()))
        .labels(request.labels)
        .report_working_directory(request.report_working_directory)
        .descendants(descendants)
        .reason(request.reason)
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
        user: command.user().unwrap_or_default().to_owned(),
        working_directory: command.working_directory().unwrap_or_default().to_owned(),
        environment: command.environment().clone().into_iter().collect(),
        clear_environment: command.clear_environment(),
        timeout: command.timeout().map(duration_to_wire),
        kill_grace: command.kill_grace().map(duration_to_wire),
        stdin: command.stdin().clone(),
        accepts_input: command.accepts_input(),
        terminal: command.terminal().map(size_to_wire),
        yield_after: command.yield_after().map(duration_to_wire),
        on_disconnect: on_disconnect_to_wire(command.on_disconnect()),
        duplicate_policy: match command.duplicate_policy() {
            DuplicatePolicy::StartNew => v1::DuplicatePolicy::StartNew,
            DuplicatePolicy::ReuseRunning => v1::DuplicatePolicy::ReuseRunning,
        }
        .into(),
        execution_id: command.execution_id().map(ToString::to_string).unwrap_or_default(),
        max_output_bytes: command.max_output_bytes(),
        limits: limits_to_wire(command.limits()),
        labels: command.labels().clone().into_iter().collect(),
        report_working_directory: command.report_working_directory(),
        descendants: descendants.into(),
        reason: command.reason().to_owned(),
        disconnect_grace: grace_to_wire(command.disconnect_grace()),
        merge_output: command.merge_output(),
        no_new_privileges: command.no_new_privileges(),
        receipt: command.receipt(),
    }
}

fn unknown(field: &'static str) -> InvalidCommand {
    InvalidCommand::new(field, "is not a value that this agent knows")
}

fn on_disconnect_from_wire(wire: i32, default: OnDisconnect) -> Result<OnDisconnect, InvalidCommand> {
    match v1::DisconnectPolicy::try_from(wire) {
        Ok(v1::DisconnectPolicy::Unspecified) => Ok(default),
        Ok(v1::DisconnectPolicy::Kill) => Ok(OnDisconnect::Kill),
        Ok(v1::DisconnectPolicy::Detach) => Ok(OnDisconnect::Detach),
        Err(_) => Err(unknown("on_disconnect")),
    }
}

fn on_disconnect_to_wire(on_disconnect: OnDisconnect) -> i32 {
    match on_disconnect {
        OnDisconnect::Kill => v1::DisconnectPolicy::Kill,
        OnDisconnect::Detach => v1::DisconnectPolicy::Detach,
    }
    .into()
}

fn grace_from_wire(wire: Option<prost_types::Duration>) -> Result<Duration, InvalidCommand> {
    wire.map_or(Ok(Duration::ZERO), |grace| duration_from_wire("disconnect_grace", grace))
}

fn grace_to_wire(grace: Duration) -> Option<prost_types::Duration> {
    (!grace.is_zero()).then(|| duration_to_wire(grace))
}

/// A terminal's size.
///
/// # Errors
/// It is out of range.
pub fn size_from_wire(wire: v1::TerminalSize) -> Result<TerminalSize, InvalidCommand> {
    TerminalSize::new(wire.columns, wire.rows)
}

/// A terminal's size, as it travels.
pub fn size_to_wire(size: TerminalSize) -> v1::TerminalSize {
    v1::TerminalSize { columns: size.columns().into(), rows: size.rows().into() }
}

/// Which execution to follow, and from where.
///
/// # Errors
/// The first malformed field.
pub fn attach_from_wire(wire: &v1::AttachRequest) -> Result<(ExecutionId, Attach), InvalidCommand> {
    let on_disconnect = on_disconnect_from_wire(wire.on_disconnect, OnDisconnect::Detach)?;
    let disconnect_grace = grace_from_wire(wire.disconnect_grace)?;
    Ok((wire.execution_id.parse()?, Attach { position: wire.position, on_disconnect, disconnect_grace }))
}

/// A request to follow an execution.
pub fn attach_to_wire(id: &ExecutionId, from: Attach) -> v1::AttachRequest {
    v1::AttachRequest {
        execution_id: id.to_string(),
        position: from.position,
        on_disconnect: on_disconnect_to_wire(from.on_disconnect),
        disconnect_grace: grace_to_wire(from.disconnect_grace),
    }
}

fn limits_from_wire(wire: v1::ResourceLimits) -> ResourceLimits {
    ResourceLimits {
        memory_bytes: Some(wire.memory_bytes).filter(|bytes| *bytes != 0),
        max_processes: Some(wire.max_processes).filter(|processes| *processes != 0),
        cpus: Some(wire.cpus).filter(|cpus| *cpus != 0.0),
    }
}

fn limits_to_wire(limits: ResourceLimits) -> Option<v1::ResourceLimits> {
    (!limits.is_empty()).then(|| v1::ResourceLimits {
        memory_bytes: limits.memory_bytes.unwrap_or_default(),
        max_processes: limits.max_processes.unwrap_or_default(),
        cpus: limits.cpus.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use telexec_executor::CommandBuilder;

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
        let cpus = |cpus| Some(v1::ResourceLimits { cpus, ..Default::default() });
        let size = |columns, rows| Some(v1::TerminalSize { columns, rows });
        let cases: [(Change, &str); 24] = [
            (Box::new(|r| r.duplicate_policy = 3), "duplicate_policy"),
            (Box::new(|r| r.on_disconnect = -1), "on_disconnect"),
            (Box::new(move |r| r.yield_after = seconds(-1, 0)), "yield_after"),
            (Box::new(move |r| r.disconnect_grace = seconds(-1, 0)), "disconnect_grace"),
            (Box::new(move |r| r.terminal = size(0, 0)), "terminal.columns"),
            (Box::new(move |r| r.terminal = size(100_000, 1)), "terminal.columns"),
            (Box::new(move |r| r.terminal = size(80, 0)), "terminal.rows"),
            (Box::new(move |r| r.terminal = size(80, 65_536)), "terminal.rows"),
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
            (Box::new(|r| r.user = "a\0".into()), "user"),
            (Box::new(move |r| r.limits = cpus(-0.5)), "limits.cpus"),
            (Box::new(move |r| r.limits = cpus(0.001)), "limits.cpus"),
            (Box::new(move |r| r.limits = cpus(10_001.0)), "limits.cpus"),
            (Box::new(move |r| r.limits = cpus(f64::INFINITY)), "limits.cpus"),
            (Box::new(move |r| r.limits = cpus(f64::NAN)), "limits.cpus"),
        ];
        for (change, field) in cases {
            assert_eq!(request(change).unwrap_err().field, field);
        }
    }

    #[test]
    fn zero_is_no_limit() {
        for limits in [None, Some(v1::ResourceLimits::default())] {
            let command = request(|r| r.limits = limits).unwrap();
            assert!(command.limits().is_empty());
            assert_eq!(command_to_wire(&command).limits, None);
        }
        let memory = v1::ResourceLimits { memory_bytes: 1, ..Default::default() };
        let limits = request(|r| r.limits = Some(memory)).unwrap().limits();
        assert_eq!(limits, ResourceLimits { memory_bytes: Some(1), ..Default::default() });
    }

    proptest! {
        #[test]
        fn a_command_survives_the_wire(
            argv in prop::collection::vec("[^\0]{1,20}", 1..5),
            env in prop::collection::btree_map("[^\0=]{1,9}", "[^\0]{0,9}", 0..4),
            stdin in prop::collection::vec(any::<u8>(), 0..50),
            millis in 1..10_000_000u64,
            user in prop::option::of("[^\0]{1,20}"),
            memory_bytes in prop::option::of(1..=u64::MAX),
            max_processes in prop::option::of(1..=u32::MAX),
            cpus in prop::option::of(0.01..=10_000.0),
            size in prop::option::of((1..=65_535u32, 1..=65_535u32)),
            yield_after in prop::option::of(0..10_000_000u64),
            grace in 0..10_000u64,
            flags in any::<[bool; 6]>(),
            reason in ".{0,16}",
        ) {
            let command = user.into_iter().fold(Command::argv(argv), CommandBuilder::user);
            let command = size.into_iter().fold(command, |command, (columns, rows)| {
                command.terminal(TerminalSize::new(columns, rows).unwrap())
            });
            let command = yield_after.into_iter().map(std::time::Duration::from_millis).fold(command, CommandBuilder::yield_after);
            let command = command
                .accepts_input(flags[0])
                .on_disconnect(if flags[1] { OnDisconnect::Detach } else { OnDisconnect::Kill })
                .duplicate_policy(if flags[2] { DuplicatePolicy::ReuseRunning } else { DuplicatePolicy::StartNew })
                .disconnect_grace(std::time::Duration::from_millis(grace))
                .merge_output(flags[3])
                .no_new_privileges(flags[4])
                .receipt(flags[5])
                .limits(ResourceLimits { memory_bytes, max_processes, cpus })
                .envs(env)
                .stdin(stdin)
                .timeout(std::time::Duration::from_millis(millis))
                .descendants(Descendants::Kill)
                .reason(reason)
                .build()
                .unwrap();
            prop_assert_eq!(command_from_wire(command_to_wire(&command), None).unwrap(), command);
        }
    }
}
