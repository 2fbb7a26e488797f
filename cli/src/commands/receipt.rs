//! `telexec receipt`: gets, shows and verifies what agents have signed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use telexec_executor::Exited;
use telexec_receipt::{PublicKey, Receipt, STDERR, STDIN, STDOUT, SigningKey, Statement, Stream, verify};
use tempfile::NamedTempFile;

use super::find::find;
use crate::args::{ReceiptAction, ReceiptGetArgs, ReceiptKeyArgs, ReceiptVerifyArgs};
use crate::connect::{call_failure, with_agent};
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
    let found =
        with_agent(target, &args.connect, async |agent| find(&agent.executor(), target, &args.execution.id).await);
    let info = found.await?;
    let Some(exited) = &info.exited else {
        return Err(Failure::message(NOT_VALID, format!("{target}: execution {} has not ended", info.id))
            .hint(Some(format!("wait for it first: telexec wait {target} {}", info.id))));
    };
    match &exited.receipt {
        Some(receipt) => output::print(format!("{receipt}\n").as_bytes()).map(|()| 0),
        None => Err(Failure::message(NOT_VALID, format!("{target}: execution {} has no receipt", info.id))
            .hint(Some("one has if it is started with --receipt"))),
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
        text => {
            // what is printed is a key, and nothing else
            let key = PublicKey::from_pem(text.as_bytes());
            let key = key.map_err(|error| Failure::new(NOT_VALID, &error).context(target))?;
            output::print(key.to_pem().as_bytes()).map(|()| 0)
        }
    }
}

fn generate(path: &Path) -> Result<(), Failure> {
    let failed = |error: &dyn std::error::Error| Failure::message(NOT_VALID, format!("{}: {error}", path.display()));
    let (key, text) = SigningKey::generate().map_err(|error| failed(&error))?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // whole or not there, and for its owner alone
    let mut file = NamedTempFile::new_in(directory).map_err(|error| failed(&error))?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(|error| failed(&error))?;
    file.persist_noclobber(path).map_err(|error| failed(&error.error))?;
    output::print(key.public().to_pem().as_bytes())
}

/// Writes the receipt of a command that has ended. Returns the exit code in place of this one: a success without the receipt
/// that was asked for is none.
pub(super) fn save(path: &Path, target: &Destination, exited: &Exited, code: u8) -> u8 {
    let failure = match &exited.receipt {
        None => "the agent has sent no receipt: it is older than receipts, or was restarted without its key".to_owned(),
        Some(receipt) => match std::fs::write(path, format!("{receipt}\n")) {
            Ok(()) => return code,
            Err(error) => format!("cannot write the receipt to {}: {error}", path.display()),
        },
    };
    output::print_message(&format!("{target}: {failure}"));
    if code == 0 { exit::LOST } else { code }
}

fn show(args: &ReceiptVerifyArgs) -> Result<(), Failure> {
    let keys: Vec<_> = args.key.iter().map(|path| read_key(path)).collect::<Result<_, _>>()?;
    let envelope = read(&args.receipt)?;
    let invalid = |error| Failure::new(NOT_VALID, &error).context(args.receipt.display());
    let statement = verify(&envelope, &keys).map_err(invalid)?;
    let by = |key: &PublicKey| verify(&envelope, std::slice::from_ref(key)).is_ok();
    let signer = args.key.iter().zip(&keys).find(|(_, key)| by(key)).map(|(path, _)| path.display().to_string());
    for (name, file) in [(STDOUT, &args.stdout), (STDERR, &args.stderr)] {
        file.iter().try_for_each(|file| compare(&statement, name, file))?;
    }
    let text = match args.json {
        true => serde_json::to_string(&statement).map(|line| line + "\n"),
        false => Ok(as_text(&signer.unwrap_or_default(), &statement)),
    };
    output::print(text.map_err(|error| Failure::new(NOT_VALID, &error))?.as_bytes())
}

fn read_key(path: &Path) -> Result<PublicKey, Failure> {
    let unusable = |error: &(dyn std::error::Error + 'static)| Failure::new(exit::USAGE, error).context(path.display());
    PublicKey::from_pem(&std::fs::read(path).map_err(|error| unusable(&error))?).map_err(|error| unusable(&error))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = match path == Path::new("-") {
        true => io::stdin().take(MAX_BYTES).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)),
    };
    read.map_err(|error| Failure::new(exit::USAGE, &error).context(path.display()))?;
    Ok(bytes)
}

/// Whether a file has what the receipt has the digest of.
fn compare(statement: &Statement, name: &str, path: &Path) -> Result<(), Failure> {
    let digest = sha256(path).map_err(|error| Failure::new(exit::USAGE, &error).context(path.display()))?;
    let why = match statement.sha256(name) {
        None => format!("the receipt does not say what was written to {name}: the agent was restarted meanwhile"),
        Some(signed) if signed.eq_ignore_ascii_case(&digest) => return Ok(()),
        Some(_) => format!("this is not what the command wrote to {name}, by its SHA-256"),
    };
    Err(Failure::message(NOT_VALID, format!("{}: {why}", path.display())))
}

/// In hexadecimal.
fn sha256(path: &Path) -> io::Result<String> {
    let (mut file, mut context, mut buffer) = (File::open(path)?, Context::new(&SHA256), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => context.update(buffer.get(..read).unwrap_or_default()),
        }
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn as_text(signer: &str, statement: &Statement) -> String {
    let Receipt { execution_id, agent, caller, policy, request, start, end, agent_restarted } = &statement.predicate;
    let policy = policy.clone().unwrap_or_default();
    let asked = rows([
        ("signed by", on_a_line(signer)),
        ("agent", format!("{} (telexec {})", on_a_line(&agent.host), on_a_line(&agent.version))),
        ("execution", on_a_line(execution_id)),
        ("identity", format!("{} ({})", on_a_line(&caller.identity), on_a_line(&caller.transport))),
        ("rules", on_a_line(&policy.rules.join(", "))),
        ("approved by", policy.approved_by.as_deref().map(on_a_line).unwrap_or_default()),
        ("reason", on_a_line(&request.reason)),
        ("named command", request.named_command.as_deref().map(on_a_line).unwrap_or_default()),
    ]);
    let text = request.command.as_deref().unwrap_or_default();
    let argv = request.argv.as_deref().unwrap_or_default();
    let command = match text.is_empty() && argv.is_empty() {
        true => rows([("command", format!("not in the receipt: it has {} bytes", request.command_bytes))]),
        false => program(text, argv),
    };
    let login = if request.login { " (login)" } else { "" };
    let variables = match &request.environment {
        None => format!("{} variables, which are not in the receipt", request.environment_count),
        Some(names) => words(names),
    };
    let ran = rows([
        ("shell", request.shell.as_deref().map(on_a_line).unwrap_or_default() + login),
        ("variables", variables + if request.clear_environment { " (and no others)" } else { "" }),
        ("input", input(statement)),
        ("terminal", if request.terminal { "yes".to_owned() } else { String::new() }),
        ("user", on_a_line(&start.user)),
        ("directory", on_a_line(&start.working_directory)),
        ("started", on_a_line(&start.time)),
        ("ended", format!("{} (after {:.3} s)", on_a_line(&end.time), end.wall_seconds)),
        ("exit", ending(end)),
        (
            "left running",
            if end.surviving_processes == 0 {
                "nothing".to_owned()
            } else {
                format!("{} processes", end.surviving_processes)
            },
        ),
        ("stdout", stream(statement, STDOUT, &end.stdout)),
        ("stderr", if request.merge_output { "in stdout".to_owned() } else { stream(statement, STDERR, &end.stderr) }),
        (
            "note",
            if *agent_restarted { "the agent was restarted while the command ran".to_owned() } else { String::new() },
        ),
    ]);
    asked + &command + &ran
}

fn ending(end: &telexec_receipt::End) -> String {
    let signal = end.signal.as_deref().map(|signal| format!(", {}", on_a_line(signal))).unwrap_or_default();
    let core = if end.core_dumped { " (core dumped)" } else { "" };
    match end.cause.as_str() {
        "exited" => format!("code {}", end.exit_code),
        cause => format!("{}{signal}{core}", on_a_line(cause)),
    }
}

fn input(statement: &Statement) -> String {
    let request = &statement.predicate.request;
    let given =
        statement.sha256(STDIN).map(|digest| format!("{} bytes, SHA-256 {}", request.stdin_bytes, on_a_line(digest)));
    let later = request.accepts_input.then(|| "any that was sent while it ran".to_owned());
    given.into_iter().chain(later).collect::<Vec<_>>().join(", then ")
}

fn stream(statement: &Statement, name: &str, stream: &Stream) -> String {
    let digest = statement.sha256(name).map_or_else(|| "unknown".to_owned(), on_a_line);
    let dropped = match stream.dropped_bytes {
        0 => String::new(),
        bytes => format!(", of which {bytes} were dropped"),
    };
    let more = if stream.incomplete { ", and maybe more later" } else { "" };
    format!("{} bytes, SHA-256 {digest}{dropped}{more}", stream.bytes)
}
