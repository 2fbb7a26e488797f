//! Hosts from an inventory: Ansible's files in INI or YAML, or the JSON output of a command.
//!
//! The files and commands (`source`, `ini`, `yaml`, `script`) make a `tree` of groups, hosts and variables, with `ranges`
//! of hosts, the `value`s of YAML and the `variables` of other files; from the tree comes the [`Inventory`].

mod ini;
mod ranges;
mod script;
mod source;
mod tree;
mod value;
mod variables;
mod yaml;

use std::collections::BTreeMap;

pub(crate) use self::source::{groups_of, load};

/// The hosts and groups of an inventory.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Inventory {
    pub(crate) hosts: BTreeMap<String, InventoryHost>,
    /// The members of each group, in the order of the inventory. `all` is every host.
    pub(crate) groups: BTreeMap<String, Vec<String>>,
}

/// What an inventory says of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct InventoryHost {
    /// `telexec_target`: any TARGET.
    pub(crate) target: Option<String>,
    /// `ansible_host`. Its port, `ansible_port`, is that of ssh.
    pub(crate) address: Option<String>,
    /// `telexec_port`.
    pub(crate) port: Option<u16>,
    /// `telexec_server_name`.
    pub(crate) server_name: Option<String>,
    /// As whom Ansible would run commands: `ansible_user`, or `ansible_become`. Only for a warning.
    pub(crate) user: Option<String>,
}

impl InventoryHost {
    /// The size of its values.
    fn bytes(&self) -> usize {
        let Self { target, address, port: _, server_name, user } = self;
        [target, address, server_name, user].into_iter().flatten().map(String::len).sum()
    }
}
