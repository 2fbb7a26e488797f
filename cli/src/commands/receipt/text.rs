//! What a receipt says, for people.

use std::time::Duration;

use telexec_executor::text::counted;
use telexec_receipt::{COMMAND, End, Receipt, Request, STDERR, STDIN, STDOUT, Statement, Stream};

use crate::output::quoted::{on_a_line, program, rows, words, yes};

const RESTARTED: &str =
    "the agent was restarted while the command ran: there is no digest of its output, and the end time may be late";

pub(super) fn as_text(signer: &str, statement: &Statement) -> String {
    request_fields(signer, &statement.predicate)
        + &command_fields(statement)
        + &option_fields(&statement.predicate.request)
        + &run_fields(statement)
}

fn request_fields(signer: &str, Receipt { execution_id, agent, caller, policy, request, .. }: &Receipt) -> String {
    let rules = policy.iter().map(|policy| match policy.rule_count.saturating_sub(policy.rules.len()) {
        0 => policy.rules.join(", "),
        more => format!("{} and {more} more", policy.rules.join(", ")),
    });
    let approved_by = policy.iter().filter_map(|policy| policy.approved_by.as_deref());
    rows([
        ("signed by", on_a_line(signer)),
        ("agent", format!("{} (telexec {})", on_a_line(&agent.host), on_a_line(&agent.version))),
        ("execution", on_a_line(execution_id)),
        ("identity", format!("{} ({})", on_a_line(&caller.identity), on_a_line(&caller.transport))),
        (
            "certificate",
            caller
                .certificate_sha256
                .as_deref()
                .map(|digest| format!("SHA-256 {}", on_a_line(digest)))
                .unwrap_or_default(),
        ),
        ("presented by", caller.presented_by.as_deref().map(on_a_line).unwrap_or_default()),
        ("rules", rules.map(|rules| on_a_line(&rules)).collect()),
        ("approved by", approved_by.map(on_a_line).collect()),
        ("reason", on_a_line(&request.reason)),
        ("named command", request.named_command.as_deref().map(on_a_line).unwrap_or_default()),
    ])
}

fn command_fields(statement: &Statement) -> String {
    let request = &statement.predicate.request;
    let digest = || on_a_line(statement.sha256(COMMAND).unwrap_or("unknown"));
    match (&request.command, &request.argv) {
        (None, None) => {
            let length = counted(request.command_bytes, "byte");
            // no text of a command looks like this
            rows([("long command", format!("{length}, SHA-256 {}", digest()))])
        }
        (text, argv) => program(text.as_deref().unwrap_or_default(), argv.as_deref().unwrap_or_default()),
    }
}

fn option_fields(request: &Request) -> String {
    let login = if request.login { " (login)" } else { "" };
    let limits = request.limits.as_ref();
    let timeout = request.timeout_milliseconds.map(Duration::from_millis);
    rows([
        ("shell", request.shell.as_deref().map(on_a_line).unwrap_or_default() + login),
        (
            "variables",
            match &request.environment {
                None => format!("{}, too many for the receipt", request.environment_count),
                Some(names) => words(names),
            },
        ),
        ("clean env", yes(request.clear_environment)),
        ("terminal", yes(request.terminal)),
        ("no new privs", yes(request.no_new_privileges)),
        ("timeout", timeout.map(|time| humantime::format_duration(time).to_string()).unwrap_or_default()),
        ("memory", limits.and_then(|limits| limits.memory_bytes).map(|bytes| bytes.to_string()).unwrap_or_default()),
        ("processes", limits.and_then(|limits| limits.max_processes).map(|most| most.to_string()).unwrap_or_default()),
        ("cpus", limits.and_then(|limits| limits.cpus).map(|cpus| cpus.to_string()).unwrap_or_default()),
    ])
}

fn run_fields(statement: &Statement) -> String {
    let Receipt { request, start, end, agent_restarted, .. } = &statement.predicate;
    let directory = start.working_directory.as_deref();
    rows([
        ("input", input(statement)),
        ("process", start.pid.to_string()),
        ("user", on_a_line(&start.user)),
        ("directory", directory.map_or_else(|| "too long for the receipt".to_owned(), on_a_line)),
        ("started", on_a_line(&start.time)),
        ("ended", on_a_line(&end.time)),
        ("run time", format!("{}.{:03} s", end.wall_milliseconds / 1000, end.wall_milliseconds % 1000)),
        ("exit", ending(end)),
        ("left running", left_running(end.surviving_processes)),
        ("stdout", stream(statement, STDOUT, &end.stdout)),
        (
            "stderr",
            match request.merge_output || request.terminal {
                true => "in stdout".to_owned(),
                false => stream(statement, STDERR, &end.stderr),
            },
        ),
        ("note", if *agent_restarted { RESTARTED.to_owned() } else { String::new() }),
    ])
}

fn left_running(processes: u32) -> String {
    match processes {
        0 => "nothing".to_owned(),
        1 => "1 process".to_owned(),
        several => format!("{several} processes"),
    }
}

fn ending(end: &End) -> String {
    let core = if end.core_dumped { " (core dumped)" } else { "" };
    let signal = end.signal.as_deref().map(on_a_line);
    match (end.cause.as_str(), &signal) {
        ("exited", None) => format!("code {}", end.exit_code),
        ("signaled", Some(signal)) => format!("killed by {signal}{core}"),
        ("timed_out" | "cancelled" | "deadline_exceeded" | "out_of_memory" | "agent_shutdown", signal) => {
            let signal = signal.as_ref().map(|signal| format!(" ({signal})")).unwrap_or_default();
            format!("{}{signal}{core}", end.cause.replace('_', " "))
        }
        (cause, signal) => {
            let (cause, signal) = (on_a_line(cause), signal.as_deref().unwrap_or("none"));
            format!("unknown cause {cause:?}, code {}, signal {signal}{core}", end.exit_code)
        }
    }
}

fn input(statement: &Statement) -> String {
    let request = &statement.predicate.request;
    let digest = |digest| format!("{}, SHA-256 {}", counted(request.stdin_bytes, "byte"), on_a_line(digest));
    let later = request.accepts_input.then(|| "what was sent while it ran, which has no digest".to_owned());
    statement.sha256(STDIN).map(digest).into_iter().chain(later).collect::<Vec<_>>().join(", then ")
}

fn stream(statement: &Statement, name: &str, stream: &Stream) -> String {
    let digest = statement.sha256(name).map_or_else(|| "unknown".to_owned(), on_a_line);
    let dropped = match stream.dropped_bytes {
        0 => String::new(),
        bytes => format!(", of which the caller did not get {bytes}"),
    };
    let more = if stream.incomplete { "; incomplete: what is left running may have written more" } else { "" };
    format!("{}, SHA-256 {digest}{dropped}{more}", counted(stream.bytes, "byte"))
}
