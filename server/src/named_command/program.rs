//! Whether the program of a named command is on this machine.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where programs are looked up unless an environment says otherwise; the order does not matter here.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is wrong with a program that is looked up in these environments, the first that has a `PATH` before the others; it may still
/// be installed later.
pub(super) fn missing(program: &str, environments: [&BTreeMap<String, String>; 2]) -> Option<String> {
    let path = environments.into_iter().find_map(|environment| environment.get("PATH")).map_or(PATH, String::as_str);
    let (places, fault): (Vec<_>, _) = match program.contains('/') {
        true => (vec![PathBuf::from(program)], "does not exist, or is not executable".to_owned()),
        false => (path.split(':').map(|place| Path::new(place).join(program)).collect(), format!("is not in {path}")),
    };
    // what is relative depends on the request's working directory
    let is_known = places.iter().all(|place| place.is_absolute());
    (is_known && !places.iter().any(|place| may_be_executable(place))).then(|| format!("{program:?} {fault}"))
}

/// The user who checks may see less than the user of the command.
fn may_be_executable(place: &Path) -> bool {
    match place.metadata() {
        Ok(file) => file.is_file() && file.permissions().mode() & 0o111 != 0,
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}
