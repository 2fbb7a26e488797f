//! `telexec certs enroll`: gets or renews the certificate of a caller.

use std::path::Path;
use std::time::Duration;

use telexec_enrollment::{EnrollError, Enrolled, MachineFiles};

use super::{FAILED, directory};
use crate::args::CertsEnrollArgs;
use crate::output::{self, Failure, exit, print_message};

pub(super) fn enroll(args: &CertsEnrollArgs) -> Result<(), Failure> {
    let directory = directory(args.dir.as_ref())?;
    // for the configuration file, which may be anywhere
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| super::failed("cannot start", &error))?;
    let report = |error: &EnrollError, rest: Duration| {
        let hint = error.hint().map(|hint| format!(": {hint}")).unwrap_or_default();
        print_message(&format!("{}; trying again for {} s{hint}", Failure::new(FAILED, error), rest.as_secs().max(1)));
    };
    let done = runtime.block_on(args.enroll.run(&directory, report));
    let done = done.map_err(|error| match error {
        EnrollError::Usage(_) => Failure::new(exit::USAGE, &error),
        _ => Failure::new(FAILED, &error).hint(error.hint()),
    })?;
    let text = match &done {
        Enrolled::Certificate(files) => {
            format!("wrote {}; in ~/.config/telexec/config.toml:\n{}", files.cert.display(), configuration(files))
        }
        Enrolled::NotDue(files) => format!("{} is not due for renewal\n", files.cert.display()),
        Enrolled::Request(request, files) => format!(
            "wrote {}: have it signed, and put the certificate into {}, with intermediate ones after it\n",
            request.display(),
            files.cert.display()
        ),
    };
    output::print(text.as_bytes())
}

fn configuration(files: &MachineFiles) -> String {
    let line = |key: &str, path: &Path| format!("{key} = {:?}\n", path.display().to_string());
    ["[defaults]\n".to_owned(), line("cert", &files.cert), line("key", &files.key), line("ca", &files.ca)].concat()
}
