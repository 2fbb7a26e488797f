//! Hosts from the output of a command: a JSON list of names, or an Ansible inventory.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use serde_json::{Map, Value};

use crate::output::{Failure, exit};

/// The hosts and groups of an inventory.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Inventory {
    pub(crate) hosts: BTreeMap<String, InventoryHost>,
    pub(crate) groups: BTreeMap<String, Vec<String>>,
}

/// A host with its variables, its own or those of `all`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct InventoryHost {
    /// `telexec_address` (any TARGET), or `ansible_host`.
    pub(crate) address: Option<String>,
    /// `telexec_port`.
    pub(crate) port: Option<u16>,
    /// `telexec_server_name`.
    pub(crate) server_name: Option<String>,
}

/// Runs the command with the shell.
///
/// # Errors
/// It fails, or its output is not an inventory.
pub(crate) async fn run(command: &str) -> Result<Inventory, Failure> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let failed = |error: String| Failure::message(exit::USAGE, format!("--inventory {command:?}: {error}"));
    let output = tokio::task::spawn_blocking(move || shell.output()).await;
    let output = output.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("failed: {}", output.status)));
    }
    let inventory: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| failed(format!("the output is not JSON: {error}")))?;
    read(&inventory).map_err(failed)
}

fn read(inventory: &Value) -> Result<Inventory, String> {
    match inventory {
        Value::Array(names) => {
            let host = |name: &Value| Some((name.as_str()?.to_owned(), InventoryHost::default()));
            let hosts = names.iter().map(|name| host(name).ok_or_else(|| format!("{name} is not a host name")));
            Ok(Inventory { hosts: hosts.collect::<Result<_, _>>()?, groups: BTreeMap::new() })
        }
        Value::Object(groups) => Ok(ansible(groups)),
        _ => Err("the output is neither a list nor an inventory".to_owned()),
    }
}

/// Groups with `hosts` and `children` (or a list of hosts), and variables in `_meta`.
fn ansible(inventory: &Map<String, Value>) -> Inventory {
    let mut groups = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (name, group) in inventory.iter().filter(|(name, _)| *name != "_meta") {
        let hosts = strings(if group.is_array() { Some(group) } else { group.get("hosts") });
        names.extend(hosts.iter().cloned());
        // a child group that is not defined is empty
        let children = strings(group.get("children")).into_iter().filter(|child| inventory.contains_key(child));
        groups.insert(name.clone(), hosts.into_iter().chain(children.map(|child| format!("@{child}"))).collect());
    }
    let none = Map::new();
    let variables = inventory.get("_meta").and_then(|meta| meta.get("hostvars")).and_then(Value::as_object);
    let variables = variables.unwrap_or(&none);
    names.extend(variables.keys().cloned());
    let common = inventory.get("all").and_then(|all| all.get("vars"));
    let hosts = names.iter().map(|name| (name.clone(), listed(&[variables.get(name), common])));
    groups.insert("all".to_owned(), names.iter().cloned().collect());
    Inventory { hosts: hosts.collect(), groups }
}

fn listed(variables: &[Option<&Value>]) -> InventoryHost {
    let first = |name: &str| variables.iter().flatten().find_map(|variables| variables.get(name));
    let text = |name: &str| first(name).and_then(Value::as_str).map(str::to_owned);
    let port = first("telexec_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
    InventoryHost {
        address: text("telexec_address").or_else(|| text("ansible_host")),
        port,
        server_name: text("telexec_server_name"),
    }
}

fn strings(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_is_an_inventory() {
        let inventory = read(&json!(["a", "b"])).unwrap();
        assert_eq!(inventory.hosts.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert!(read(&json!(["a", 1])).is_err() && read(&json!("a")).is_err());
    }

    #[test]
    fn ansible_inventories_have_groups_and_addresses() {
        let inventory = read(&json!({
            "_meta": { "hostvars": {
                "web1": { "ansible_host": "10.0.0.1" },
                "db1": { "telexec_address": "unix:///run/db.sock", "ansible_host": "x" },
            } },
            "all": { "children": ["ungrouped", "web", "db"], "vars": { "telexec_port": 17443 } },
            "web": { "hosts": ["web1", "web2"] },
            "db": ["db1"],
            "both": { "children": ["web", "db", "nowhere"] },
        }))
        .unwrap();
        assert_eq!(inventory.groups["both"], ["@web", "@db"]);
        assert_eq!(inventory.groups["all"], ["db1", "web1", "web2"]);
        let listed = |address: Option<&str>| InventoryHost {
            address: address.map(str::to_owned),
            port: Some(17443),
            server_name: None,
        };
        assert_eq!(inventory.hosts["web1"], listed(Some("10.0.0.1")));
        assert_eq!(inventory.hosts["web2"], listed(None));
        assert_eq!(inventory.hosts["db1"], listed(Some("unix:///run/db.sock")));
    }
}
