//! Ansible's variables in files of their own: `group_vars/web.yml`, `host_vars/web1/main.yml`, beside an inventory.

use std::path::{Path, PathBuf};

use super::source::files_below;
use super::tree::{Tree, Variables};
use super::value::{VAULT, Value};
use super::yaml;

/// What such a file may end with, in the order in which Ansible looks.
const EXTENSIONS: [&str; 4] = ["", ".yml", ".yaml", ".json"];

/// Adds the variables of all groups and hosts of the tree.
///
/// # Errors
/// A file cannot be read.
pub(super) fn read(directory: &Path, tree: &mut Tree) -> Result<(), String> {
    let read_for = |names: Vec<String>, below: PathBuf| -> Result<Vec<(String, Variables)>, String> {
        if !below.is_dir() {
            return Ok(Vec::new());
        }
        let read = names.into_iter().map(|name| of(&below, &name).map(|variables| (name, variables)));
        read.filter(|read| read.as_ref().is_ok_and(|(_, variables)| !variables.is_empty()) || read.is_err()).collect()
    };
    let groups = read_for(tree.group_names().map(str::to_owned).collect(), directory.join("group_vars"))?;
    let hosts = read_for(tree.host_names().map(str::to_owned).collect(), directory.join("host_vars"))?;
    groups.into_iter().for_each(|(name, variables)| tree.set_group_file(name, &variables));
    hosts.into_iter().for_each(|(name, variables)| tree.set_host_file(name, &variables));
    Ok(())
}

/// The variables of one group or host, in a file, or in the files of a directory.
fn of(directory: &Path, name: &str) -> Result<Variables, String> {
    let mut variables = Variables::new();
    // a name such as ../x is no file name
    if name.contains('/') {
        return Ok(variables);
    }
    for path in EXTENSIONS.map(|extension| directory.join(format!("{name}{extension}"))) {
        let files = if path.is_dir() {
            files_with_variables(&path)?
        } else if path.is_file() {
            vec![path]
        } else {
            continue;
        };
        for file in files {
            variables.extend(read_file(&file)?);
        }
        break;
    }
    Ok(variables)
}

/// All files with variables.
fn files_with_variables(directory: &Path) -> Result<Vec<PathBuf>, String> {
    files_below(directory, &|name| {
        let extension = name.rfind('.').and_then(|dot| name.get(dot..)).unwrap_or_default();
        !name.ends_with('~') && (EXTENSIONS.contains(&extension) || directory.join(name).is_dir())
    })
}

fn read_file(path: &Path) -> Result<Variables, String> {
    let named = |error: String| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    if text.starts_with(VAULT) {
        return Ok(Variables::new());
    }
    match Value::parse(&text).map_err(named)? {
        Value::Null => Ok(Variables::new()),
        Value::Mapping(variables) => Ok(yaml::variables(&variables)),
        Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List => {
            Err(named("expected variables, as NAME: VALUE".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_beside_the_inventory_have_variables() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("group_vars/all.yml", "telexec_port: 1\nansible_host: all");
        write("group_vars/web/10-a.yml", "telexec_port: 2");
        write("group_vars/web/20-b.yml", "# later\ntelexec_port: 3");
        write("group_vars/web/30-c.yml~", "telexec_port: 4");
        write("group_vars/web/vault", "$ANSIBLE_VAULT;1.1;AES256\n6162");
        write("host_vars/a.json", "{\"ansible_host\": \"own\"}");
        write("host_vars/other.yml", "{");
        let mut tree = Tree::default();
        for host in ["a", "b", "../group_vars/all"] {
            tree.add_host("web", host, &Variables::new()).unwrap();
        }
        read(directory.path(), &mut tree).unwrap();
        let hosts = tree.into_inventory().unwrap().hosts;
        let host = |name: &str| (hosts[name].address.as_deref(), hosts[name].port);
        assert_eq!((host("a"), host("b")), ((Some("own"), Some(3)), (Some("all"), Some(3))));

        let mut tree = Tree::default();
        tree.add_host("web", "other", &Variables::new()).unwrap();
        assert!(read(directory.path(), &mut tree).unwrap_err().contains("host_vars/other.yml: "));
    }
}
