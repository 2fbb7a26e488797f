//! Where cgroups are on this machine, and which of them this process is in; see cgroups(7).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A mounted hierarchy of cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// Version 2: the unified one.
    pub(super) unified: bool,
    /// Of version 1: its controllers, such as `memory`.
    pub(super) controllers: Vec<String>,
    /// The cgroup of the process.
    pub(super) own: PathBuf,
    /// The highest that can be seen.
    pub(super) top: PathBuf,
}

impl Hierarchy {
    /// The process is at the top of what can be seen, as in a container.
    pub(super) fn is_top(&self) -> bool {
        self.own == self.top
    }
}

/// All hierarchies that this process can see itself in.
///
/// # Errors
/// /proc cannot be read.
pub(super) fn all() -> io::Result<Vec<Hierarchy>> {
    Ok(parse(&fs::read_to_string("/proc/self/mountinfo")?, &fs::read_to_string("/proc/self/cgroup")?))
}

/// The same, with the cgroups of another process.
///
/// # Errors
/// It has ended, or /proc cannot be read.
pub(super) fn all_of(pid: i32) -> io::Result<Vec<Hierarchy>> {
    Ok(parse(&fs::read_to_string("/proc/self/mountinfo")?, &fs::read_to_string(format!("/proc/{pid}/cgroup"))?))
}

/// `mountinfo` as in proc_pid_mountinfo(5), `own` as in /proc/PID/cgroup.
fn parse(mountinfo: &str, own: &str) -> Vec<Hierarchy> {
    let mounts = mountinfo.lines().filter_map(parse_mount);
    mounts.filter_map(|mount| own.lines().find_map(|line| mount.hierarchy(line))).collect()
}

struct Mount {
    /// What of the hierarchy is mounted.
    root: PathBuf,
    point: PathBuf,
    unified: bool,
    options: Vec<String>,
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, point) = (unescape(before.next()?), unescape(before.next()?));
    let mut after = after.split(' ');
    let unified = match after.next()? {
        "cgroup2" => true,
        "cgroup" => false,
        _ => return None,
    };
    let options = after.nth(1)?.split(',').map(str::to_owned).collect();
    Some(Mount { root, point, unified, options })
}

/// Spaces and the like are octal there.
fn unescape(path: &str) -> PathBuf {
    let unescaped = path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
    unescaped.into()
}

impl Mount {
    /// The hierarchy, if the line of /proc/PID/cgroup is of it: `number:controllers:path`.
    fn hierarchy(&self, line: &str) -> Option<Hierarchy> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let controllers: Vec<String> = controllers.split(',').filter(|c| !c.is_empty()).map(str::to_owned).collect();
        let is_it = match self.unified {
            true => controllers.is_empty(),
            false => !controllers.is_empty() && controllers.iter().all(|c| self.options.contains(c)),
        };
        if !is_it {
            return None;
        }
        // outside of what is mounted, this process cannot see where it is
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        let outside = below.components().any(|part| part == std::path::Component::ParentDir);
        let (unified, own, top) = (self.unified, self.point.join(below), self.point.clone());
        (!outside).then_some(Hierarchy { unified, controllers, own, top })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
25 20 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
27 25 0:24 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup rw,cpu,cpuacct
28 25 0:25 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
29 25 0:26 / /mnt/with\\040space rw - cgroup cgroup rw,freezer
";

    fn owns(mountinfo: &str, own: &str) -> Vec<String> {
        parse(mountinfo, own).into_iter().map(|h| h.own.display().to_string()).collect()
    }

    #[test]
    fn a_hybrid_machine_has_both_versions() {
        let own = "3:freezer:/a\n2:name=systemd:/s\n1:cpu,cpuacct:/b/c\n0::/d\n";
        let found = parse(HYBRID, own);
        assert_eq!(
            found.iter().map(|h| (h.unified, h.own.to_str().unwrap())).collect::<Vec<_>>(),
            [
                (true, "/sys/fs/cgroup/unified/d"),
                (false, "/sys/fs/cgroup/cpu,cpuacct/b/c"),
                (false, "/sys/fs/cgroup/systemd/s"),
                (false, "/mnt/with space/a"),
            ]
        );
        assert_eq!(found[1].controllers, ["cpu", "cpuacct"]);
    }

    #[test]
    fn a_mounted_part_is_the_root_of_what_it_shows() {
        let part = "26 25 0:23 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw";
        assert_eq!(owns(part, "0::/docker/x/y\n"), ["/sys/fs/cgroup/y"]);
        assert_eq!(owns(part, "0::/docker/x\n"), ["/sys/fs/cgroup/"]);
    }

    #[test]
    fn a_cgroup_that_cannot_be_seen_is_none() {
        let part = "26 25 0:23 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw";
        assert!(owns(part, "0::/elsewhere\n").is_empty());
        assert!(owns("26 25 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup rw", "0::/../x\n").is_empty());
        assert!(owns("nonsense", "nonsense").is_empty());
    }
}
