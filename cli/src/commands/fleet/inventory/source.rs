//! `--inventory`: a file or a directory of Ansible's, a script like Ansible's, or a command.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tree::Tree;
use super::value::Value;
use super::{Inventory, ini, script, variables, yaml};
use crate::output::{Failure, exit, print_message};

/// What Ansible leaves out of a directory, beside hidden files.
const IGNORED: [&str; 12] =
    ["~", ".orig", ".cfg", ".retry", ".pyc", ".pyo", ".bak", ".md", ".rst", ".txt", ".rpm", ".swp"];

/// Reads a file or a directory, or runs a command, which is of several words: one that names no file is a mistake.
///
/// # Errors
/// It cannot be read or run, or is not an inventory.
pub(crate) async fn load(source: &str) -> Result<Inventory, Failure> {
    let text = source.to_owned();
    let read = tokio::task::spawn_blocking(move || read(&text)).await;
    let read = read.map_err(|error| error.to_string()).flatten();
    read.map_err(|error| Failure::message(exit::USAGE, format!("--inventory {source:?}: {error}")))
}

/// The groups of a file that is no program: nothing is run for those who only want to know. Without a message if it cannot
/// be read.
pub(crate) fn groups_of(source: &str) -> Vec<String> {
    let path = Path::new(source);
    let is_text = path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 == 0);
    let mut tree = Tree::default();
    if !is_text || read_file(path, &mut tree).is_err() {
        return Vec::new();
    }
    tree.into_inventory().map(|inventory| inventory.groups.into_keys().collect()).unwrap_or_default()
}

fn read(source: &str) -> Result<Inventory, String> {
    let mut tree = Tree::default();
    let path = Path::new(source);
    if path.exists() {
        let files = if path.is_dir() { files_in(path)? } else { vec![path.to_owned()] };
        for file in files {
            read_file(&file, &mut tree).map_err(|error| match file == path {
                true => error,
                false => format!("{}: {error}", file.display()),
            })?;
        }
        let directory = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        variables::read(directory, &mut tree)?;
    } else if !source.trim().contains(char::is_whitespace) {
        return Err("no such file or directory; a command needs arguments, or its path".to_owned());
    } else {
        let mut shell = Command::new("sh");
        shell.args(["-c", source]);
        script::read(&script::run(shell)?, &mut tree)?;
    }
    tree.warnings.iter().for_each(|warning| print_message(&format!("--inventory {source:?}: {warning}")));
    tree.into_inventory()
}

/// The inventories of a directory.
fn files_in(directory: &Path) -> Result<Vec<PathBuf>, String> {
    files_below(directory, &|name| {
        let ignored = IGNORED.iter().any(|end| name.ends_with(end));
        !ignored && !["group_vars", "host_vars", "vars_plugins"].contains(&name)
    })
}

/// The files in a directory and its subdirectories, sorted, with their names wanted and not hidden.
pub(super) fn files_below(directory: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>, String> {
    let failed = |error: io::Error| format!("{}: {error}", directory.display());
    let entries = std::fs::read_dir(directory).map_err(failed)?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // a link to a directory could lead back here
        if name.starts_with('.') || !wanted(name) || path.is_symlink() && path.is_dir() {
            continue;
        }
        if path.is_dir() {
            files.extend(files_below(&path, wanted)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

fn read_file(path: &Path, tree: &mut Tree) -> Result<(), String> {
    let content = std::fs::read(path).map_err(|error| error.to_string())?;
    let mode = path.metadata().map_err(|error| error.to_string())?.permissions().mode();
    // text files from other systems may be executable too
    let is_program = content.starts_with(b"#!") || str::from_utf8(&content).is_err();
    if mode & 0o111 != 0 && is_program {
        return run_script(path, tree);
    }
    let text = String::from_utf8(content).map_err(|_| "it is not text")?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    match (extension, Value::parse(&text)) {
        (Some("yml" | "yaml" | "json"), parsed) => yaml::read(&parsed?, tree),
        (None, Ok(parsed)) if parsed.as_mapping().is_some() => yaml::read(&parsed, tree),
        _ => ini::read(&text, tree),
    }
}

/// Runs a script with Ansible's arguments: `--list`, and if that has no variables of hosts, `--host` for each.
fn run_script(path: &Path, tree: &mut Tree) -> Result<(), String> {
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    let run = |args: &[&str]| {
        let mut script = Command::new(&path);
        script.args(args);
        script::run(script)
    };
    let inventory = run(&["--list"])?;
    let mut own = Tree::default();
    script::read(&inventory, &mut own)?;
    if script::lacks_host_variables(&inventory) {
        for host in own.host_names() {
            tree.set_host_variables(host, &script::variables(&run(&["--host", host])?))?;
        }
    }
    script::read(&inventory, tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hosts of a file with this name and mode.
    fn hosts(name: &str, text: &str, mode: u32) -> Result<Vec<String>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        read(path.to_str().unwrap()).map(|inventory| inventory.groups["all"].clone())
    }

    #[test]
    fn a_file_is_read_as_what_it_is() {
        for (name, text) in [
            ("hosts", "a\nb x=1\n"),
            ("hosts", "[web]\na\nb\n"),
            ("hosts", "web:\n  hosts:\n    a:\n    b:\n"),
            ("hosts", "{\"web\": {\"hosts\": {\"a\": {}, \"b\": {}}}}"),
            ("hosts.ini", "a\nb\n"),
            ("hosts.yml", "web:\n  hosts: {a: , b: }\n"),
            ("hosts.json", "{\"web\": {\"hosts\": {\"a\": {}, \"b\": {}}}}"),
        ] {
            for mode in [0o600, 0o755] {
                assert_eq!(hosts(name, text, mode).unwrap(), ["a", "b"], "{text}");
            }
        }
        assert!(hosts("hosts.yml", "a\nb\n", 0o600).unwrap_err().contains("expected groups"));
        assert!(hosts("hosts", "\u{1}", 0o600).is_ok());
    }

    #[test]
    fn all_files_of_a_directory_are_one_inventory() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("02-more.yml", "web:\n  hosts:\n    b:\n");
        write("01-hosts", "[web]\na\n[prod:children]\nweb\n");
        write("01-hosts~", "[old]\nx\n");
        write(".hidden", "[old]\ny\n");
        std::fs::create_dir(directory.path().join("group_vars")).unwrap();
        write("group_vars/prod.yml", "telexec_port: 9\n");
        let inventory = read(directory.path().to_str().unwrap()).unwrap();
        assert_eq!((&inventory.groups["all"].join(" ")[..], inventory.hosts["b"].port), ("a b", Some(9)));
        write("03-wrong", "[web\n");
        assert!(read(directory.path().to_str().unwrap()).unwrap_err().contains("03-wrong: line 1: "));
    }
}
