//! The client is linked into other people's programs: what it must not bring along.
//!
//! Read from the manifests and the lock file: `cargo tree` would download crates that no build needs.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail so")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::{Table, Value};

/// What the names of the crates begin with.
const UNWANTED: [&str; 7] =
    ["cedar-policy", "nix", "shuck-", "telexec-engine", "telexec-server", "telexec-shell", "telexec-tool"];

#[test]
fn the_client_brings_no_engine_no_shell_parser_and_no_policy() {
    let crates = dependencies_of(env!("CARGO_PKG_NAME"));
    for wanted in ["telexec-proto", "telexec-executor", "tonic", "hyper"] {
        assert!(crates.contains(wanted), "these are not the client's: {crates:?}");
    }
    let unwanted: Vec<_> =
        crates.iter().filter(|name| UNWANTED.iter().any(|unwanted| name.starts_with(unwanted))).collect();
    assert!(unwanted.is_empty(), "`cargo tree -p telexec-client -e normal -i NAME` says why: {unwanted:?}");
}

/// All that is built for it, and what other features and systems would add to that; not what its tests need.
fn dependencies_of(name: &str) -> BTreeSet<String> {
    let mut dependencies = locked();
    dependencies.extend(members());
    let (mut found, mut open) = (BTreeSet::new(), vec![name.to_owned()]);
    while let Some(name) = open.pop() {
        let next = dependencies.get(&name).unwrap_or_else(|| panic!("{name} is in neither file"));
        open.extend(next.iter().filter(|name| found.insert((*name).clone())).cloned());
    }
    found
}

/// The dependencies of each crate by the lock file, which does not distinguish those of tests.
fn locked() -> BTreeMap<String, BTreeSet<String>> {
    let mut dependencies = BTreeMap::<_, BTreeSet<_>>::new();
    for package in read("Cargo.lock")["package"].as_array().unwrap() {
        let next = package.get("dependencies").and_then(Value::as_array).into_iter().flatten();
        // a name, and its version where there are several
        let next = next.filter_map(|name| name.as_str()?.split(' ').next()).map(str::to_owned);
        dependencies.entry(package["name"].as_str().unwrap().to_owned()).or_default().extend(next);
    }
    dependencies
}

/// The same of the workspace's own crates, without those of tests.
fn members() -> BTreeMap<String, BTreeSet<String>> {
    let members = read("Cargo.toml")["workspace"]["members"].clone();
    let manifests =
        members.as_array().unwrap().iter().map(|path| read(&format!("{}/Cargo.toml", path.as_str().unwrap())));
    manifests.map(|manifest| (manifest["package"]["name"].as_str().unwrap().to_owned(), normal(&manifest))).collect()
}

fn normal(manifest: &Table) -> BTreeSet<String> {
    let systems = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let tables = [manifest.get("dependencies")].into_iter().chain(systems.map(|system| system.get("dependencies")));
    tables.flatten().flat_map(|table| table.as_table().unwrap().keys().cloned()).collect()
}

fn read(path: &str) -> Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}
