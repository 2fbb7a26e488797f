//! The groups, hosts and variables of an inventory, and which variables a host has: Ansible's order of precedence.

use std::collections::{BTreeMap, BTreeSet};

use super::{Inventory, InventoryHost};

const ALL: &str = "all";
const UNGROUPED: &str = "ungrouped";

/// Variables with a single value.
pub(super) type Variables = BTreeMap<String, String>;

/// What all sources of an inventory say.
#[derive(Debug, Default)]
pub(super) struct Tree {
    hosts: BTreeMap<String, Variables>,
    /// The hosts in the order in which they were added.
    order: Vec<String>,
    groups: BTreeMap<String, Group>,
    /// Files that have variables of groups and hosts only, which take precedence.
    pub(super) group_files: BTreeMap<String, Variables>,
    pub(super) host_files: BTreeMap<String, Variables>,
    /// What was left out of it.
    pub(super) warnings: Vec<String>,
}

#[derive(Debug, Default)]
struct Group {
    hosts: Vec<String>,
    children: Vec<String>,
    variables: Variables,
}

impl Tree {
    pub(super) fn add_group(&mut self, name: &str) {
        self.group(name);
    }

    pub(super) fn add_child(&mut self, parent: &str, child: &str) {
        self.group(child);
        let children = &mut self.group(parent).children;
        if !children.iter().any(|known| known == child) {
            children.push(child.to_owned());
        }
    }

    pub(super) fn add_host(&mut self, group: &str, name: &str, variables: Variables) {
        self.set_host_variables(name, variables);
        let hosts = &mut self.group(group).hosts;
        // a group that lists a host twice does so in succession, or it is long: no search
        if hosts.last().is_none_or(|last| last != name) {
            hosts.push(name.to_owned());
        }
    }

    /// Also adds the host, to no group.
    pub(super) fn set_host_variables(&mut self, name: &str, variables: Variables) {
        if !self.hosts.contains_key(name) {
            self.order.push(name.to_owned());
        }
        self.hosts.entry(name.to_owned()).or_default().extend(variables);
    }

    pub(super) fn set_group_variables(&mut self, group: &str, variables: Variables) {
        self.group(group).variables.extend(variables);
    }

    pub(super) fn has_group(&self, name: &str) -> bool {
        name == ALL || name == UNGROUPED || self.groups.contains_key(name)
    }

    pub(super) fn group_names(&self) -> impl Iterator<Item = &str> {
        [ALL, UNGROUPED].into_iter().chain(self.groups.keys().map(String::as_str))
    }

    pub(super) fn host_names(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(String::as_str)
    }

    fn group(&mut self, name: &str) -> &mut Group {
        self.groups.entry(name.to_owned()).or_default()
    }

    /// # Errors
    /// A group contains itself, or a variable has a value that it cannot have.
    pub(super) fn into_inventory(self) -> Result<Inventory, String> {
        let ranks = self.ranks()?;
        let memberships = self.memberships();
        let none = BTreeSet::new();
        let mut hosts = BTreeMap::new();
        for name in &self.order {
            let mut groups: Vec<_> = memberships.get(name.as_str()).unwrap_or(&none).iter().copied().collect();
            groups.sort_by_key(|group| ranks.get(group));
            let host = describe(name, &self.variables(name, &groups)).map_err(|error| format!("{name}: {error}"))?;
            hosts.insert(name.clone(), host);
        }
        let ungrouped = self.order.iter().filter(|name| {
            memberships.get(name.as_str()).is_none_or(|groups| groups.iter().all(|group| *group == UNGROUPED))
        });
        let ungrouped: Vec<String> = ungrouped.cloned().collect();
        let children = |group: &Group| group.children.iter().map(|child| format!("@{child}")).collect::<Vec<_>>();
        let members = |group: &Group| group.hosts.iter().cloned().chain(children(group)).collect();
        let mut groups: BTreeMap<_, _> =
            self.groups.iter().map(|(name, group)| (name.clone(), members(group))).collect();
        groups.insert(UNGROUPED.to_owned(), ungrouped);
        groups.insert(ALL.to_owned(), self.order);
        Ok(Inventory { hosts, groups })
    }

    /// The variables of a host whose groups, without `all`, are in the order of their ranks.
    fn variables(&self, host: &str, groups: &[&str]) -> Variables {
        let own = |group: &str| self.groups.get(group).map(|group| &group.variables);
        let in_files = |group: &str| self.group_files.get(group);
        let mut layers = vec![own(ALL), in_files(ALL)];
        layers.extend(groups.iter().map(|group| own(group)));
        layers.extend(groups.iter().map(|group| in_files(group)));
        layers.extend([self.hosts.get(host), self.host_files.get(host)]);
        layers.into_iter().flatten().flatten().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// All groups of each host but `all`, also those that contain its groups.
    fn memberships(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let parents = self.parents();
        let mut memberships: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, group) in self.groups.iter().filter(|(name, _)| *name != ALL) {
            let (mut containing, mut next) = (BTreeSet::new(), vec![name.as_str()]);
            while let Some(group) = next.pop() {
                if group != ALL && containing.insert(group) {
                    next.extend(parents.get(group).into_iter().flatten());
                }
            }
            for host in &group.hosts {
                memberships.entry(host).or_default().extend(&containing);
            }
        }
        memberships
    }

    fn parents(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut parents: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, group) in &self.groups {
            for child in &group.children {
                parents.entry(child).or_default().push(name);
            }
        }
        parents
    }

    /// What orders groups: variables of a later one take precedence, and the deepest is last.
    fn ranks(&self) -> Result<BTreeMap<&str, (usize, i64, &str)>, String> {
        let parents = self.parents();
        let mut unseen: BTreeMap<&str, usize> =
            parents.iter().map(|(child, parents)| (*child, parents.len())).collect();
        let mut ready: Vec<_> =
            self.groups.keys().map(String::as_str).filter(|name| !unseen.contains_key(name)).collect();
        let mut depths: BTreeMap<&str, usize> = ready.iter().map(|name| (*name, usize::from(*name != ALL))).collect();
        while let Some(name) = ready.pop() {
            let depth = depths.get(name).copied().unwrap_or_default() + 1;
            for child in self.groups.get(name).map(|group| group.children.as_slice()).unwrap_or_default() {
                let deepest = depths.entry(child).or_default();
                *deepest = depth.max(*deepest);
                let Some(left) = unseen.get_mut(child.as_str()) else { continue };
                *left -= 1;
                if *left == 0 {
                    unseen.remove(child.as_str());
                    ready.push(child);
                }
            }
        }
        if let Some(name) = unseen.keys().next() {
            return Err(format!("group {name} contains itself"));
        }
        let rank = |(name, group): (&'_ str, &Group)| {
            let priority = group.variables.get("ansible_group_priority").and_then(|text| text.parse().ok());
            (depths.get(name).copied().unwrap_or_default(), priority.unwrap_or(1))
        };
        let ranks = self.groups.iter().map(|(name, group)| {
            let (depth, priority) = rank((name, group));
            (name.as_str(), (depth, priority, name.as_str()))
        });
        Ok(ranks.collect())
    }
}

/// # Errors
/// A value is of no use: a template, or no port.
fn describe(name: &str, variables: &Variables) -> Result<InventoryHost, String> {
    let value = |key: &str| variables.get(key).map(|value| fill_in(key, value, name)).transpose();
    let port = value("telexec_port")?.map(|port| match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("telexec_port: {port:?} is not a port")),
    });
    Ok(InventoryHost {
        target: value("telexec_target")?,
        address: value("ansible_host")?,
        port: port.transpose()?,
        server_name: value("telexec_server_name")?,
    })
}

/// The only templates that are understood are those of the host's own name.
fn fill_in(key: &str, value: &str, host: &str) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("{{") {
        let (variable, after) = after.split_once("}}").unwrap_or((after, ""));
        filled.push_str(before);
        filled.push_str(match variable.trim() {
            "inventory_hostname" => host,
            "inventory_hostname_short" => host.split('.').next().unwrap_or_default(),
            _ => return Err(format!("{key}: the template {value:?} cannot be evaluated; set telexec_target")),
        });
        rest = after;
    }
    Ok(filled + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables<const N: usize>(pairs: [(&str, &str); N]) -> Variables {
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn deeper_groups_and_files_and_the_host_itself_take_precedence() {
        let address = |change: &dyn Fn(&mut Tree)| {
            let mut tree = Tree::default();
            tree.add_host("web", "a", Variables::new());
            tree.add_child("site", "web");
            tree.set_group_variables("all", variables([("ansible_host", "all"), ("telexec_port", "1")]));
            change(&mut tree);
            tree.into_inventory().unwrap().hosts["a"].address.clone().unwrap()
        };
        let of_group = |name: &'static str| {
            move |tree: &mut Tree| {
                tree.set_group_variables(name, variables([("ansible_host", name)]));
            }
        };
        let file = |tree: &mut Tree, name: &str| {
            tree.group_files.insert(name.to_owned(), variables([("ansible_host", "file")]));
        };
        assert_eq!(address(&|_| ()), "all");
        assert_eq!(address(&of_group("site")), "site");
        assert_eq!(address(&|tree| (of_group("site")(tree), of_group("web")(tree)).1), "web");
        assert_eq!(address(&|tree| (file(tree, "all"), of_group("site")(tree)).1), "site");
        assert_eq!(address(&|tree| (file(tree, "web"), of_group("web")(tree)).1), "file");
        let own = |tree: &mut Tree| tree.set_host_variables("a", variables([("ansible_host", "own")]));
        assert_eq!(address(&|tree| (file(tree, "web"), own(tree)).1), "own");
        let last = |tree: &mut Tree| {
            tree.host_files.insert("a".to_owned(), variables([("ansible_host", "last")]));
        };
        assert_eq!(address(&|tree| (own(tree), last(tree)).1), "last");
    }

    #[test]
    fn a_priority_decides_between_groups_of_one_depth() {
        let mut tree = Tree::default();
        for (group, priority) in [("a", "3"), ("b", "2")] {
            tree.add_host(group, "x", Variables::new());
            tree.set_group_variables(group, variables([("ansible_host", group), ("ansible_group_priority", priority)]));
        }
        assert_eq!(tree.into_inventory().unwrap().hosts["x"].address.as_deref(), Some("a"));
    }

    #[test]
    fn hosts_of_no_group_are_ungrouped() {
        let mut tree = Tree::default();
        for (group, host) in [("ungrouped", "b"), ("ungrouped", "a"), ("web", "a"), ("all", "c")] {
            tree.add_host(group, host, Variables::new());
        }
        let groups = tree.into_inventory().unwrap().groups;
        assert_eq!(
            (&groups["all"][..], &groups["ungrouped"][..]),
            (&["b", "a", "c"].map(str::to_owned)[..], &["b", "c"].map(str::to_owned)[..])
        );
    }

    #[test]
    fn a_group_that_contains_itself_is_an_error() {
        let mut tree = Tree::default();
        for (parent, child) in [("top", "a"), ("a", "b"), ("b", "a")] {
            tree.add_child(parent, child);
        }
        assert_eq!(tree.into_inventory(), Err("group a contains itself".to_owned()));
    }

    #[test]
    fn values_that_are_no_use_are_errors() {
        let host = |key: &str, value: &str| {
            let mut tree = Tree::default();
            tree.add_host("web", "web1.example.org", variables([(key, value)]));
            tree.into_inventory().map(|inventory| inventory.hosts["web1.example.org"].clone())
        };
        let filled = host("ansible_host", "{{ inventory_hostname_short }}.{{inventory_hostname}}").unwrap();
        assert_eq!(filled.address.as_deref(), Some("web1.web1.example.org"));
        assert!(host("telexec_server_name", "{{ fqdn }}").unwrap_err().contains("cannot be evaluated"));
        for port in ["0", "x", "65536"] {
            assert!(host("telexec_port", port).unwrap_err().contains("is not a port"), "{port}");
        }
        assert_eq!(host("ansible_port", "22").unwrap(), InventoryHost::default());
    }
}
