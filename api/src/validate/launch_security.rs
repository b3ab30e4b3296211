//! Rules for encrypted memory: one kind at a time, and the features that cannot be combined with it.

use super::{Cause, CauseKind, Path};
use crate::architecture;
use crate::gates::Gates;
use crate::syntax::quoted;
use crate::v1::{Bootloader, FeatureState, LaunchSecurity, VirtualMachineInstanceSpec};

pub(super) fn validate(
    path: &Path,
    spec: &VirtualMachineInstanceSpec,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    let Some(security) = spec.domain.launch_security.as_ref() else { return };
    let field = path.child("domain.launchSecurity");
    match architecture::of(spec) {
        "amd64" => {}
        // Secure Execution has no settings.
        "s390x" => return,
        other => {
            causes.push(Cause::invalid(
                &path.child("architecture"),
                format!("No launchSecurity support for architecture: {}", quoted(other)),
            ));
            return;
        }
    }
    let given = [
        (security.sev.is_some(), "SEV", "WorkloadEncryptionSEV"),
        (security.snp.is_some(), "SNP", "WorkloadEncryptionSEV"),
        (security.tdx.is_some(), "TDX", "WorkloadEncryptionTDX"),
    ];
    let mut given = given.iter().filter(|(given, ..)| *given);
    match (given.next(), given.next()) {
        (Some((_, kind, gate)), None) => {
            let mut refuse = |message: String| causes.push(Cause::invalid(&field, message));
            if gates.is_on(gate) {
                one(security, spec, kind, &mut refuse);
            } else {
                refuse(format!("{gate} feature gate is not enabled in kubevirt-config"));
            }
        }
        _ => causes.push(Cause::new(
            CauseKind::Forbidden,
            &field,
            "One and only one launchSecurity type can be set",
        )),
    }
}

fn one(
    security: &LaunchSecurity,
    spec: &VirtualMachineInstanceSpec,
    kind: &str,
    refuse: &mut impl FnMut(String),
) {
    let smm = spec.domain.features.as_ref().and_then(|features| features.smm.as_ref());
    if security.tdx.is_some() && smm.is_some_and(FeatureState::is_enabled) {
        refuse("TDX does not work along with SMM".to_owned());
    }
    let bootloader = spec.domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    match bootloader {
        Some(Bootloader { efi: Some(efi), .. }) => {
            if security.tdx.is_none() && efi.secure_boot.unwrap_or(true) {
                refuse(format!("{kind} does not work along with SecureBoot"));
            }
            if security.sev.is_none() && efi.persistent == Some(true) {
                refuse(format!("{kind} does not work along with Persistent EFI variables"));
            }
        }
        _ => refuse(format!("{kind} requires OVMF (UEFI)")),
    }
    let attested = security.sev.as_ref().is_some_and(|sev| sev.attestation.is_some());
    if attested && spec.start_strategy.as_deref() != Some("Paused") {
        refuse("SEV attestation requires VMI StartStrategy 'Paused'".to_owned());
    }
    for interface in &spec.domain.devices.interfaces {
        if interface.boot_order.is_some() {
            refuse(format!("{kind} does not work with bootable NICs: {}", quoted(&interface.name)));
        }
    }
}
