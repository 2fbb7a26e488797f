//! `telexec certs init`: makes the CA.

use super::index::Index;
use super::store::{CRL_DAYS, Store, crl_path, lock};
use super::{FAILED, ca, directory, files};
use crate::args::CertsInitArgs;
use crate::output::{self, Failure};

pub(super) fn init(args: &CertsInitArgs) -> Result<(), Failure> {
    let directory = directory(args.dir.as_ref())?;
    let (cert, key) = (ca::cert_path(&directory), ca::key_path(&directory));
    let (cert_pem, key_pem) = ca::make(&args.name, args.days)?;
    if cert.exists() && ca::is_missing(&key) && !args.force {
        let text = format!("{} is the certificate of a CA on another machine", cert.display());
        return Err(Failure::message(FAILED, text).hint(Some("select a directory for the new CA with --dir")));
    }
    files::check_free(&[&cert, &key], args.force)?;
    files::make_directory(&directory)?;
    {
        let _lock = lock(&directory)?;
        files::write_pair(&cert, &cert_pem, &key, &key_pem, args.force)?;
    }
    // agents can have it from the beginning
    Store::open(&directory)?.save_with_crl(CRL_DAYS)?;
    let given = args.dir.as_ref().map_or_else(String::new, |dir| format!(" --dir {}", dir.display()));
    output::print(
        format!(
            "created {} (public) and {} (keep it secret)\n\
             also {}, which revokes nothing yet, and {}\n\
             next: telexec certs issue NAME --server{given}    for the agent on the host NAME\n      \
             telexec certs issue NAME --client{given}    for the caller NAME\n",
            cert.display(),
            key.display(),
            crl_path(&directory).display(),
            Index::path(&directory).display(),
        )
        .as_bytes(),
    )
}
