//! The nodes of pods that fill or send claims: those for workloads, as with CDI. Volumes may be local to nodes with taints.

use barevirt_api::v1::NodePlacement;
use k8s_openapi::api::core::v1::PodSpec;

/// Label of nodes: their operating system.
const SYSTEM: (&str, &str) = ("kubernetes.io/os", "linux");

/// A pod that is placed so.
pub(super) fn placed(pod: PodSpec, nodes: &NodePlacement) -> PodSpec {
    let NodePlacement { affinity, node_selector, tolerations } = nodes.clone();
    let mut selector = node_selector;
    selector.insert(SYSTEM.0.to_owned(), SYSTEM.1.to_owned());
    PodSpec {
        affinity,
        node_selector: Some(selector),
        tolerations: Some(tolerations).filter(|all| !all.is_empty()),
        ..pod
    }
}
