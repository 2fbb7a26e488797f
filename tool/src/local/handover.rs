//! What an engine leaves to the next one on the same state directory: the ended executions that it remembers, a line of
//! JSON for each, in a file beside those of its spool.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tracing::warn;

use super::registry::Asked;
use super::spool::{PREFIX, Spool, SpoolFile, Stored};
use super::watch::MainProcess;
use crate::{ExecutionId, Exited, OutputStream};

const FILE: &str = "executions";
/// Of the format: goes up with any change that an older or a newer engine would take for something else.
const VERSION: u32 = 1;
/// What the directory becomes whose file cannot be read.
const ASIDE: &str = "unreadable-";

/// The first line.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    /// How many lines follow.
    executions: usize,
}

/// An ended execution.
#[derive(Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) id: ExecutionId,
    pub(super) sequence: u64,
    pub(super) asked: Asked,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) fingerprint: Option<u64>,
    pub(super) main: MainProcess,
    pub(super) exited: Exited,
    pub(super) output: Printed,
}

/// Its output.
#[derive(Serialize, Deserialize)]
pub(super) struct Printed {
    /// Bytes of both streams.
    pub(super) end: u64,
    /// The last of them.
    pub(super) tail: Vec<Chunk>,
    /// Those on disk.
    pub(super) stored: Option<Stored>,
}

/// A piece of output.
#[derive(Serialize, Deserialize)]
pub(super) struct Chunk {
    pub(super) stream: OutputStream,
    pub(super) position: u64,
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub(super) data: Bytes,
}

fn to_base64<S: Serializer>(data: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(data))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD.decode(text).map(Bytes::from).map_err(D::Error::custom)
}

/// An ended execution of an earlier engine, and its output on disk.
pub(super) struct Inherited {
    pub(super) ended: Ended,
    pub(super) file: Option<SpoolFile>,
}

/// Writes what the next engine is to find. Blocks.
///
/// # Errors
/// It cannot be written; there is no part of it then.
pub(super) fn write(directory: &Path, executions: &[Ended]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    let mut writer = BufWriter::new(file.as_file_mut());
    line(&mut writer, &Header { version: VERSION, executions: executions.len() })?;
    executions.iter().try_for_each(|ended| line(&mut writer, ended))?;
    writer.flush()?;
    drop(writer);
    file.as_file().sync_all()?;
    file.persist(directory.join(FILE))?;
    Ok(())
}

fn line(writer: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *writer, value)?;
    writer.write_all(b"\n")
}

/// What an earlier engine has left in its directory, which is removed; or set aside, if that cannot be read. Blocks.
pub(super) fn take(directory: &Path, spool: &Arc<Spool>) -> Vec<Inherited> {
    match read(directory) {
        Ok(executions) => {
            let inherited = executions.into_iter().map(|ended| inherit(ended, directory, spool)).collect();
            let _ = fs::remove_dir_all(directory);
            inherited
        }
        Err(error) => {
            set_aside(directory, &error);
            Vec::new()
        }
    }
}

/// # Errors
/// It is not whole, or of another version.
fn read(directory: &Path) -> io::Result<Vec<Ended>> {
    let file = match File::open(directory.join(FILE)) {
        // a killed engine's
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut lines = BufReader::new(file).lines();
    let header: Header = serde_json::from_str(&lines.next().ok_or(io::ErrorKind::UnexpectedEof)??)?;
    if header.version != VERSION {
        return Err(io::Error::other(format!("it is of version {}, not {VERSION}", header.version)));
    }
    let executions: Vec<Ended> = lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect::<io::Result<_>>()?;
    match executions.len() == header.executions {
        true => Ok(executions),
        false => Err(io::Error::other(format!("{} of {} executions are there", executions.len(), header.executions))),
    }
}

/// Without its files an execution is remembered all the same; what was in them is a gap then.
fn inherit(ended: Ended, directory: &Path, spool: &Arc<Spool>) -> Inherited {
    let file = ended.output.stored.and_then(|stored| {
        let taken = spool.take(directory, stored);
        taken.inspect_err(|error| warn!(id = %ended.id, %error, "the kept output of an execution is lost")).ok()
    });
    // the engine after this one is to have what is in memory, too
    let file = file.or_else(|| (!ended.output.tail.is_empty()).then(|| spool.file()));
    Inherited { ended, file }
}

/// Only the last one is kept, so that they do not fill the disk.
fn set_aside(directory: &Path, error: &io::Error) {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let aside = directory.with_file_name(name.replacen(PREFIX, ASIDE, 1));
    let siblings = directory.parent().and_then(|state_dir| fs::read_dir(state_dir).ok());
    for sibling in siblings.into_iter().flatten().flatten() {
        if sibling.file_name().to_string_lossy().starts_with(ASIDE) {
            let _ = fs::remove_dir_all(sibling.path());
        }
    }
    match fs::rename(directory, &aside) {
        Ok(()) => {
            warn!(path = %aside.display(), %error, "what the last agent left cannot be read, and is set aside");
        }
        Err(rename) => {
            warn!(path = %directory.display(), %error, %rename, "what the last agent left cannot be read");
        }
    }
}
