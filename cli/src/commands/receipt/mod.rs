//! `telexec receipt`: gets and verifies what agents have signed.

mod file;
mod text;
mod verify;

use std::io::{self, Write};
use std::path::Path;

use telexec_executor::Executor;
use telexec_receipt::{KeyError, PublicKey, SigningKey};
use tempfile::NamedTempFile;

pub(super) use self::file::ReceiptFile;
use self::verify::verify_receipt;
use super::find::find;
use crate::args::{ReceiptAction, ReceiptGetArgs, ReceiptKeyArgs};
use crate::connect::{call_failure, with_agent};
use crate::output::{self, Failure, exit};
use crate::syntax::Destination;

/// It is not valid, or there is none.
const NOT_VALID: u8 = 1;

pub(crate) async fn run(action: ReceiptAction) -> Result<u8, Failure> {
    match action {
        ReceiptAction::Verify(args) => verify_receipt(&args).map(|()| 0),
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
fn public_key(target: &Destination, text: &str) -> Result<PublicKey, Failure> {
    let invalid = |error: KeyError| Failure::new(NOT_VALID, &error).context(format!("{target}: its receipt key"));
    let mut keys = PublicKey::from_pem(text.as_bytes()).map_err(invalid)?;
    keys.pop().ok_or_else(|| invalid(KeyError::Missing))
}

fn generate(path: &Path) -> Result<(), Failure> {
    let failed = |error: &dyn std::error::Error| Failure::message(NOT_VALID, format!("{}: {error}", path.display()));
    let of_system = |error: io::Error| failed(&without_path(error));
    let (key, text) = SigningKey::generate().map_err(|error| failed(&error))?;
    // whole or not there, and for its owner alone
    let mut file = NamedTempFile::new_in(directory(path)).map_err(of_system)?;
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

/// Where a file of this path is.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The error without the name of a temporary file.
fn without_path(error: io::Error) -> io::Error {
    error.raw_os_error().map_or(error, io::Error::from_raw_os_error)
}
