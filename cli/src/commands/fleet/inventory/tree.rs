//! The groups, hosts and variables of an inventory, and which variables a host has: Ansible's order of precedence.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Inventory, InventoryHost};
use crate::syntax::nodeset::MAX_HOSTS;

const ALL: &str = "all";
const UNGROUPED: &str = "ungrouped";
/// The names and variables of hosts and groups together. Bounds what a small file can make of ranges.
const MAX_BYTES: usize = 256 * 1024 * 1024;
/// Roughly what a name takes beside its text.
const ENTRY_BYTES: usize = 64;
/// The variables that have a meaning here; others are not kept.
const USED: [&str; 9] = [
    "telexec_target",
    "telexec_port",
    "telexec_server_name",
    "ansible_host",
    "ansible_user",
    "ansible_ssh_user",
    "ansible_become",
    "ansible_become_user",
    PRIORITY,
];
const PRIORITY: &str = "ansible_group_priority";

/// Variables with a single value.
pub(super) type Variables = BTreeMap<String, String>;

/// What all sources of an inventory say.
#[derive(Debug, Default)]
pub(super) struct Tree {
    hosts: HashMap<String, Variables>,
    /// The hosts in the order in which they were added.
    order: Vec<String>,
    groups: BTreeMap<String, Group>,
    /// Files that have variables of groups and hosts only, which take precedence.
    group_files: BTreeMap<String, Variables>,
    host_files: BTreeMap<String, Variables>,
    bytes: usize,
    /// What was left out of it.
    pub(super) warnings: Vec<String>,
}

#[derive(Debug, Default)]
struct Group {
    hosts: Vec<String>,
    children: Vec<String>,
    /// The children again, to find them.
    known: HashSet<String>,
    variables: Variables,
}

/// What orders groups of which a host is a member: variables of the greater one take precedence. A depth, a priority, and
/// the name.
type Rank<'a> = (usize, i64, &'a str);

/// The variables that a group gives to its hosts, each with what decides between several groups: the layer and the rank.
type Inherited<'a> = BTreeMap<&'a str, ((Layer, Rank<'a>), &'a str)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    All,
    AllFile,
    Group,
    GroupFile,
}

impl Tree {
    pub(super) fn add_group(&mut self, name: &str) {
        self.group(name);
    }

    pub(super) fn add_child(&mut self, parent: &str, child: &str) {
        self.group(child);
        let parent = self.group(parent);
        if parent.known.insert(child.to_owned()) {
            parent.children.push(child.to_owned());
        }
    }

    /// # Errors
    /// There are too many hosts.
    pub(super) fn add_host(&mut self, group: &str, name: &str, variables: &Variables) -> Result<(), String> {
        self.set_host_variables(name, variables)?;
        self.count(name.len() + ENTRY_BYTES)?;
        let hosts = &mut self.group(group).hosts;
        // a group that lists a host twice does so in succession, or it is long: no search
        if hosts.last().is_none_or(|last| last != name) {
            hosts.push(name.to_owned());
        }
        Ok(())
    }

    /// Also adds the host, to no group.
    ///
    /// # Errors
    /// There are too many hosts.
    pub(super) fn set_host_variables(&mut self, name: &str, variables: &Variables) -> Result<(), String> {
        let used = used(variables);
        self.count(used.iter().map(|(name, value)| name.len() + value.len() + ENTRY_BYTES).sum())?;
        if let Some(known) = self.hosts.get_mut(name) {
            known.extend(used);
            return Ok(());
        }
        if self.order.len() == MAX_HOSTS {
            return Err(format!("it has more than {MAX_HOSTS} hosts"));
        }
        self.count(2 * (name.len() + ENTRY_BYTES))?;
        self.order.push(name.to_owned());
        self.hosts.insert(name.to_owned(), used);
        Ok(())
    }

    pub(super) fn set_group_variables(&mut self, group: &str, variables: &Variables) {
        self.group(group).variables.extend(used(variables));
    }

    /// Variables from the file of a group.
    pub(super) fn set_group_file(&mut self, group: String, variables: &Variables) {
        self.group_files.entry(group).or_default().extend(used(variables));
    }

    /// Variables from the file of a host.
    pub(super) fn set_host_file(&mut self, host: String, variables: &Variables) {
        self.host_files.entry(host).or_default().extend(used(variables));
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

    fn count(&mut self, bytes: usize) -> Result<(), String> {
        self.bytes = bounded(self.bytes + bytes)?;
        Ok(())
    }

    /// # Errors
    /// A group contains itself, a variable has a value that it cannot have, or there is too much of them.
    pub(super) fn into_inventory(self) -> Result<Inventory, String> {
        let hosts = self.describe_hosts()?;
        let grouped: HashSet<&str> = self.memberships().into_keys().collect();
        let ungrouped = self.order.iter().filter(|name| !grouped.contains(name.as_str())).cloned().collect();
        let children = |group: &Group| group.children.iter().map(|child| format!("@{child}")).collect::<Vec<_>>();
        let members = |group: &Group| group.hosts.iter().cloned().chain(children(group)).collect();
        let mut groups: BTreeMap<_, _> =
            self.groups.iter().map(|(name, group)| (name.clone(), members(group))).collect();
        groups.insert(UNGROUPED.to_owned(), ungrouped);
        groups.insert(ALL.to_owned(), self.order);
        Ok(Inventory { hosts, groups })
    }

    fn describe_hosts(&self) -> Result<BTreeMap<String, InventoryHost>, String> {
        let inherited = self.inherited()?;
        let mut memberships = self.memberships();
        for host in self.groups.get(UNGROUPED).map(|group| group.hosts.as_slice()).unwrap_or_default() {
            memberships.entry(host).or_default().push(UNGROUPED);
        }
        // a variable of a group is one of each of its hosts
        let mut bytes = self.bytes;
        let mut hosts = BTreeMap::new();
        for name in &self.order {
            let mut variables = inherited.get(ALL).cloned().unwrap_or_default();
            let groups = memberships.get(name.as_str()).into_iter().flatten();
            groups.filter_map(|group| inherited.get(group)).for_each(|group| inherit(&mut variables, group));
            let mut variables: BTreeMap<&str, &str> =
                variables.into_iter().map(|(name, (_, value))| (name, value)).collect();
            let own = [self.hosts.get(name), self.host_files.get(name)].into_iter().flatten().flatten();
            variables.extend(own.map(|(name, value)| (name.as_str(), value.as_str())));
            let host = describe(name, &variables).map_err(|error| format!("{name}: {error}"))?;
            bytes = bounded(bytes + host.bytes())?;
            hosts.insert(name.clone(), host);
        }
        Ok(hosts)
    }

    /// The groups that list each host, but `all` and `ungrouped`.
    fn memberships(&self) -> HashMap<&str, Vec<&str>> {
        let mut memberships: HashMap<&str, Vec<&str>> = HashMap::new();
        for (name, group) in self.groups.iter().filter(|(name, _)| *name != ALL && *name != UNGROUPED) {
            for host in &group.hosts {
                memberships.entry(host).or_default().push(name);
            }
        }
        memberships
    }

    /// The variables that the hosts of each group have from it and from the groups that contain it. Groups inherit from
    /// those that contain them directly, so it takes as long as there are groups, however deep they are.
    fn inherited(&self) -> Result<HashMap<&str, Inherited<'_>>, String> {
        let parents = self.parents();
        let (order, depths) = self.sorted(&parents)?;
        let mut inherited: HashMap<&str, Inherited<'_>> = HashMap::new();
        let unlisted = [ALL, UNGROUPED].into_iter().filter(|name| !self.groups.contains_key(*name));
        for name in order.into_iter().chain(unlisted) {
            let group = self.groups.get(name);
            let own = group.map(|group| &group.variables);
            let priority = own.and_then(|own| own.get(PRIORITY)).and_then(|text| text.parse().ok());
            let rank = (depths.get(name).copied().unwrap_or_default(), priority.unwrap_or(1), name);
            let layers = if name == ALL { [Layer::All, Layer::AllFile] } else { [Layer::Group, Layer::GroupFile] };
            let mut variables = Inherited::new();
            // what contains `all` says nothing of its hosts
            for parent in parents.get(name).into_iter().flatten().filter(|_| name != ALL) {
                inherited.get(parent).into_iter().for_each(|parent| inherit(&mut variables, parent));
            }
            for (layer, values) in layers.into_iter().zip([own, self.group_files.get(name)]) {
                let values = values.into_iter().flatten().map(|(name, value)| (&**name, ((layer, rank), &**value)));
                inherit(&mut variables, &values.collect());
            }
            inherited.insert(name, variables);
        }
        Ok(inherited)
    }

    fn parents(&self) -> HashMap<&str, Vec<&str>> {
        let mut parents: HashMap<&str, Vec<&str>> = HashMap::new();
        for (name, group) in &self.groups {
            for child in &group.children {
                parents.entry(child).or_default().push(name);
            }
        }
        parents
    }

    /// The groups, each after those that contain it, and how deep they are.
    fn sorted(&self, parents: &HashMap<&str, Vec<&str>>) -> Result<(Vec<&str>, HashMap<&str, usize>), String> {
        let mut unseen: BTreeMap<&str, usize> =
            self.groups.keys().filter_map(|name| Some((name.as_str(), parents.get(name.as_str())?.len()))).collect();
        let mut ready: Vec<_> =
            self.groups.keys().map(String::as_str).filter(|name| !unseen.contains_key(name)).collect();
        let mut depths: HashMap<&str, usize> = ready.iter().map(|name| (*name, usize::from(*name != ALL))).collect();
        let mut order = Vec::with_capacity(self.groups.len());
        while let Some(name) = ready.pop() {
            order.push(name);
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
        match unseen.keys().next() {
            Some(name) => Err(format!("group {name} contains itself")),
            None => Ok((order, depths)),
        }
    }
}

/// # Errors
/// It is too much.
fn bounded(bytes: usize) -> Result<usize, String> {
    match bytes > MAX_BYTES {
        true => Err(format!("its hosts and variables take more than {} MiB", MAX_BYTES / 1024 / 1024)),
        false => Ok(bytes),
    }
}

fn used(variables: &Variables) -> Variables {
    let known = variables.iter().filter(|(name, _)| USED.contains(&name.as_str()));
    known.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Adds variables, of which those of the greater layer and rank remain.
fn inherit<'a>(variables: &mut Inherited<'a>, more: &Inherited<'a>) {
    for (name, value) in more {
        match variables.get(name) {
            Some(known) if known.0 > value.0 => {}
            _ => _ = variables.insert(name, *value),
        }
    }
}

/// # Errors
/// A value is of no use: a template, or no port.
fn describe(name: &str, variables: &BTreeMap<&str, &str>) -> Result<InventoryHost, String> {
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
        user: ansible_user(variables),
    })
}

/// As whom Ansible would run commands, if that is not the user of ssh(1).
fn ansible_user(variables: &BTreeMap<&str, &str>) -> Option<String> {
    let value = |name: &str| variables.get(name).copied();
    let is_false = |text: &str| ["false", "no", "off", "0", "n", "f", ""].contains(&&*text.to_ascii_lowercase());
    let user = match value("ansible_become") {
        Some(text) if !is_false(text) => Some(value("ansible_become_user").unwrap_or("root")),
        _ => value("ansible_user").or(value("ansible_ssh_user")),
    };
    user.map(str::to_owned)
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
            tree.add_host("web", "a", &Variables::new()).unwrap();
            tree.add_child("site", "web");
            tree.set_group_variables("all", &variables([("ansible_host", "all"), ("telexec_port", "1")]));
            change(&mut tree);
            tree.into_inventory().unwrap().hosts["a"].address.clone().unwrap()
        };
        let of_group = |name: &'static str| {
            move |tree: &mut Tree| {
                tree.set_group_variables(name, &variables([("ansible_host", name)]));
            }
        };
        let file = |tree: &mut Tree, name: &str| {
            tree.set_group_file(name.to_owned(), &variables([("ansible_host", "file")]));
        };
        assert_eq!(address(&|_| ()), "all");
        assert_eq!(address(&of_group("site")), "site");
        assert_eq!(address(&|tree| (of_group("site")(tree), of_group("web")(tree)).1), "web");
        assert_eq!(address(&|tree| (file(tree, "all"), of_group("site")(tree)).1), "site");
        assert_eq!(address(&|tree| (file(tree, "web"), of_group("web")(tree)).1), "file");
        let own = |tree: &mut Tree| tree.set_host_variables("a", &variables([("ansible_host", "own")])).unwrap();
        assert_eq!(address(&|tree| (file(tree, "web"), own(tree)).1), "own");
        let last = |tree: &mut Tree| {
            tree.set_host_file("a".to_owned(), &variables([("ansible_host", "last")]));
        };
        assert_eq!(address(&|tree| (own(tree), last(tree)).1), "last");
    }

    #[test]
    fn a_priority_decides_between_groups_of_one_depth() {
        let mut tree = Tree::default();
        for (group, priority) in [("a", "3"), ("b", "2")] {
            tree.add_host(group, "x", &Variables::new()).unwrap();
            tree.set_group_variables(
                group,
                &variables([("ansible_host", group), ("ansible_group_priority", priority)]),
            );
        }
        assert_eq!(tree.into_inventory().unwrap().hosts["x"].address.as_deref(), Some("a"));
    }

    #[test]
    fn hosts_of_no_group_are_ungrouped() {
        let mut tree = Tree::default();
        for (group, host) in [("ungrouped", "b"), ("ungrouped", "a"), ("web", "a"), ("all", "c")] {
            tree.add_host(group, host, &Variables::new()).unwrap();
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
            tree.add_host("web", "web1.example.org", &variables([(key, value)])).unwrap();
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

    #[test]
    fn what_is_too_much_is_refused_before_it_is_made() {
        let mut tree = Tree::default();
        let mut add = |number: usize| tree.add_host("web", &format!("h{number}"), &Variables::new());
        assert!((0..MAX_HOSTS).all(|number| add(number).is_ok()));
        assert_eq!(add(MAX_HOSTS), Err("it has more than 100000 hosts".to_owned()));
        // a host that is known is not one more
        assert_eq!(add(0), Ok(()));
        tree.set_group_variables("web", &variables([("ansible_host", "x".repeat(4096).as_str())]));
        assert!(tree.into_inventory().unwrap_err().contains("take more than 256 MiB"));
        let mut tree = Tree::default();
        let own = variables([("ansible_host", "x".repeat(1024 * 1024).as_str())]);
        let mut add = |number: usize| tree.add_host("web", &format!("h{number}"), &own);
        assert!((0..256).any(|number| add(number).is_err()));
    }

    #[test]
    fn variables_without_a_meaning_are_not_kept() {
        let mut tree = Tree::default();
        tree.add_host("web", "a", &variables([("x", "y"), ("ansible_host", "b")])).unwrap();
        assert_eq!(tree.hosts["a"], variables([("ansible_host", "b")]));
    }

    #[test]
    fn the_user_of_ansible_is_known() {
        for (own, user) in [
            (&[("ansible_user", "deploy")][..], Some("deploy")),
            (&[("ansible_user", "deploy"), ("ansible_become", "yes")], Some("root")),
            (&[("ansible_become", "true"), ("ansible_become_user", "app")], Some("app")),
            (&[("ansible_become", "False"), ("ansible_become_user", "app")], None),
            (&[], None),
        ] {
            let own = own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let mut tree = Tree::default();
            tree.add_host("web", "a", &own).unwrap();
            assert_eq!(tree.into_inventory().unwrap().hosts["a"].user.as_deref(), user, "{own:?}");
        }
    }

    #[test]
    fn groups_may_be_nested_deeply() {
        let mut tree = Tree::default();
        (0..20_000).for_each(|number| tree.add_child(&format!("g{number}"), &format!("g{}", number + 1)));
        (0..20_000)
            .for_each(|number| tree.add_host(&format!("g{number}"), &format!("h{number}"), &Variables::new()).unwrap());
        tree.set_group_variables("g0", &variables([("ansible_host", "top"), ("telexec_port", "1")]));
        tree.set_group_variables("g9000", &variables([("ansible_host", "middle")]));
        let hosts = tree.into_inventory().unwrap().hosts;
        let host = |name: &str| (hosts[name].address.as_deref(), hosts[name].port);
        assert_eq!((host("h8999"), host("h19999")), ((Some("top"), Some(1)), (Some("middle"), Some(1))));
    }
}
