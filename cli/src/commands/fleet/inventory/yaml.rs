//! Ansible's inventories in YAML: groups with `hosts`, `vars` and `children`.

use std::borrow::Cow;

use super::ranges;
use super::tree::{Tree, Variables};
use super::value::{Mapping, Value};

/// Adds the groups and hosts of the text.
///
/// # Errors
/// What is wrong, and in which group.
pub(super) fn read(inventory: &Value, tree: &mut Tree) -> Result<(), String> {
    let groups = inventory.as_mapping().ok_or("expected groups, each with hosts, vars or children")?;
    if groups.iter().any(|(key, _)| key.as_str() == Some("plugin")) {
        return Err("it configures a plugin of Ansible; use --inventory 'ansible-inventory -i FILE --list'".to_owned());
    }
    groups.iter().try_for_each(|(name, group)| add_group(&text(name)?, group, tree))
}

/// Recursive: the depth of a [`Value`] is limited.
fn add_group(name: &str, group: &Value, tree: &mut Tree) -> Result<(), String> {
    let group = match group {
        Value::Null => &Mapping::new(),
        Value::Mapping(group) => group,
        Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List => {
            tree.warnings.push(format!("skipped {name}: it is not a group"));
            return Ok(());
        }
    };
    tree.add_group(name);
    for (key, value) in group {
        let entries = || entries(value).ok_or_else(|| format!("group {name}: {key} is not a mapping"));
        match key.as_str() {
            Some("hosts") => {
                entries()?.iter().try_for_each(|(pattern, variables)| add_hosts(pattern, variables, name, tree))?;
            }
            Some("vars") => tree.set_group_variables(name, &variables(entries()?.as_ref())),
            Some("children") => {
                for (child, group) in entries()?.iter() {
                    let child = text(child)?;
                    tree.add_child(name, &child);
                    add_group(&child, group, tree)?;
                }
            }
            _ => {
                tree.warnings.push(format!("group {name}: skipped {key}: expected hosts, vars or children"));
            }
        }
    }
    Ok(())
}

fn add_hosts(pattern: &Value, variables: &Value, group: &str, tree: &mut Tree) -> Result<(), String> {
    let variables = variables.as_mapping().map(self::variables).unwrap_or_default();
    ranges::expand(&text(pattern)?)?.iter().try_for_each(|host| tree.add_host(group, host, &variables))
}

/// A single name stands for a mapping of it to nothing.
fn entries(value: &Value) -> Option<Cow<'_, Mapping>> {
    match value {
        Value::Null => Some(Cow::Owned(Mapping::new())),
        Value::Text(name) => Some(Cow::Owned(vec![(Value::Text(name.clone()), Value::Null)])),
        Value::Mapping(entries) => Some(Cow::Borrowed(entries)),
        Value::Bool(_) | Value::Number(_) | Value::List => None,
    }
}

/// Those with a single value.
pub(super) fn variables(mapping: &Mapping) -> Variables {
    let named = mapping.iter().filter_map(|(name, value)| Some((name.as_str()?, value.as_variable()?)));
    named.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn text(name: &Value) -> Result<String, String> {
    name.as_str().map(str::to_owned).ok_or_else(|| format!("{name} is not a name: put it into quotes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::fleet::inventory::Inventory;

    fn tree(text: &str) -> Result<Tree, String> {
        let mut tree = Tree::default();
        read(&Value::parse(text)?, &mut tree)?;
        Ok(tree)
    }

    fn inventory(text: &str) -> Result<Inventory, String> {
        tree(text)?.into_inventory()
    }

    #[test]
    fn groups_have_hosts_and_variables_and_children() {
        let inventory = inventory(
            "all:
  hosts:
    alone:
  vars: {telexec_port: 17443, list: [1], secret: !vault x}
  children:
    prod:
      children:
        web:
          hosts:
            web[01:02]: &both {ansible_host: 10.0.0.1}
            web10: {<<: *both, telexec_port: '1'}
        db:
          hosts: db1
    empty:
",
        )
        .unwrap();
        let group = |name: &str| inventory.groups[name].join(" ");
        assert_eq!(group("all"), "alone web01 web02 web10 db1");
        assert_eq!(
            (group("prod"), group("web"), group("empty")),
            ("@web @db".into(), "web01 web02 web10".into(), String::new())
        );
        let host = |name: &str| (inventory.hosts[name].address.as_deref(), inventory.hosts[name].port);
        assert_eq!((host("web02"), host("web10")), ((Some("10.0.0.1"), Some(17443)), (Some("10.0.0.1"), Some(1))));
        assert_eq!((host("db1"), host("alone")), ((None, Some(17443)), (None, Some(17443))));
    }

    #[test]
    fn what_is_no_inventory_says_why() {
        for (text, why) in [
            ("- a\n- b\n", "expected groups"),
            ("plugin: amazon.aws.aws_ec2\n", "ansible-inventory -i FILE --list"),
            ("web:\n  hosts: [a, b]\n", "group web: hosts is not a mapping"),
            ("web:\n  hosts:\n    10: {}\n", "10 is not a name"),
            ("web:\n  hosts:\n    a[1-2]: {}\n", "is not a range"),
            ("web: {", "line"),
        ] {
            let error = inventory(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let deep = format!("{}x{}", "{a: {children: ".repeat(60), "}}".repeat(60));
        assert!(inventory(&deep).is_err());
    }

    #[test]
    fn what_is_left_out_is_reported() {
        let tree = tree("web:\n  host: {a: {}}\nversion: 2\n").unwrap();
        assert_eq!(
            tree.warnings,
            ["group web: skipped host: expected hosts, vars or children", "skipped version: it is not a group"]
        );
    }
}
