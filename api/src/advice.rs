//! What to use instead of a field that is not supported yet, and the page that says more. KubeVirt's messages have none.

/// Advice about a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The end of its path, without indices of lists.
    pub field: &'static str,
    /// What to do.
    pub instead: &'static str,
    /// The page, and its heading.
    pub page: &'static str,
}

const fn row(field: &'static str, instead: &'static str, page: &'static str) -> Advice {
    Advice { field, instead, page }
}

const DEVICE_PLUGIN: &str = "name the resource of a device plugin in deviceName";
const FROM_THE_START: &str =
    "a disk that the guest has from its start takes it: one that is not hotpluggable";
const NO_RANGE: &str =
    "use masquerade, which has a network of its own; passt gives the guest the pod's address";
const OFFLINE: &str = "Offline keeps the disks, UEFI variables and TPM of a machine";
const MIGRATE: &str = "virtctl migrate moves a guest within its namespace and cluster";
const MEDIATED: &str = "make mediated devices on the node, and name them in permittedHostDevices";
const DEVICES: &str = "docs/host-devices.md#host-devices-and-gpus";
const PLUGGED: &str = "docs/hotplug-volumes.md#refusals";
const SETTINGS: &str = "docs/configuration.md#what-is-refused-and-why";

/// Every advice.
pub const ADVICE: &[Advice] = &[
    row("disks.blockSize", "a lun has the block size of its device", "docs/claims.md#lun"),
    row("disks.bootOrder", FROM_THE_START, PLUGGED),
    row("disks.cdrom", "give the drive a volume that is not hotpluggable", PLUGGED),
    row("disks.cdrom.bus", "use sata or scsi", "docs/api.md#virtualmachineinstance"),
    row("disks.disk.pciAddress", FROM_THE_START, PLUGGED),
    row("disks.lun.bus", "use scsi", "docs/claims.md#lun"),
    row("disks.lun.reservation", "a lun works without persistent reservations", "docs/claims.md#lun"),
    row("filesystems.name", "share a volume that is neither a disk nor hotpluggable", "docs/filesystems.md"),
    row(
        "volumes.memoryDump",
        "virtctl debug collects what QEMU and the kernel know about a guest",
        "docs/qmp.md#a-bundle-for-debugging",
    ),
    row("spec.utilityVolumes", "add the volume with virtctl addvolume", "docs/hotplug-volumes.md"),
    row(
        "interfaces.dhcpOptions",
        "use masquerade or bridge; passt has no such options",
        "docs/network.md#passt",
    ),
    row(
        "networks.multus.default",
        "use bridge for a network in place of the pod's",
        "docs/network.md#sr-iov",
    ),
    row("networks.pod.vmNetworkCIDR", NO_RANGE, "docs/network.md#masquerade"),
    row("networks.pod.vmIPv6NetworkCIDR", NO_RANGE, "docs/network.md#masquerade"),
    row(
        "networks.resourceClaim",
        "name a network of Multus, and the binding sriov",
        "docs/network.md#sr-iov",
    ),
    row("gpus.claimName", DEVICE_PLUGIN, DEVICES),
    row("gpus.requestName", DEVICE_PLUGIN, DEVICES),
    row("hostDevices.claimName", DEVICE_PLUGIN, DEVICES),
    row("hostDevices.requestName", DEVICE_PLUGIN, DEVICES),
    row("spec.resourceClaims", "name resources of device plugins in gpus and hostDevices", DEVICES),
    row(
        "domain.launchSecurity",
        "leave it out: the memory of guests is not encrypted",
        "docs/api.md#virtualmachineinstance",
    ),
    row(
        "memory.reservedOverhead",
        "additionalGuestMemoryOverheadRatio of the settings gives every launcher pod more memory",
        "docs/memory-overhead.md#the-formula",
    ),
    row(
        "hpet.tickPolicy",
        "leave it out, or switch the timer off with present: false",
        "docs/machine.md#clock",
    ),
    row("features.apic.enabled", "leave it out: a q35 machine has an APIC", "docs/machine.md#refused"),
    row("spec.architecture", "use amd64", "docs/api.md#virtualmachineinstance"),
    row("proactive.statePreservation", OFFLINE, "docs/pools.md#what-machines-leave"),
    row("opportunistic.statePreservation", OFFLINE, "docs/pools.md#what-machines-leave"),
    row("spec.receive", MIGRATE, "docs/migration.md"),
    row("spec.sendTo", MIGRATE, "docs/migration.md"),
    row("mediatedDevicesConfiguration.mediatedDeviceTypes", MEDIATED, DEVICES),
    row("mediatedDevicesConfiguration.mediatedDevicesTypes", MEDIATED, DEVICES),
    row("mediatedDevicesConfiguration.nodeMediatedDeviceTypes", MEDIATED, DEVICES),
    row("configuration.virtualMachineInstancesPerNode", "set maxPods of the kubelets", SETTINGS),
    row(
        "configuration.minCPUModel",
        "name a model in cpuModel, or labels of nodes in developerConfiguration.nodeSelectors",
        "docs/configuration.md#what-has-an-effect",
    ),
    row(
        "developerConfiguration.diskVerification",
        "leave it out: reading the head of an image is bounded already",
        SETTINGS,
    ),
    row("customProfile.runtimeDefaultProfile", "leave it out, or name a localhostProfile", SETTINGS),
];

/// The advice about a field, by its path without indices.
pub(crate) fn about(field: &str) -> Option<&'static Advice> {
    let ends = |advice: &&Advice| {
        field.strip_suffix(advice.field).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    ADVICE.iter().find(ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::{Cause, CauseKind, Path};

    /// Fields that are refused with some values, or in some machines.
    const SOMETIMES: [&str; 9] = [
        "disks.bootOrder",
        "disks.cdrom.bus",
        "disks.disk.pciAddress",
        "disks.lun.bus",
        "filesystems.name",
        "networks.multus.default",
        "networks.pod.vmIPv6NetworkCIDR",
        "networks.pod.vmNetworkCIDR",
        "spec.architecture",
    ];

    #[test]
    fn only_fields_without_effect_have_advice() {
        let lists = [
            include_str!("validate/supported/vmi.txt"),
            include_str!("validate/supported/vm.txt"),
            include_str!("validate/supported/pool.txt"),
            include_str!("validate/supported/kubevirt.txt"),
            include_str!("validate/supported/kubevirt_migrations.txt"),
        ];
        for line in lists.iter().flat_map(|list| list.lines()).filter(|line| !line.starts_with('#')) {
            // A line with a value says that no other value has an effect.
            let Some(field) = line.split(' ').next().filter(|_| !line.contains(" = ")) else { continue };
            let field = format!("spec.{}", field.replace("[]", ""));
            if let Some(advice) = about(&field) {
                assert!(
                    SOMETIMES.contains(&advice.field),
                    "{field} has an effect, and advice: {}",
                    advice.instead
                );
            }
        }
    }

    #[test]
    fn each_field_has_one_advice() {
        for advice in ADVICE {
            assert_eq!(about(advice.field), Some(advice));
            assert_eq!(about(&format!("spec.a.{}", advice.field)), Some(advice));
            assert_eq!(about(&format!("spec.a{}", advice.field)), None);
            assert!(!advice.instead.ends_with('.') && !advice.instead.is_empty(), "{}", advice.instead);
        }
        assert_eq!(about("spec.hostname"), None);
    }

    #[test]
    fn a_refused_field_says_what_to_use_instead() {
        let field = Path::new("spec.domain.devices.disks").index(3).child("lun.reservation");
        let cause = Cause::not_supported_yet(&field, "");
        let advised = cause.advised();
        assert_eq!(
            advised.message,
            format!(
                "{field} is not supported yet; a lun works without persistent reservations (docs/claims.md#lun)"
            )
        );
        assert_eq!((&advised.field, advised.kind), (&cause.field, cause.kind));
        // Users may put brackets into a key.
        let odd = Cause::not_supported_yet(&Path::new("spec.limits").child("a]b["), "");
        assert_eq!(odd.advised(), odd);
        // A field without advice, and messages of other rules, stay as they are.
        let other = Cause::not_supported_yet(&Path::new("spec.hostname"), "");
        assert_eq!(other.advised(), other);
        for kind in [CauseKind::Invalid, CauseKind::NotSupported] {
            let kubevirts = Cause::new(kind, &field, "reservation is only for block volumes");
            assert_eq!(kubevirts.advised(), kubevirts);
        }
    }
}
