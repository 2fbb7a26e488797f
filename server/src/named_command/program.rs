//! Whether the program of a named command is on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::NamedCommandConfig;

/// Where programs are looked up unless an environment says otherwise; the order does not matter here.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is missing; it may still be installed later. `environment`: that of all commands.
pub(super) fn missing(command: &NamedCommandConfig, environment: &BTreeMap<String, String>) -> Option<String> {
    let program = command.argv.first()?;
    let (places, fault) = if program.starts_with('/') {
        (vec![PathBuf::from(program)], "is not an executable file".to_owned())
    } else if program.contains('/') {
        // relative to a directory that depends on the request
        return None;
    } else {
        let path = command.environment.get("PATH").or_else(|| environment.get("PATH")).map_or(PATH, String::as_str);
        (path.split(':').map(|place| Path::new(place).join(program)).collect(), format!("is not in {path}"))
    };
    let is_there = places.iter().any(|place| place.is_file() && access(place, Access::EXEC_OK).is_ok());
    (!is_there).then(|| format!("{program:?} {fault}"))
}
