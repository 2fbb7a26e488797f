//! `telexec certs revoke` and `crl`: takes certificates back, by a list that agents read.

use std::path::Path;
use std::time::SystemTime;

use telexec_executor::text::counted;

use super::index::{Status, serial, unknown};
use super::store::{CRL_DAYS, Store, crl_path};
use super::token::PendingToken;
use super::{FAILED, date, directory};
use crate::args::{CertsCrlArgs, CertsRevokeArgs, RevokeReason};
use crate::output::{self, Failure};

pub(super) fn revoke(args: &CertsRevokeArgs) -> Result<(), Failure> {
    let directory = directory(args.dir.as_ref())?;
    let mut store = Store::open(&directory)?;
    let now = SystemTime::now();
    let mut text = String::new();
    for selector in &args.selectors {
        text += &revoke_one(&mut store, selector, args.reason, now)?;
    }
    text += &write_list(&mut store, CRL_DAYS)?;
    drop(store);
    output::print((text + &next_steps(&directory)).as_bytes())
}

pub(super) fn crl(args: &CertsCrlArgs) -> Result<(), Failure> {
    let directory = directory(args.dir.as_ref())?;
    let text = write_list(&mut Store::open(&directory)?, args.days)?;
    output::print((text + &next_steps(&directory)).as_bytes())
}

/// Every certificate of the name that could still be used: who has lost one may have lost its predecessors too.
fn revoke_one(
    store: &mut Store,
    selector: &str,
    reason: Option<RevokeReason>,
    now: SystemTime,
) -> Result<String, Failure> {
    let mut text = withdraw_tokens(store, selector, now);
    let found = store.index.find(selector);
    if found.is_empty() && !text.is_empty() {
        return Ok(text);
    }
    if found.is_empty() {
        let serial = serial(selector).ok_or_else(|| unknown(selector, &store.directory))?;
        let text = format!("revoked serial {serial}, which is not in the index\n");
        store.index.revoked_elsewhere.entry(serial).or_insert(now.into());
        return Ok(text);
    }
    for at in found {
        let status = store.index.status(at, now);
        let Some(issued) = store.index.certificates.get_mut(at) else { continue };
        let (name, serial, end) = (&issued.profile.name, &issued.serial, date(issued.not_after));
        text += &match (status, issued.revoke_time) {
            (Status::Expired, _) => continue,
            (_, Some(since)) => format!("{name}, serial {serial}, was revoked on {}\n", date(since)),
            (_, None) => {
                (issued.revoke_time, issued.revoke_reason) = (Some(now), reason);
                format!("revoked {name}, serial {serial}, which was valid until {end}\n")
            }
        };
    }
    match text.is_empty() {
        true => {
            Err(Failure::message(FAILED, format!("{selector}: its certificates have expired, and need no revocation")))
        }
        false => Ok(text),
    }
}

/// Tokens for this name that could still be used.
fn withdraw_tokens(store: &mut Store, name: &str, now: SystemTime) -> String {
    let is_open = |token: &PendingToken| token.profile.name == name && token.is_open(now);
    let count = store.index.tokens.extract_if(.., |token| is_open(token)).count();
    if count == 0 { String::new() } else { format!("withdrew {} for {name}\n", counted(count as u64, "token")) }
}

/// Saves the index, and writes the list.
pub(super) fn write_list(store: &mut Store, days: u32) -> Result<String, Failure> {
    let next_update = store.save_with_crl(days)?;
    let (path, count) = (crl_path(&store.directory), store.revoked(SystemTime::now()).len());
    let certificates = counted(count as u64, "certificate");
    Ok(format!("wrote {}: {certificates} revoked, up to date until {}\n", path.display(), date(next_update)))
}

fn next_steps(directory: &Path) -> String {
    let list = crl_path(directory);
    format!(
        "next: put it in the place of the file that client_crl names, on every agent; they read it within seconds\n      \
         telexec fleet -w HOSTS -i -c 'cat > /etc/telexec/crl.pem.new && mv /etc/telexec/crl.pem.new \
         /etc/telexec/crl.pem' < {}\n",
        list.display()
    )
}
