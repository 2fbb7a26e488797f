//! `telexec receipt verify`: whether a receipt is valid, and of these files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use telexec_executor::text::counted;
use telexec_receipt::{KeyError, PublicKey, Receipt, STDERR, STDOUT, Statement, Verified, sha256, verify};

use super::NOT_VALID;
use super::text::as_text;
use crate::args::ReceiptVerifyArgs;
use crate::output::{self, Failure, exit};

/// Receipts and keys are far smaller.
const MAX_BYTES: u64 = 1 << 20;

pub(super) fn verify_receipt(args: &ReceiptVerifyArgs) -> Result<(), Failure> {
    let named: Vec<_> = args.key.iter().map(|path| Ok((path, read_keys(path)?))).collect::<Result<_, Failure>>()?;
    let keys: Vec<_> = named.iter().flat_map(|(_, keys)| keys).cloned().collect();
    let envelope = read(&args.receipt)?;
    let invalid = |error| Failure::new(NOT_VALID, &error).context(args.receipt.display());
    let Verified { statement, payload, key } = verify(&envelope, &keys).map_err(invalid)?;
    for (name, file) in [(STDOUT, &args.stdout), (STDERR, &args.stderr)] {
        file.iter().try_for_each(|file| compare(&statement, name, file))?;
    }
    let file = named.iter().find(|(_, keys)| keys.contains(key)).map(|(path, _)| path.display().to_string());
    let text = match args.json {
        true => escape_non_ascii(&String::from_utf8_lossy(&payload)) + "\n",
        false => as_text(&format!("{} (key {})", file.unwrap_or_default(), key.id()), &statement),
    };
    output::print(text.as_bytes())
}

/// The same JSON on one line, without characters that a terminal might obey, or that look like others.
fn escape_non_ascii(json: &str) -> String {
    let escaped = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
    let one = |c: char| match c {
        ' '..='~' => c.to_string(),
        // in strings they are escaped already
        '\n' | '\r' | '\t' => " ".to_owned(),
        c => escaped(c),
    };
    json.chars().map(one).collect()
}

fn read_keys(path: &Path) -> Result<Vec<PublicKey>, Failure> {
    let named = |failure: Failure| failure.context("--key");
    let unusable = |error: KeyError| named(Failure::new(exit::USAGE, &error).context(path.display()));
    PublicKey::from_pem(&read(path).map_err(named)?).map_err(unusable)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = match path == Path::new("-") {
        true => io::stdin().take(MAX_BYTES + 1).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)),
    };
    match read {
        Ok(read) if read as u64 > MAX_BYTES => {
            Err(Failure::message(NOT_VALID, format!("{}: it is too long: over 1 MiB", path.display())))
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
