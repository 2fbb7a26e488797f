//! `telexec receipt verify`: whether a receipt is valid, and what it says.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use telexec_executor::text::counted;
use telexec_receipt::{
    COMMAND, End, PublicKey, Receipt, Request, STDERR, STDIN, STDOUT, Statement, Stream, Verified, sha256, verify,
};

use super::NOT_VALID;
use crate::args::ReceiptVerifyArgs;
use crate::output::quoted::{on_a_line, program, rows, words, yes};
use crate::output::{self, Failure, exit};

/// Receipts are far smaller.
const MAX_BYTES: u64 = 1 << 20;

pub(super) fn show(args: &ReceiptVerifyArgs) -> Result<(), Failure> {
    let named: Vec<_> = args.key.iter().map(|path| Ok((path, read_keys(path)?))).collect::<Result<_, Failure>>()?;
    let keys: Vec<_> = named.iter().flat_map(|(_, keys)| keys).cloned().collect();
    let envelope = read(&args.receipt)?;
    let invalid = |error| Failure::new(NOT_VALID, &error).context(args.receipt.display());
    let Verified { statement, payload, key } = verify(&envelope, &keys).map_err(invalid)?;
    for (name, file) in [(STDOUT, &args.stdout), (STDERR, &args.stderr)] {
        file.iter().try_for_each(|file| compare(&statement, name, file))?;
    }
    let file = named.iter().find(|(_, keys)| keys.contains(key)).map_or("", |(path, _)| path.to_str().unwrap_or(""));
    let text = match args.json {
        true => in_ascii(&String::from_utf8_lossy(&payload)) + "\n",
        false => as_text(&format!("{file} (key {})", key.id()), &statement),
    };
    output::print(text.as_bytes())
}

/// The same JSON without characters that a terminal might obey, or that look like others: they are in strings.
fn in_ascii(json: &str) -> String {
    let escaped = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
    json.chars().map(|c| if matches!(c, ' '..='~') { c.to_string() } else { escaped(c) }).collect()
}

fn read_keys(path: &Path) -> Result<Vec<PublicKey>, Failure> {
    let unusable = |error: &(dyn std::error::Error + 'static)| {
        Failure::new(exit::USAGE, error).context(format!("--key {}", path.display()))
    };
    PublicKey::from_pem(&std::fs::read(path).map_err(|error| unusable(&error))?).map_err(|error| unusable(&error))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = match path == Path::new("-") {
        true => io::stdin().take(MAX_BYTES + 1).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)),
    };
    match read {
        Ok(read) if read as u64 > MAX_BYTES => {
            Err(Failure::message(NOT_VALID, format!("{}: it is too long to be a receipt", path.display())))
        }
        Ok(_) => Ok(bytes),
        Err(error) => Err(Failure::new(exit::USAGE, &error).context(path.display())),
    }
}

/// Whether a file has what the receipt has the digest of.
fn compare(statement: &Statement, name: &str, path: &Path) -> Result<(), Failure> {
    let unreadable =
        |error: io::Error| Failure::new(exit::USAGE, &error).context(format!("--{name} {}", path.display()));
    let digest = File::open(path).and_then(sha256).map_err(unreadable)?;
    let Receipt { request, end, agent_restarted, .. } = &statement.predicate;
    let stream = if name == STDOUT { &end.stdout } else { &end.stderr };
    let why = match statement.sha256(name) {
        Some(signed) if signed.eq_ignore_ascii_case(&digest) => return Ok(()),
        Some(_) if stream.dropped_bytes > 0 => {
            let dropped = counted(stream.dropped_bytes, "byte");
            format!("this is not what the command wrote to {name}: the caller did not get {dropped} of that")
        }
        Some(_) => format!("this is not what the command wrote to {name}: its SHA-256 differs"),
        None if name == STDERR && (request.merge_output || request.terminal) => {
            "the command's standard error is in its standard output".to_owned()
        }
        None if *agent_restarted => {
            format!("the receipt has no digest of {name}: the agent was restarted while the command ran")
        }
        None => format!("the receipt has no digest of {name}"),
    };
    Err(Failure::message(NOT_VALID, format!("{}: {why}", path.display())))
}

fn as_text(signer: &str, statement: &Statement) -> String {
    who(signer, &statement.predicate) + &what(statement) + &how(&statement.predicate.request) + &ran(statement)
}

fn who(signer: &str, Receipt { execution_id, agent, caller, policy, request, .. }: &Receipt) -> String {
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
        ("rules", rules.map(|rules| on_a_line(&rules)).collect()),
        ("approved by", approved_by.map(on_a_line).collect()),
        ("reason", on_a_line(&request.reason)),
        ("named command", request.named_command.as_deref().map(on_a_line).unwrap_or_default()),
    ])
}

fn what(statement: &Statement) -> String {
    let request = &statement.predicate.request;
    let digest = || on_a_line(statement.sha256(COMMAND).unwrap_or("unknown"));
    match (&request.command, &request.argv) {
        (None, None) => {
            let length = counted(request.command_bytes, "byte");
            rows([("command", format!("too long for the receipt: {length}, SHA-256 {}", digest()))])
        }
        (text, argv) => program(text.as_deref().unwrap_or_default(), argv.as_deref().unwrap_or_default()),
    }
}

fn how(request: &Request) -> String {
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

fn ran(statement: &Statement) -> String {
    let Receipt { request, start, end, agent_restarted, .. } = &statement.predicate;
    let directory = start.working_directory.as_deref();
    rows([
        ("input", input(statement)),
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

const RESTARTED: &str =
    "the agent was restarted while the command ran: its output has no digest, and it may have ended earlier";

fn left_running(processes: u32) -> String {
    match processes {
        0 => "nothing".to_owned(),
        1 => "1 process".to_owned(),
        several => format!("{several} processes"),
    }
}

fn ending(end: &End) -> String {
    let core = if end.core_dumped { " (core dumped)" } else { "" };
    match (end.cause.as_str(), &end.signal) {
        ("exited", _) => format!("code {}", end.exit_code),
        ("signaled", Some(signal)) => format!("killed by {}{core}", on_a_line(signal)),
        (cause, signal) => {
            let signal = signal.as_deref().map(|signal| format!(" ({})", on_a_line(signal))).unwrap_or_default();
            format!("{}{signal}{core}", on_a_line(cause).replace('_', " "))
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
