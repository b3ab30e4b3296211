//! Determines which pod and container a process is in, from the paths of its control groups.
//!
//! The kubelet and the container runtime put every container into a group of its own, and only root on the
//! node can move a process elsewhere. So the path is proof, while names, labels and owner references are not.
//!
//! | layout | path |
//! |---|---|
//! | cgroupfs | `/kubepods/burstable/pod<uid>/<container>` (Guaranteed pods without the middle part) |
//! | systemd | `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid, _ for ->.slice/cri-containerd-<container>.scope` |
//! | nested (a node in a container) | the same beneath any prefix, `/docker/<id>/kubelet/kubepods/...` |
//! | private cgroup namespace of the reader | the same, beginning with `/../..` as often as needed |
//! | deeper | the container may have made groups beneath its own: what follows the container is ignored |
//!
//! The pod is the first one on the way down from the kubelet's root. A process in the container may have made
//! groups further down, with any name. If a node itself runs in a pod, its paths contain that pod further up.
//! The handler runs in a pod of the same kubelet, so the pods above its own pod are the node's ([`parse`]).
//!
//! On cgroup v1 there is one path for each hierarchy, and on v2 there is one path. A hybrid host has both.
//! Paths that name no pod (the unused v2 hierarchy, hierarchies that a nested node does not delegate) are
//! ignored; all paths that name one must agree. The v2 layouts here come from documentation and from other
//! machines: they are tested as text and were not run on a machine with cgroup v2.

use std::collections::HashMap;

use thiserror::Error;

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Container {
    /// UID of the pod, `8-4-4-4-12`.
    pub pod_uid: String,
    /// The runtime's id of the container, 64 hexadecimal digits.
    pub id: String,
}

/// Why no container was found for a process.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CgroupError {
    /// No path names a container of a pod.
    #[error("process is in no pod's container")]
    NoContainer,
    /// Two hierarchies name different containers.
    #[error("process is in container {} of pod {} and in container {} of pod {}", .0.id, .0.pod_uid, .1.id, .1.pod_uid)]
    Disagree(Container, Container),
}

/// Paths of control groups by controller; an empty name stands for v2.
pub type Paths = HashMap<String, String>;

/// Parses the text of a `/proc/PID/cgroup`. It has a line for each hierarchy, with its number, its
/// controllers and the path, which may contain colons.
pub fn paths(text: &str) -> Paths {
    let lines = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    lines
        .flat_map(|(controllers, path)| controllers.split(',').map(|one| (one.to_owned(), path.to_owned())))
        .collect()
}

/// The container that all paths of a process agree on. `own` are the paths of this process.
pub fn container(paths: &Paths, own: &Paths) -> Result<Container, CgroupError> {
    let mut found: Option<Container> = None;
    let own = |controller: &str| own.get(controller).map(String::as_str).unwrap_or_default();
    for container in paths.iter().filter_map(|(controller, path)| parse(path, own(controller))) {
        match &found {
            Some(former) if *former != container => {
                return Err(CgroupError::Disagree(former.clone(), container));
            }
            Some(_) => {}
            None => found = Some(container),
        }
    }
    found.ok_or(CgroupError::NoContainer)
}

/// The container that one path names, as seen by a process with the path `own` in the same hierarchy. It is
/// the first container beneath the groups that the node itself is in.
pub fn parse(path: &str, own: &str) -> Option<Container> {
    // The last pod on the path of this process is its own: no other process makes groups there.
    let above: Vec<_> = pods(own).collect();
    let above = above.split_last().map_or([].as_slice(), |(_, above)| above);
    let mut found = pods(path);
    if !above.iter().all(|outer| found.next().as_ref() == Some(outer)) {
        return None;
    }
    let (pod_uid, id) = found.next()?;
    Some(Container { pod_uid, id: id? })
}

/// All names on the way down a path that look like a pod, each with the container beneath it.
fn pods(path: &str) -> impl Iterator<Item = (String, Option<String>)> {
    let parts: Vec<&str> = path.split('/').collect();
    let beneath = parts.iter().skip(1).map(|part| container_id(part)).chain([None]).collect::<Vec<_>>();
    let found = parts.into_iter().zip(beneath).filter_map(|(part, id)| Some((pod(part)?, id)));
    found.collect::<Vec<_>>().into_iter()
}

/// The group of `container` that contains the group at `path`.
pub fn group_of<'a>(path: &'a str, container: &Container) -> Option<&'a str> {
    let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
    ends.map(|end| &path[..end]).find(|path| {
        let last = pods(path).last();
        last.is_some_and(|(uid, id)| uid == container.pod_uid && id.as_ref() == Some(&container.id))
    })
}

/// The UID in the name of a pod's group: `pod<uid>` or `kubepods-<class>-pod<uid>.slice`.
fn pod(part: &str) -> Option<String> {
    let uid = match part.strip_suffix(".slice") {
        Some(slice) => {
            let rest = slice.rsplit_once("pod").filter(|(class, _)| class.ends_with('-'))?;
            rest.1.replace('_', "-")
        }
        None => part.strip_prefix("pod")?.to_owned(),
    };
    is_uid(&uid).then_some(uid)
}

/// The id in the name of a container's group: `<id>` or `<runtime>-<id>.scope`.
fn container_id(part: &str) -> Option<String> {
    let id = match part.strip_suffix(".scope") {
        Some(scope) => scope.rsplit_once('-').map_or(scope, |(_, id)| id),
        None => part,
    };
    let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (id.len() == 64 && id.bytes().all(hexadecimal)).then(|| id.to_owned())
}

/// Whether `text` is the UID of an object: five groups of hexadecimal digits.
pub fn is_uid(text: &str) -> bool {
    let lengths = [8, 4, 4, 4, 12];
    let mut groups = text.split('-');
    lengths.iter().all(|length| {
        let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        groups.next().is_some_and(|group| group.len() == *length && group.bytes().all(hexadecimal))
    }) && groups.next().is_none()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "0a4f6f0e-9a35-4f3c-8f0e-6a1c2b3d4e5f";
    const ID: &str = "96b37a2edf84351487f42039e137427f1812f678850675fac214caf597ee5e4a";

    fn expected() -> Container {
        Container { pod_uid: UID.to_owned(), id: ID.to_owned() }
    }

    fn fill(sample: &str) -> String {
        sample.replace("UID", UID).replace("U_D", &UID.replace('-', "_")).replace("CID", ID)
    }

    #[test]
    fn layouts_of_cgroup_v1() {
        for sample in [
            "/kubepods/burstable/podUID/CID",
            "/kubepods/besteffort/podUID/CID",
            "/kubepods/podUID/CID",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_D.slice/cri-containerd-CID.scope",
            "/kubepods.slice/kubepods-podU_D.slice/crio-CID.scope",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_D.slice/docker-CID.scope",
            "/system.slice/containerd.service/kubepods-burstable-podU_D.slice/CID",
        ] {
            assert_eq!(parse(&fill(sample), "/"), Some(expected()), "{sample}");
        }
    }

    /// These layouts are tested as text only, not on a machine with cgroup v2.
    #[test]
    fn layouts_of_cgroup_v2() {
        for sample in [
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_D.slice/cri-containerd-CID.scope",
            "/kubepods.slice/kubepods-podU_D.slice/crio-CID.scope/container",
            "/kubepods/burstable/podUID/CID/init.scope",
            "/../../podUID/CID",
            "/../../kubepods-burstable-podU_D.slice/cri-containerd-CID.scope",
            "/../../../kubepods/podUID/CID",
        ] {
            assert_eq!(parse(&fill(sample), "/"), Some(expected()), "{sample}");
        }
    }

    #[test]
    fn the_group_of_the_container_is_without_what_is_beneath_it() {
        let group = fill("/docker/CID/kubepods/podUID/CID");
        assert_eq!(group_of(&group, &expected()), Some(group.as_str()));
        assert_eq!(group_of(&format!("{group}/vcpu0/x"), &expected()), Some(group.as_str()));
        // A process in the container may have made more groups that look like pods.
        let beneath = format!("{group}/pod{UID}/{}", ID.replace('9', "8"));
        assert_eq!(group_of(&beneath, &expected()), Some(group.as_str()));
        assert_eq!(group_of("/", &expected()), None);
    }

    #[test]
    fn nested_nodes_keep_their_prefix() {
        for sample in [
            "/docker/CID/kubelet/kubepods/burstable/podUID/CID",
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_D.slice/cri-containerd-CID.scope",
            "/machine.slice/libpod-CID.scope/container/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podU_D.slice/cri-containerd-CID.scope",
            "/my-node/kubepods/burstable/podUID/CID",
        ] {
            assert_eq!(parse(&fill(sample), "/"), Some(expected()), "{sample}");
        }
    }

    /// If the node runs in a pod, the handler's own path contains that pod and then the handler's pod.
    #[test]
    fn a_node_in_a_pod_is_not_taken_for_its_pods() {
        let (outer, own) = (UID.replace('0', "1"), UID.replace('0', "2"));
        let node = format!("/kubepods/burstable/pod{outer}/{}", ID.replace('9', "8"));
        let own = fill(&format!("{node}/kubelet/kubepods/besteffort/pod{own}/CID"));
        let path = |rest: &str| fill(&format!("{node}/kubelet/kubepods/{rest}"));
        assert_eq!(parse(&path("podUID/CID"), &own), Some(expected()));
        assert_eq!(parse(&path(&format!("podUID/CID/pod{outer}/CID")), &own), Some(expected()));
        assert_eq!(parse(&node, &own), None, "the node itself is in no pod of its own");
        assert_eq!(parse(&fill("/kubepods/podUID/CID/kubepods/podUID/CID"), &own), None, "another node");
    }

    #[test]
    fn control_groups_below_a_tenants_container_identify_no_launcher() {
        let (attacker, id) = (UID.replace('0', "1"), ID.replace('9', "8"));
        let (dashes, lines) = (&attacker, attacker.replace('-', "_"));
        let its = Container { pod_uid: attacker.clone(), id: id.clone() };
        for (group, own) in [
            // cgroupfs, then systemd; cgroup v1 with a path for this process, then v2 in a namespace of its
            // own.
            (format!("/kubepods/burstable/pod{dashes}/{id}"), "/kubepods/besteffort/podUID/CID"),
            (format!("/kubepods/pod{dashes}/{id}"), "/"),
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{lines}.slice/cri-containerd-{id}.scope"
                ),
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_D.slice/cri-containerd-CID.scope",
            ),
            (format!("/kubepods.slice/kubepods-pod{lines}.slice/crio-{id}.scope"), "/"),
            (format!("/../../pod{dashes}/{id}"), "/"),
            (
                format!(
                    "/../../../kubepods-besteffort.slice/kubepods-besteffort-pod{lines}.slice/crio-{id}.scope"
                ),
                "/",
            ),
        ] {
            for beneath in [
                "/podUID/CID",
                "/kubepods/burstable/podUID/CID",
                "/kubepods.slice/kubepods-podU_D.slice/cri-containerd-CID.scope",
                "/x/kubepods-podU_D.slice/CID/podUID/CID",
            ] {
                let path = fill(&format!("{group}{beneath}"));
                assert_eq!(parse(&path, &fill(own)), Some(its.clone()), "{path}");
                let both = paths(&[("memory", &path), ("cpu", &group)]);
                assert_eq!(container(&both, &HashMap::new()), Ok(its.clone()), "{path}");
            }
        }
        // Beneath a pod's group that is not a container, nothing is taken for a container.
        assert_eq!(parse(&fill(&format!("/kubepods/pod{attacker}/x/podUID/CID")), "/"), None);
    }

    #[test]
    fn paths_of_no_container_are_refused() {
        for sample in [
            "/",
            "",
            "/..",
            "/kubepods/burstable/podUID",
            "/kubepods/burstable/podUID/",
            "/kubepods/burstable/CID",
            "/system.slice/kubelet.service",
            "/user.slice/user-1000.slice/session-1.scope",
            "/kubepods/burstable/pod-UID/CID",
            "/kubepods/burstable/pod../CID",
            "/podU_D/CID",
            "/kubepods-burstable-podUIDx.slice/cri-containerd-CID.scope",
            "/kubepods/podUID/CIDa",
            "/kubepods/podUID/x/CID",
        ] {
            assert_eq!(parse(&fill(sample), "/"), None, "{sample}");
        }
        assert_eq!(parse(&fill("/kubepods/podUID/CID").to_uppercase(), "/"), None);
    }

    /// The text of `/proc/PID/cgroup` on a hybrid host.
    fn paths(lines: &[(&str, &str)]) -> HashMap<String, String> {
        lines.iter().map(|(controller, path)| ((*controller).to_owned(), fill(path))).collect()
    }

    #[test]
    fn the_kernels_text_is_read() {
        let read = super::paths("4:cpu,cpuacct:/a\n1:name=systemd:/b:cri:c\n0::/d\nx\n");
        let expected = paths(&[("cpu", "/a"), ("cpuacct", "/a"), ("name=systemd", "/b:cri:c"), ("", "/d")]);
        assert_eq!(read, expected);
    }

    #[test]
    fn hierarchies_that_know_no_pod_say_nothing() {
        let hybrid = paths(&[
            ("", "/"),
            ("name=systemd", "/kubepods/podUID/CID"),
            ("memory", "/kubepods/podUID/CID"),
            ("cpu", "/kubepods/podUID/CID/vcpu0"),
            ("rdma", "/"),
        ]);
        assert_eq!(container(&hybrid, &HashMap::new()), Ok(expected()));
        assert_eq!(
            container(&paths(&[("", "/system.slice")]), &HashMap::new()),
            Err(CgroupError::NoContainer)
        );
        assert_eq!(container(&HashMap::new(), &HashMap::new()), Err(CgroupError::NoContainer));
    }

    #[test]
    fn hierarchies_that_disagree_are_refused() {
        let mut mixed = paths(&[("memory", "/kubepods/podUID/CID")]);
        mixed.insert("cpu".to_owned(), fill("/kubepods/podUID/CID").replace('9', "8"));
        assert!(matches!(container(&mixed, &HashMap::new()), Err(CgroupError::Disagree(..))));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic_and_never_as_something_else(path in "[/a-f0-9._-]{0,200}|\\PC{0,100}") {
            if let Some(found) = parse(&path, "/") {
                prop_assert!(is_uid(&found.pod_uid));
                prop_assert_eq!(found.id.len(), 64);
            }
        }
    }
}
