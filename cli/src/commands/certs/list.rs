//! `telexec certs list`: the CA and what it has issued.

use std::time::SystemTime;

use serde_json::json;

use super::index::{Issued, Status};
use super::store::Store;
use super::{date, directory};
use crate::args::CertsListArgs;
use crate::output::{self, Failure, json, printable, table};
use crate::terminal;

const HEADING: [&str; 6] = ["NAME", "FOR", "EXPIRES", "STATUS", "SERIAL", "NAMES"];

/// The status of a token that has not been used; it expires before the certificate begins.
const TOKEN: &str = "token";

pub(super) fn list(args: &CertsListArgs) -> Result<(), Failure> {
    let store = Store::open(&directory(args.dir.as_ref())?)?;
    let now = SystemTime::now();
    let all = store.index.certificates.iter().enumerate().map(|(at, issued)| (issued, store.index.status(at, now)));
    let replaced = |at: &usize| store.index.is_renewed(*at);
    let shown: Vec<_> = all
        .enumerate()
        // a revoked certificate matters while it could be used
        .filter(|(at, (_, status))| args.all || *status == Status::Revoked || !replaced(at))
        .map(|(_, shown)| shown)
        .collect();
    let text = if args.json { as_json(&store, &shown, now) } else { as_table(&store, &shown, now) };
    // the reader of standard output may be slow, or a pager
    drop(store);
    output::print(text.as_bytes())
}

fn as_table(store: &Store, shown: &[(&Issued, Status)], now: SystemTime) -> String {
    let ca_status = if store.ca.not_after < now { Status::Expired } else { Status::Valid };
    let ca = [&*printable(&store.ca.name), "CA", &*date(store.ca.not_after), ca_status.as_str(), "", ""];
    let mut rows = vec![HEADING.map(str::to_owned), ca.map(str::to_owned)];
    rows.extend(shown.iter().map(|(issued, status)| {
        [
            printable(&issued.profile.name),
            issued.profile.usage.as_str().to_owned(),
            date(issued.not_after),
            status.as_str().to_owned(),
            issued.serial.clone(),
            printable(&issued.profile.listed_names()),
        ]
    }));
    rows.extend(store.index.tokens.iter().filter(|token| token.is_open(now)).map(|token| {
        [
            printable(&token.profile.name),
            token.profile.usage.as_str().to_owned(),
            date(token.expire_time),
            TOKEN.to_owned(),
            String::new(),
            printable(&token.profile.listed_names()),
        ]
    }));
    let elsewhere = store.index.revoked_elsewhere.keys();
    rows.extend(elsewhere.map(|serial| ["-", "-", "-", Status::Revoked.as_str(), serial, ""].map(str::to_owned)));
    table(&rows, terminal::output_width())
}

fn as_json(store: &Store, shown: &[(&Issued, Status)], now: SystemTime) -> String {
    let ca = json!({ "name": store.ca.name, "usage": "ca", "expire_time": json::time(store.ca.not_after) });
    let rows = shown.iter().map(|(issued, status)| {
        json!({
            "name": issued.profile.name,
            "usage": issued.profile.usage.as_str(),
            "names": issued.profile.names.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "serial": issued.serial,
            "issue_time": json::time(issued.not_before + super::CLOCK_SKEW),
            "expire_time": json::time(issued.not_after),
            "status": status.as_str(),
            "revoke_time": issued.revoke_time.and_then(json::time),
            "revoke_reason": issued.revoke_reason,
        })
    });
    let tokens = store.index.tokens.iter().filter(|token| token.is_open(now)).map(|token| {
        json!({
            "name": token.profile.name,
            "usage": token.profile.usage.as_str(),
            "names": token.profile.names.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "expire_time": json::time(token.expire_time),
            "status": TOKEN,
        })
    });
    let elsewhere = store.index.revoked_elsewhere.iter().map(|(serial, time)| {
        json!({ "serial": serial, "status": Status::Revoked.as_str(), "revoke_time": json::time(**time) })
    });
    std::iter::once(ca).chain(rows).chain(tokens).chain(elsewhere).map(|row| format!("{row}\n")).collect()
}
