//! Hosts from the output of a command: a JSON list of names, or an Ansible inventory.

use std::process::{Command, Stdio};

use serde_json::{Map, Value};

use super::tree::{Tree, Variables};

/// The output of a command, as JSON.
///
/// # Errors
/// It fails, or its output is not JSON.
pub(super) fn run(mut command: Command) -> Result<Value, String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("failed: {}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("the output is not JSON: {error}"))
}

/// Adds the groups and hosts of the output.
///
/// # Errors
/// It is neither a list of names nor an inventory.
pub(super) fn read(inventory: &Value, tree: &mut Tree) -> Result<(), String> {
    match inventory {
        Value::Array(names) => {
            for name in names {
                let name = name.as_str().ok_or_else(|| format!("{name} is not a host name"))?;
                tree.set_host_variables(name, &Variables::new())?;
            }
            Ok(())
        }
        Value::Object(groups) => add_groups(groups, tree),
        _ => Err("the output is neither a list nor an inventory".to_owned()),
    }
}

/// Whether the variables of hosts must be asked for one by one.
pub(super) fn lacks_host_variables(inventory: &Value) -> bool {
    inventory.as_object().is_some_and(|groups| !groups.contains_key("_meta"))
}

/// Groups with `hosts`, `children` and `vars` (or a list of hosts), and variables of hosts in `_meta`.
fn add_groups(inventory: &Map<String, Value>, tree: &mut Tree) -> Result<(), String> {
    for (name, group) in inventory.iter().filter(|(name, _)| *name != "_meta") {
        tree.add_group(name);
        for host in strings(if group.is_array() { Some(group) } else { group.get("hosts") }) {
            tree.add_host(name, host, &Variables::new())?;
        }
        strings(group.get("children")).for_each(|child| tree.add_child(name, child));
        if let Some(values) = group.get("vars") {
            tree.set_group_variables(name, &variables(values));
        }
    }
    let hosts = inventory.get("_meta").and_then(|meta| meta.get("hostvars")).and_then(Value::as_object);
    for (host, values) in hosts.into_iter().flatten() {
        tree.set_host_variables(host, &variables(values))?;
    }
    Ok(())
}

/// Those with a single value.
pub(super) fn variables(values: &Value) -> Variables {
    let single = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    };
    let values = values.as_object().into_iter().flatten();
    values.filter_map(|(name, value)| Some((name.clone(), single(value)?))).collect()
}

fn strings(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::fleet::inventory::{Inventory, InventoryHost};

    fn inventory(output: &Value) -> Result<Inventory, String> {
        let mut tree = Tree::default();
        read(output, &mut tree)?;
        tree.into_inventory()
    }

    #[test]
    fn a_list_is_an_inventory() {
        assert_eq!(inventory(&json!(["b", "a"])).unwrap().groups["all"], ["b", "a"]);
        assert!(inventory(&json!(["a", 1])).is_err() && inventory(&json!("a")).is_err());
    }

    #[test]
    fn ansible_inventories_have_groups_and_addresses() {
        let output = json!({
            "_meta": { "hostvars": {
                "web1": { "ansible_host": "10.0.0.1", "ansible_port": 22 },
                "db1": { "telexec_target": "unix:///run/db.sock", "ansible_host": "x" },
            } },
            "all": { "children": ["ungrouped", "web", "db"], "vars": { "telexec_port": 17443 } },
            "web": { "hosts": ["web1", "web2"], "vars": { "telexec_server_name": "web" } },
            "db": ["db1"],
            "both": { "children": ["web", "db", "nowhere"] },
        });
        assert!(!lacks_host_variables(&output));
        let inventory = inventory(&output).unwrap();
        assert_eq!(inventory.groups["both"], ["@web", "@db", "@nowhere"]);
        assert_eq!(inventory.groups["nowhere"], [""; 0]);
        assert_eq!(inventory.hosts.keys().collect::<Vec<_>>(), ["db1", "web1", "web2"]);
        let host = InventoryHost { port: Some(17443), ..InventoryHost::default() };
        let web = InventoryHost { server_name: Some("web".to_owned()), ..host.clone() };
        assert_eq!(inventory.hosts["web1"], InventoryHost { address: Some("10.0.0.1".to_owned()), ..web.clone() });
        assert_eq!(inventory.hosts["web2"], web);
        let (target, address) = (Some("unix:///run/db.sock".to_owned()), Some("x".to_owned()));
        assert_eq!(inventory.hosts["db1"], InventoryHost { target, address, ..host });
    }
}
