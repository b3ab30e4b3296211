//! Finds where the hierarchies of control groups are mounted, and where a container's group is in them. Pure.
//!
//! cgroups-rs uses the mounts of this process, which in a container show only the container's own group.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use super::Version;
use crate::launchers::cgroup::{self, Container};

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// The group that is visible at the mount point: `/`, or the group of the container in which the node
    /// runs.
    root: String,
    /// The mount point, absolute.
    point: String,
    version: Version,
    /// Options of the hierarchy. On v1 they include its controllers.
    options: Vec<String>,
}

/// The hierarchies in a text like `/proc/<pid>/mountinfo`, see proc(5).
pub(super) fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let version = match kind.next()? {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let options = kind.nth(1)?.split(',').map(str::to_owned).collect();
    let mut place = place.split(' ').skip(3);
    Some(Mount { root: place.next()?.to_owned(), point: place.next()?.to_owned(), version, options })
}

/// The directory of the container's group in the hierarchy of `controller`, relative to the root of the
/// mounts. `paths` maps controllers to the groups of one of its processes (an empty name stands for v2).
pub(super) fn find(
    mounts: &[Mount],
    paths: &HashMap<String, String>,
    controller: &str,
    container: &Container,
) -> Option<(PathBuf, Version)> {
    let v1 = paths.get(controller).map(|path| (path, Version::V1));
    let (path, version) = v1.or_else(|| Some((paths.get("")?, Version::V2)))?;
    let group = cgroup::group_of(path, container)?;
    let counts = |mount: &&Mount| {
        let named = mount.options.iter().any(|option| option == controller);
        mount.version == version && (named || version == Version::V2)
    };
    mounts.iter().filter(counts).find_map(|mount| {
        let beneath = Path::new(group).strip_prefix(&mount.root).ok()?;
        let path = Path::new(mount.point.strip_prefix('/')?).join(beneath);
        // A path from another cgroup namespace begins with `..`: its place is unknown.
        path.components().all(|part| matches!(part, Component::Normal(_))).then_some((path, version))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0a4f6f0e-9a35-4f3c-8f0e-6a1c2b3d4e5f";
    const ID: &str = "96b37a2edf84351487f42039e137427f1812f678850675fac214caf597ee5e4a";

    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      35 31 0:32 /docker/x /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const V2: &str = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn found(mounts: &str, paths: &[(&str, &str)], controller: &str) -> Option<(String, Version)> {
        let fill = |path: &str| path.replace("UID", UID).replace("CID", ID);
        let paths = paths.iter().map(|(name, path)| ((*name).to_owned(), fill(path))).collect();
        let container = Container { pod_uid: UID.to_owned(), id: ID.to_owned() };
        let (path, version) = find(&parse(mounts), &paths, controller, &container)?;
        Some((path.to_str().unwrap().replace(UID, "UID").replace(ID, "CID"), version))
    }

    #[test]
    fn each_controller_of_v1_has_its_mount() {
        let paths = [
            ("cpu", "/kubepods/podUID/CID/vcpu0"),
            ("memory", "/docker/x/kubepods/podUID/CID"),
            ("pids", "/kubepods/podUID/CID"),
            ("", "/"),
        ];
        let cpu = "sys/fs/cgroup/cpu,cpuacct/kubepods/podUID/CID".to_owned();
        assert_eq!(found(V1, &paths, "cpu"), Some((cpu, Version::V1)));
        let memory = "sys/fs/cgroup/memory/kubepods/podUID/CID".to_owned();
        assert_eq!(found(V1, &paths, "memory"), Some((memory, Version::V1)));
        assert_eq!(found(V1, &paths, "pids"), None, "it is not mounted");
        assert_eq!(found(V1, &paths, "rdma"), None, "its v2 path is not the container's");
    }

    #[test]
    fn all_controllers_of_v2_share_one() {
        let paths = [("", "/kubepods/podUID/CID/init.scope")];
        let group = "sys/fs/cgroup/kubepods/podUID/CID".to_owned();
        assert_eq!(found(V2, &paths, "memory"), Some((group.clone(), Version::V2)));
        assert_eq!(found(V2, &paths, "cpu"), Some((group, Version::V2)));
    }

    #[test]
    fn control_groups_outside_the_container_or_mount_are_not_opened() {
        for path in ["/", "/kubepods/podUID", "/../../kubepods/podUID/CID", "/a/../kubepods/podUID/CID", ""] {
            assert_eq!(found(V2, &[("", path)], "memory"), None, "{path}");
            assert_eq!(found(V1, &[("cpu", path)], "cpu"), None, "{path}");
        }
        assert_eq!(found(V1, &[("memory", "/kubepods/podUID/CID")], "memory"), None, "the mount shows less");
        let other = ID.replace('9', "8");
        assert_eq!(found(V2, &[("", &format!("/kubepods/podUID/{other}"))], "memory"), None);
    }
}
