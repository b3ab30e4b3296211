//! What a specification asks of the machine's firmware and its TPM, defaults applied. Pure.

use crate::names::IGNITION_ANNOTATION;
use crate::object_volume::{self, ObjectVolume};
use crate::v1::{
    Efi, FeatureState, KernelBoot, KernelBootContainer, VirtualMachineInstance, VirtualMachineInstanceSpec,
};

/// Name under which the container of a kernel boot passes the kernel to the launcher. No volume can have this name.
pub const KERNEL_FILE: &str = "kernel-boot/kernel";
/// The same for the initial file system.
pub const INITRD_FILE: &str = "kernel-boot/initrd";

/// Where the pod has the claim with the instance's state mounted.
pub const STATE_DIRECTORY: &str = "/var/run/kubevirt-state";
/// Label of that claim; its value is the name of the instance. Names of claims begin with it as well.
pub const STATE_LABEL: &str = "persistent-state-for";
/// Name of that claim's volume in the instance's status.
pub const STATE_VOLUME: &str = "persistent-state-for-this-vm";

/// Path of a kernel boot's file, if it names one.
pub fn path(path: Option<&String>) -> Option<&str> {
    path.map(String::as_str).filter(|path| !path.is_empty())
}

/// The UEFI settings, if the machine boots by UEFI.
pub fn efi(spec: &VirtualMachineInstanceSpec) -> Option<&Efi> {
    spec.domain.firmware.as_ref()?.bootloader.as_ref()?.efi.as_ref()
}

/// Whether only signed boot loaders run: with UEFI, unless switched off.
pub fn secure_boot(spec: &VirtualMachineInstanceSpec) -> bool {
    efi(spec).is_some_and(|efi| efi.secure_boot.unwrap_or(true))
}

/// Whether the machine has system management mode, which secure boot requires.
pub fn smm(spec: &VirtualMachineInstanceSpec) -> bool {
    let given = spec.domain.features.as_ref().and_then(|features| features.smm.as_ref());
    given.is_some_and(FeatureState::is_enabled) || secure_boot(spec)
}

/// The kernel that is started without a boot loader.
pub fn kernel_boot(spec: &VirtualMachineInstanceSpec) -> Option<(&KernelBoot, &KernelBootContainer)> {
    let boot = spec.domain.firmware.as_ref()?.kernel_boot.as_ref()?;
    Some((boot, boot.container.as_ref()?))
}

/// An ACPI table in addition to QEMU's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcpiTable<'a> {
    /// The field below `firmware.acpi` that asks for it.
    pub field: &'static str,
    /// Signature at its beginning.
    pub signature: &'static str,
    /// Its key in the secret.
    pub key: &'static str,
    /// The volume of the secret.
    pub volume: ObjectVolume<'a>,
}

/// Tables that come from secrets, in KubeVirt's order.
pub fn acpi_tables(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = AcpiTable<'_>> {
    let acpi = spec.domain.firmware.as_ref().and_then(|firmware| firmware.acpi.as_ref());
    let references = acpi.into_iter().flat_map(|acpi| {
        [
            ("slicNameRef", "SLIC", "slic.bin", acpi.slic_name_ref.as_ref()),
            ("msdmNameRef", "MSDM", "msdm.bin", acpi.msdm_name_ref.as_ref()),
        ]
    });
    references.filter_map(|(field, signature, key, name)| {
        let volume = spec.volumes.iter().find(|volume| Some(&volume.name) == name)?;
        Some(AcpiTable { field, signature, key, volume: object_volume::of(volume)? })
    })
}

/// What Ignition is to do in the guest; KubeVirt has an annotation for it, and no field.
pub fn ignition(vmi: &VirtualMachineInstance) -> Option<&str> {
    let given = vmi.metadata.annotations.as_ref()?.get(IGNITION_ANNOTATION)?;
    Some(given.as_str()).filter(|given| !given.is_empty())
}

/// Whether there is a TPM.
pub fn tpm(spec: &VirtualMachineInstanceSpec) -> bool {
    spec.domain.devices.tpm.as_ref().is_some_and(|tpm| tpm.enabled.unwrap_or(true))
}

/// Whether the state of the TPM outlives the instance.
pub fn persistent_tpm(spec: &VirtualMachineInstanceSpec) -> bool {
    tpm(spec) && spec.domain.devices.tpm.as_ref().is_some_and(|tpm| tpm.persistent == Some(true))
}

/// Whether the variables of the UEFI outlive the instance.
pub fn persistent_efi(spec: &VirtualMachineInstanceSpec) -> bool {
    efi(spec).is_some_and(|efi| efi.persistent == Some(true))
}

/// Whether the machine has state that is kept on its own claim.
pub fn needs_state(spec: &VirtualMachineInstanceSpec) -> bool {
    persistent_tpm(spec) || persistent_efi(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(domain: Value) -> VirtualMachineInstanceSpec {
        serde_json::from_value(json!({ "domain": domain })).unwrap()
    }

    #[test]
    fn secure_boot_is_on_unless_switched_off() {
        let efi = |efi: Value| spec(json!({"devices": {}, "firmware": {"bootloader": {"efi": efi}}}));
        assert!(secure_boot(&efi(json!({}))) && smm(&efi(json!({}))));
        assert!(!secure_boot(&efi(json!({"secureBoot": false}))) && !smm(&efi(json!({"secureBoot": false}))));
        let bios = spec(json!({"devices": {}, "firmware": {"bootloader": {"bios": {}}}}));
        assert!(!secure_boot(&bios) && super::efi(&bios).is_none());
        assert!(smm(&spec(json!({"devices": {}, "features": {"smm": {}}}))));
        assert!(!smm(&spec(json!({"devices": {}, "features": {"smm": {"enabled": false}}}))));
    }

    #[test]
    fn a_tpm_that_is_switched_off_keeps_nothing() {
        let with = |tpm: Value| spec(json!({"devices": {"tpm": tpm}}));
        assert!(tpm(&with(json!({}))) && !needs_state(&with(json!({}))));
        assert!(needs_state(&with(json!({"persistent": true}))));
        let off = with(json!({"enabled": false, "persistent": true}));
        assert!(!tpm(&off) && !needs_state(&off));
    }
}
