//! `telexec receipt`: gets, shows and verifies what agents have signed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use telexec_executor::text::counted;
use telexec_executor::{ExecutionId, Executor};
use telexec_receipt::{
    COMMAND, End, KeyError, PublicKey, Receipt, STDERR, STDIN, STDOUT, SigningKey, Statement, Stream, Verified, sha256,
    verify,
};
use tempfile::NamedTempFile;

use super::find::find;
use crate::args::{ReceiptAction, ReceiptGetArgs, ReceiptKeyArgs, ReceiptVerifyArgs};
use crate::connect::{call_failure, with_agent};
use crate::follow::FollowEnd;
use crate::output::quoted::{on_a_line, program, rows, words};
use crate::output::{self, Failure, exit};
use crate::syntax::Destination;

/// It is not valid, or there is none.
const NOT_VALID: u8 = 1;
/// Receipts are far smaller.
const MAX_BYTES: u64 = 1 << 20;

/// Runs what needs no agent; otherwise says what to ask which one.
pub(crate) async fn run(action: ReceiptAction) -> Result<u8, Failure> {
    match action {
        ReceiptAction::Verify(args) => show(&args).map(|()| 0),
        ReceiptAction::Get(args) => get(args).await,
        ReceiptAction::Key(args) => key(args).await,
        ReceiptAction::Keygen { file } => generate(&file).map(|()| 0),
    }
}

async fn get(args: ReceiptGetArgs) -> Result<u8, Failure> {
    let target = &args.agent.target;
    let found = with_agent(target, &args.connect, async |agent| {
        let executor = agent.executor();
        let found = find(&executor, target, &args.execution.id).await?;
        // one that was found by the beginning of its ID is from a list, which has no receipts
        executor.get(&found.id).await.map_err(|error| call_failure(exit::of_error(&error), target, &error))
    });
    let info = found.await?;
    let Some(exited) = &info.exited else {
        return Err(Failure::message(NOT_VALID, format!("{target}: execution {} has not ended", info.id))
            .hint(Some(format!("wait for it first: telexec wait {target} {}", info.id))));
    };
    match &exited.receipt {
        Some(receipt) => output::print(format!("{receipt}\n").as_bytes()).map(|()| 0),
        None => Err(Failure::message(NOT_VALID, format!("{target}: execution {} has no receipt", info.id))
            .hint(Some("only executions that were started with --receipt or --receipt-file have one"))),
    }
}

async fn key(args: ReceiptKeyArgs) -> Result<u8, Failure> {
    let target = &args.agent.target;
    let info = with_agent(target, &args.connect, async |agent| {
        agent.info().await.map_err(|error| call_failure(exit::of_error(&error), target, &error))
    });
    match info.await?.receipt_key {
        none if none.is_empty() => Err(Failure::message(NOT_VALID, format!("{target}: this agent signs no receipts"))
            .hint(Some("its configuration needs a receipt_key: see telexec receipt --help"))),
        text => output::print(public_key(target, &text)?.to_pem().as_bytes()).map(|()| 0),
    }
}

/// What an agent says is its key: that, and nothing else.
pub(super) fn public_key(target: &Destination, text: &str) -> Result<PublicKey, Failure> {
    let invalid = |error: KeyError| Failure::new(NOT_VALID, &error).context(format!("{target}: its key of receipts"));
    let mut keys = PublicKey::from_pem(text.as_bytes()).map_err(invalid)?;
    keys.pop().ok_or_else(|| invalid(KeyError::Missing))
}

fn generate(path: &Path) -> Result<(), Failure> {
    let failed = |error: &dyn std::error::Error| Failure::message(NOT_VALID, format!("{}: {error}", path.display()));
    // without the name of a temporary file
    let of_system = |error: io::Error| failed(&error.raw_os_error().map_or(error, io::Error::from_raw_os_error));
    let (key, text) = SigningKey::generate().map_err(|error| failed(&error))?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // whole or not there, and for its owner alone
    let mut file = NamedTempFile::new_in(directory).map_err(of_system)?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(of_system)?;
    file.persist_noclobber(path).map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => {
            let text = format!("{} exists, and is not replaced: name another file", path.display());
            Failure::message(NOT_VALID, text)
        }
        _ => of_system(error.error),
    })?;
    output::print(key.public().to_pem().as_bytes())
}

/// A file for the receipt of a command. Made before that starts, so that it is neither an earlier one nor missing for want of a
/// directory.
pub(super) struct ReceiptFile {
    path: PathBuf,
    file: File,
}

impl ReceiptFile {
    /// # Errors
    /// It cannot be made; nothing was run.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let unusable = |error: &dyn std::error::Error| {
            Failure::message(exit::USAGE, format!("--receipt-file {}: {error}; nothing was run", path.display()))
        };
        if path == Path::new("-") {
            return Err(Failure::message(
                exit::USAGE,
                "--receipt-file: standard output is for the command's: name a file",
            ));
        }
        // it may have secrets of the command line
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
        Ok(Self { path: path.to_owned(), file: file.map_err(|error| unusable(&error))? })
    }

    /// Writes the receipt of a command that has ended. Returns whether that is done; if not, says why, unless nothing ran.
    pub(super) fn save(mut self, target: &Destination, id: Option<&ExecutionId>, end: Option<&FollowEnd>) -> bool {
        let receipt = match end {
            Some(FollowEnd::Exited { exited, .. }) => exited.receipt.as_deref().ok_or("the agent has sent none"),
            _ => Err("the command has not ended"),
        };
        let (failure, is_later) = match receipt {
            Err(why) => (why.to_owned(), end.is_none_or(|end| !matches!(end, FollowEnd::Exited { .. }))),
            Ok(receipt) => match self.file.write_all(format!("{receipt}\n").as_bytes()) {
                Ok(()) => return true,
                Err(error) => (error.to_string(), true),
            },
        };
        if self.file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            let _ = std::fs::remove_file(&self.path);
        }
        if let Some(id) = id {
            output::print_message(&format!("{target}: no receipt in {}: {failure}", self.path.display()));
            if is_later {
                output::print_message(&format!("once the command has ended: telexec receipt get {target} {id}"));
            }
        }
        false
    }
}

fn show(args: &ReceiptVerifyArgs) -> Result<(), Failure> {
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
    let Receipt { execution_id, agent, caller, policy, request, start, end, agent_restarted } = &statement.predicate;
    let rules = policy.iter().map(|policy| match policy.rule_count.saturating_sub(policy.rules.len()) {
        0 => policy.rules.join(", "),
        more => format!("{} and {more} more", policy.rules.join(", ")),
    });
    let approved_by = policy.iter().filter_map(|policy| policy.approved_by.as_deref());
    let asked = rows([
        ("signed by", on_a_line(signer)),
        ("agent", format!("{} (telexec {})", on_a_line(&agent.host), on_a_line(&agent.version))),
        ("execution", on_a_line(execution_id)),
        ("identity", format!("{} ({})", on_a_line(&caller.identity), on_a_line(&caller.transport))),
        ("rules", rules.map(|rules| on_a_line(&rules)).collect()),
        ("approved by", approved_by.map(on_a_line).collect()),
        ("reason", on_a_line(&request.reason)),
        ("named command", request.named_command.as_deref().map(on_a_line).unwrap_or_default()),
    ]);
    let text = request.command.as_deref().unwrap_or_default();
    let argv = request.argv.as_deref().unwrap_or_default();
    let digest = || on_a_line(statement.sha256(COMMAND).unwrap_or("unknown"));
    let command = match text.is_empty() && argv.is_empty() {
        true => rows([(
            "command",
            format!("too long for the receipt: {} bytes, SHA-256 {}", request.command_bytes, digest()),
        )]),
        false => program(text, argv),
    };
    let in_stdout = request.merge_output || request.terminal;
    let login = if request.login { " (login)" } else { "" };
    let variables = match &request.environment {
        None => format!("{}, too many for the receipt", request.environment_count),
        Some(names) => words(names),
    };
    let ran = rows([
        ("shell", request.shell.as_deref().map(on_a_line).unwrap_or_default() + login),
        ("variables", variables),
        ("clean env", if request.clear_environment { "yes".to_owned() } else { String::new() }),
        ("input", input(statement)),
        ("terminal", if request.terminal { "yes".to_owned() } else { String::new() }),
        ("user", on_a_line(&start.user)),
        (
            "directory",
            start.working_directory.as_deref().map_or_else(|| "too long for the receipt".to_owned(), on_a_line),
        ),
        ("started", on_a_line(&start.time)),
        ("ended", on_a_line(&end.time)),
        ("run time", format!("{}.{:03} s", end.wall_milliseconds / 1000, end.wall_milliseconds % 1000)),
        ("exit", ending(end)),
        ("left running", left_running(end.surviving_processes)),
        ("stdout", stream(statement, STDOUT, &end.stdout)),
        ("stderr", if in_stdout { "in stdout".to_owned() } else { stream(statement, STDERR, &end.stderr) }),
        ("note", if *agent_restarted { RESTARTED.to_owned() } else { String::new() }),
    ]);
    asked + &command + &ran
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
