//! `telexec certs renew`: new certificates for the same names.
//!
//! By default for the same key: the certificate is public, so nothing secret is copied, and one file is replaced.

use std::path::Path;
use std::time::SystemTime;

use rcgen::{KeyPair, SubjectPublicKeyInfo};

use super::index::{Issued, Status, unknown};
use super::issue::files_of;
use super::revoke::write_list;
use super::store::{CRL_DAYS, Store};
use super::{DAY, FAILED, ca, date, directory, failed, files, new_key, say_cut};
use crate::args::CertsRenewArgs;
use crate::output::{self, Failure, print_message};

/// A new certificate, and its key if that is new too.
struct Renewed {
    issued: Issued,
    key: Option<KeyPair>,
}

pub(super) fn renew(args: &CertsRenewArgs) -> Result<(), Failure> {
    let directory = directory(args.dir.as_ref())?;
    let mut store = Store::open(&directory)?;
    if args.ca {
        return renew_ca(&store, args.days);
    }
    let out = args.out.as_deref().unwrap_or(&directory);
    let due = due(&store, args)?;
    let mut renewed = Vec::new();
    for issued in &due {
        // before anything is signed
        files_of(&issued.profile.name, out, &directory)?;
        let lifetime = args.days.map_or(issued.lifetime, |days| DAY * days);
        let (new, is_cut) = match args.new_key {
            true => {
                let key = new_key()?;
                let (new, is_cut) = store.issue(&issued.profile, &key, lifetime)?;
                (Renewed { issued: new, key: Some(key) }, is_cut)
            }
            false => {
                let (new, is_cut) = store.issue(&issued.profile, &key_of(issued)?, lifetime)?;
                (Renewed { issued: new, key: None }, is_cut)
            }
        };
        if is_cut {
            say_cut(&new.issued.profile.name, new.issued.not_after);
        }
        renewed.push(new);
    }
    let list = write_list(&mut store, CRL_DAYS)?;
    let mut text = String::new();
    for renewed in &renewed {
        text += &write(renewed, out, &directory)?;
    }
    if renewed.is_empty() {
        text += "nothing is due\n";
    }
    drop(store);
    output::print((text + &list).as_bytes())
}

/// The certificates to renew.
fn due(store: &Store, args: &CertsRenewArgs) -> Result<Vec<Issued>, Failure> {
    let now = SystemTime::now();
    let mut chosen = Vec::new();
    if args.all {
        for issued in store.current(now) {
            match issued.not_after < now {
                true => print_message(&format!(
                    "{} expired on {}: name it to renew it",
                    issued.profile.name,
                    date(issued.not_after)
                )),
                false => chosen.push(issued),
            }
        }
    }
    for selector in &args.selectors {
        chosen.push(chosen_by(store, selector, now)?);
    }
    let within = |issued: &Issued| args.within.is_none_or(|within| issued.not_after <= now + within);
    Ok(chosen.into_iter().filter(within).collect())
}

fn chosen_by(store: &Store, selector: &str, now: SystemTime) -> Result<Issued, Failure> {
    let found = store.index.find(selector);
    if found.is_empty() {
        return Err(unknown(selector, &store.directory));
    }
    let usable = |at: &&usize| store.index.status(**at, now) != Status::Revoked;
    let usable: Vec<_> = found.iter().filter(usable).filter_map(|at| store.index.certificates.get(*at)).collect();
    match usable[..] {
        [.., last] if usable.iter().all(|issued| issued.is_for_same_as(last)) => Ok(last.clone()),
        [] => Err(Failure::message(FAILED, format!("{selector} is revoked: it is not renewed"))
            .hint(Some("issue a new key and certificate with `telexec certs issue`"))),
        _ => Err(Failure::message(FAILED, format!("{selector} has certificates for a server and for a client"))
            .hint(Some("select one by its serial number, which `telexec certs list` shows"))),
    }
}

fn key_of(issued: &Issued) -> Result<SubjectPublicKeyInfo, Failure> {
    let der = issued.der()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).map_err(|error| failed(&issued.serial, &error))?;
    SubjectPublicKeyInfo::from_der(certificate.public_key().raw).map_err(|error| failed(&issued.profile.name, &error))
}

fn write(renewed: &Renewed, out: &Path, directory: &Path) -> Result<String, Failure> {
    let Issued { profile, not_after, certificate, .. } = &renewed.issued;
    let (cert, key) = files_of(&profile.name, out, directory)?;
    let (end, shown) = (date(*not_after), cert.display());
    match &renewed.key {
        Some(new) => {
            files::write_pair(&cert, certificate, &key, &new.serialize_pem(), true)?;
            Ok(format!("renewed {shown} until {end}, with a new key: {}\n", key.display()))
        }
        None => {
            files::make_directory(out)?;
            files::replace(&cert, files::PUBLIC, certificate)?;
            Ok(format!("renewed {shown} until {end}, for the same key: replace the certificate where the key is\n"))
        }
    }
}

fn renew_ca(store: &Store, days: Option<u32>) -> Result<(), Failure> {
    let pem = store.ca.renewed(days.unwrap_or(crate::args::CA_DAYS))?;
    let path = ca::cert_path(&store.directory);
    files::replace(&path, files::PUBLIC, &pem)?;
    let renewed = ca::CertificateAuthority::load(&store.directory)?;
    let text = format!(
        "renewed {} until {}, for the same key: the certificates that it has issued stay valid\n\
         next: replace it on every agent (client_ca) and caller (--ca) before {}, when the previous one ends\n",
        path.display(),
        date(renewed.not_after),
        date(store.ca.not_after),
    );
    output::print(text.as_bytes())
}
