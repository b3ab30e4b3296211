//! Fields, annotations and values behind a feature gate. While the gate is off, the refusal says so, with
//! KubeVirt's message and at KubeVirt's field. The gate's name is added if KubeVirt leaves it out.

use super::{Cause, Path};
use crate::cause::without_indices;
use crate::gates::Gates;
use crate::names;
use std::collections::BTreeMap;

/// A field behind a gate.
struct Gated {
    /// The end of its path, without indices of lists.
    field: &'static str,
    gate: &'static str,
    message: &'static str,
    at: At,
}

/// The field that KubeVirt names.
#[derive(Clone, Copy)]
enum At {
    /// The field itself.
    Field,
    /// The object that it is a member of.
    Holder,
    /// The list that holds this object.
    List,
    /// The name of this object.
    Name,
}

/// Every field that KubeVirt has behind a gate that may be off, and that is refused as a whole. Fields whose
/// refusal depends on more than their presence are checked with their own rules: claims of DRA devices, kinds
/// of encrypted memory, shared directories, drives without a disc, the run strategy `WaitAsReceiver`.
const GATED: [Gated; 12] = [
    Gated {
        field: "devices.downwardMetrics",
        gate: "DownwardMetrics",
        message: "downwardMetrics virtio serial is not allowed: DownwardMetrics feature gate is not enabled",
        at: At::Field,
    },
    Gated {
        field: "devices.hostDevices",
        gate: "HostDevices",
        message: "Host Devices feature gate is not enabled in kubevirt-config: HostDevices",
        at: At::Field,
    },
    Gated {
        field: "devices.autoattachVSOCK",
        gate: "VSOCK",
        message: "VSOCK feature gate is not enabled in kubevirt-config",
        at: At::Field,
    },
    Gated {
        field: "domain.rebootPolicy",
        gate: "RebootPolicy",
        message: "RebootPolicy is specified but the RebootPolicy feature gate is not enabled",
        at: At::Field,
    },
    Gated {
        field: "interfaces.passtBinding",
        gate: "PasstBinding",
        message: "PasstBinding feature gate is not enabled",
        at: At::Name,
    },
    Gated {
        field: "interfaces.portRanges",
        gate: "PortRangesSpec",
        message: "portRanges is specified on interface but the PortRangesSpec feature gate is not enabled",
        at: At::Name,
    },
    Gated {
        field: "domain.memory.reservedOverhead",
        gate: "ReservedOverheadMemlock",
        message: "Reserved overhead memlock feature gate is not enabled in kubevirt-config: ReservedOverheadMemlock",
        at: At::Field,
    },
    Gated {
        field: "spec.networks.resourceClaim",
        gate: "NetworkDevicesWithDRA",
        message: "vmi.spec.networks contains DRA networks but NetworkDevicesWithDRA feature gate is not enabled",
        at: At::List,
    },
    Gated {
        field: "spec.utilityVolumes",
        gate: "UtilityVolumes",
        message: "UtilityVolumes feature gate is not enabled",
        at: At::Field,
    },
    // KubeVirt only notices this when it makes the pod.
    Gated {
        field: "spec.volumes.containerPath",
        gate: "ContainerPathVolumes",
        message: "VMI has ContainerPath volumes but the ContainerPathVolumes feature gate is disabled",
        at: At::Field,
    },
    Gated {
        field: "spec.volumes.downwardMetrics",
        gate: "DownwardMetrics",
        message: "downwardMetrics disks are not allowed: DownwardMetrics feature gate is not enabled.",
        at: At::Holder,
    },
    Gated {
        field: "spec.volumes.hostDisk",
        gate: "HostDisk",
        message: "HostDisk feature gate is not enabled",
        at: At::Holder,
    },
];

/// Annotations behind a gate, and whether what they request is built; the rest of the message names the annotation.
const ANNOTATIONS: [(&str, &str, &str, bool); 2] = [
    (
        names::IGNITION_ANNOTATION,
        "ExperimentalIgnitionSupport",
        "ExperimentalIgnitionSupport feature gate is not enabled in kubevirt-config, invalid entry",
        true,
    ),
    (
        "hooks.kubevirt.io/hookSidecars",
        "Sidecar",
        "sidecar feature gate is not enabled in kubevirt-config: Sidecar, invalid entry",
        false,
    ),
];

/// Annotations of KubeVirt without a gate whose features do not exist, unless they say `false`.
const NOT_BUILT: [&str; 2] =
    ["kubevirt.io/keep-launcher-alive-after-failure", "kubevirt.io/func-test-memory-hotplug-fail"];

/// The cause for a field whose gate is off.
pub(super) fn closed(path: &Path, gates: &Gates) -> Option<Cause> {
    let plain = without_indices(&path.to_string());
    let is_at = |gated: &&Gated| {
        plain.strip_suffix(gated.field).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let gated = GATED.iter().find(is_at).filter(|gated| !gates.is_on(gated.gate))?;
    let field = match gated.at {
        At::Field => path.clone(),
        At::Holder => path.holder(),
        At::List => path.holder().list(),
        At::Name => path.holder().child("name"),
    };
    Some(Cause::invalid(&field, gated.message))
}

/// Causes for annotations whose gate is off, or that request features that do not exist yet.
pub(super) fn annotations(
    path: &Path,
    annotations: Option<&BTreeMap<String, String>>,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    for (annotation, gate, message, is_built) in ANNOTATIONS {
        if annotations.and_then(|annotations| annotations.get(annotation)).is_none_or(String::is_empty) {
            continue;
        }
        let field = path.child("annotations");
        let entry = field.child(annotation);
        if !gates.is_on(gate) {
            causes.push(Cause::invalid(&field, format!("{message} {entry}")));
        } else if !is_built {
            causes.push(Cause::not_supported_yet(&field, annotation));
        }
    }
    let given =
        |name: &&str| annotations.and_then(|all| all.get(*name)).is_some_and(|value| value != "false");
    let field = path.child("annotations");
    let unbuilt = NOT_BUILT.into_iter().filter(given);
    causes.extend(unbuilt.map(|name| Cause::not_supported_yet(&field, name)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::GATES;

    #[test]
    fn every_gate_is_one_of_kubevirts_and_named() {
        let fields = GATED.iter().map(|gated| (gated.gate, gated.message));
        for (gate, message) in fields.chain(ANNOTATIONS.map(|(_, gate, message, _)| (gate, message))) {
            assert!(GATES.iter().any(|(known, _)| *known == gate), "{gate}");
            assert!(message.contains(gate), "{message} names {gate}");
        }
    }

    #[test]
    fn the_end_of_another_name_is_another_field() {
        let closed = |path: &str| closed(&Path::new(path), &Gates::default());
        assert!(closed("spec.volumes[3].hostDisk").is_some());
        assert!(closed("spec.template.spec.volumes[3].hostDisk").is_some());
        assert!(closed("myspec.volumes[3].hostDisk").is_none());
        assert!(closed("spec.volumes[3].hostDisk.path").is_none());
    }
}
