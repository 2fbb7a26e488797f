//! `telexec certs issue`: a new key and its certificate, for an agent or a caller.

use std::path::Path;

use super::index::Issued;
use super::profile::{Profile, Usage};
use super::store::{Store, crl_path};
use super::{DAY, FAILED, ca, date, directory, files, new_key, say_cut};
use crate::args::CertsIssueArgs;
use crate::output::{self, Failure, exit};

pub(super) fn issue(args: &CertsIssueArgs) -> Result<(), Failure> {
    let profile = Profile::new(&args.names, &args.usage).map_err(|error| Failure::message(exit::USAGE, error))?;
    let directory = directory(args.dir.as_ref())?;
    let (cert, key) = files_of(&profile.name, args.out.as_deref().unwrap_or(&directory), &directory)?;
    files::check_free(&[&cert, &key], args.force)?;
    let mut store = Store::open(&directory)?;
    let new = new_key()?;
    let (issued, is_cut) = store.issue(&profile, &new, DAY * args.days)?;
    store.save()?;
    files::write_pair(&cert, &issued.certificate, &key, &new.serialize_pem(), args.force)?;
    if is_cut {
        say_cut(&issued.profile.name, issued.not_after);
    }
    drop(store);
    output::print(next_steps(&issued, &directory, &cert, &key).as_bytes())
}

/// The files of a certificate and its key.
///
/// # Errors
/// They are those of the CA.
pub(super) fn files_of(
    name: &str,
    out: &Path,
    directory: &Path,
) -> Result<(std::path::PathBuf, std::path::PathBuf), Failure> {
    let (cert, key) = (out.join(format!("{name}.pem")), out.join(format!("{name}.key")));
    let taken = [ca::cert_path(directory), crl_path(directory), ca::key_path(directory)];
    if taken.contains(&cert) || taken.contains(&key) {
        return Err(Failure::message(FAILED, "these are the files of the CA itself: choose another NAME"));
    }
    Ok((cert, key))
}

fn next_steps(issued: &Issued, directory: &Path, cert: &Path, key: &Path) -> String {
    let (ca, crl) = (ca::cert_path(directory), crl_path(directory));
    let revocation = if crl.exists() { format!(" --client-crl {}", crl.display()) } else { String::new() };
    let (ca, cert, key) = (ca.display(), cert.display(), key.display());
    let mut text = format!("created {cert} and {key}, valid until {}\n", date(issued.not_after));
    let usage: Usage = issued.profile.usage;
    if usage.is_server() {
        text += &format!(
            "for an agent:  telexecd --listen tcp://0.0.0.0:7443 --tls-cert {cert} --tls-key {key} --client-ca {ca}{revocation}\n"
        );
    }
    if usage.is_client() {
        text += &format!("for a caller:  telexec ping --cert {cert} --key {key} --ca {ca} HOST:7443\n");
    }
    text
}
