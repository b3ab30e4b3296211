//! Rules for machine type, firmware, and the kernel that the firmware starts.

use super::{Cause, Path};
use crate::architecture::{self, fits, is_machine_type};
use crate::gates::Gates;
use crate::syntax::{is_plain_path, is_printable, quoted, uuid};
use crate::v1::{Acpi, Bootloader, DomainSpec, FeatureState, KernelBoot, VirtualMachineInstanceSpec};

/// Longest SMBIOS serial number that is accepted.
const SERIAL_LIMIT: usize = 256;
/// Longest kernel command line: Linux's own limit on amd64.
const KERNEL_ARGS_LIMIT: usize = 2048;

pub(super) fn validate(
    path: &Path,
    spec: &VirtualMachineInstanceSpec,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    let domain = path.child("domain");
    machine(&domain.child("machine.type"), spec, gates, causes);
    let Some(firmware) = spec.domain.firmware.as_ref() else { return };
    let field = domain.child("firmware");
    if let Some(given) = firmware.uuid.as_deref().filter(|given| !given.is_empty() && uuid(given).is_none()) {
        let field = field.child("uuid");
        causes.push(Cause::invalid(&field, format!("{field} '{}' is not a UUID", quoted(given))));
    }
    if firmware.serial.as_deref().is_some_and(|serial| !is_printable(serial, SERIAL_LIMIT)) {
        let field = field.child("serial");
        causes.push(Cause::invalid(
            &field,
            format!("{field} must be made up of printable ASCII characters, at most {SERIAL_LIMIT}"),
        ));
    }
    if let Some(bootloader) = &firmware.bootloader {
        boot(&domain, &spec.domain, bootloader, causes);
    }
    if let Some(kernel) = &firmware.kernel_boot {
        kernel_boot(&field.child("kernelBoot"), kernel, causes);
    }
    if let Some(acpi) = &firmware.acpi {
        tables(&field.child("acpi"), acpi, spec, causes);
    }
}

fn machine(field: &Path, spec: &VirtualMachineInstanceSpec, gates: &Gates, causes: &mut Vec<Cause>) {
    let Some(machine) = spec.domain.machine.as_ref().and_then(|machine| machine.type_.as_deref()) else {
        return;
    };
    let patterns = architecture::machine_types(architecture::of(spec));
    // The installation may allow fewer types; those that it names are for amd64.
    let allowed: Vec<&str> = match gates.machine_types() {
        some @ [_, ..] if architecture::of(spec) == architecture::DEFAULT => {
            some.iter().map(String::as_str).collect()
        }
        _ => patterns.to_vec(),
    };
    let is_allowed = machine.is_empty() || allowed.iter().any(|pattern| fits(pattern, machine));
    let is_good = is_machine_type(machine, patterns) && is_allowed;
    // An unknown architecture has its own cause.
    if !patterns.is_empty() && !is_good {
        causes.push(Cause::invalid(
            field,
            format!(
                "{field} is not supported: {} (allowed values: [{}])",
                quoted(machine),
                allowed.join(" ")
            ),
        ));
    }
}

fn boot(domain: &Path, spec: &DomainSpec, bootloader: &Bootloader, causes: &mut Vec<Cause>) {
    let field = domain.child("firmware.bootloader");
    if bootloader.efi.is_some() && bootloader.bios.is_some() {
        causes.push(Cause::invalid(
            &field,
            format!("{field} has both EFI and BIOS configured, but they are mutually exclusive."),
        ));
    }
    // Secure boot is on unless switched off, and only system management mode protects its variables from the
    // guest. TDX has its keys in the firmware itself.
    let secure = bootloader.efi.as_ref().is_some_and(|efi| efi.secure_boot.unwrap_or(true));
    let smm = spec.features.as_ref().and_then(|features| features.smm.as_ref());
    let tdx = spec.launch_security.as_ref().is_some_and(|security| security.tdx.is_some());
    if secure && !smm.is_some_and(FeatureState::is_enabled) && !tdx {
        causes.push(Cause::invalid(
            domain,
            format!(
                "{domain} has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled."
            ),
        ));
    }
}

fn kernel_boot(field: &Path, boot: &KernelBoot, causes: &mut Vec<Cause>) {
    let field_args = field.child("kernelArgs");
    let args = boot.kernel_args.as_deref().unwrap_or_default();
    if !is_printable(args, KERNEL_ARGS_LIMIT) {
        causes.push(Cause::invalid(
            &field_args,
            format!(
                "{field_args} must be made up of printable ASCII characters, at most {KERNEL_ARGS_LIMIT}"
            ),
        ));
    }
    let Some(container) = &boot.container else {
        if !args.is_empty() {
            causes.push(Cause::invalid(
                &field_args,
                "kernel arguments cannot be provided without an external kernel",
            ));
        }
        return;
    };
    let field = field.child("container");
    if container.image.is_empty() {
        causes.push(Cause::required(&field.child("image"), format!("{field} must be defined with an image")));
    }
    let kernel = container.kernel_path.as_deref().unwrap_or_default();
    let initrd = container.initrd_path.as_deref().unwrap_or_default();
    if kernel.is_empty() && initrd.is_empty() {
        causes.push(Cause::required(
            &field,
            format!("{field} must be defined with at least one of the following: kernelPath, initrdPath"),
        ));
    }
    for (name, path) in [("kernelPath", kernel), ("initrdPath", initrd)] {
        if !path.is_empty() {
            file(&field.child(name), path, causes);
        }
    }
    let field = field.child("initrdPath");
    if kernel.is_empty() && !initrd.is_empty() && !causes.iter().any(|cause| field.holds(&cause.field)) {
        // An initial RAM disk alone cannot be started.
        causes.push(Cause::not_supported(&field, format!("{field} is not supported without kernelPath")));
    }
}

/// A file in a container image.
pub(super) fn file(field: &Path, path: &str, causes: &mut Vec<Cause>) {
    if path == "/" {
        causes.push(Cause::invalid(field, format!("{field} must not point to root")));
    } else if path.len() > 4096 || !is_plain_path(path) {
        causes.push(Cause::invalid(
            field,
            format!("{field} must be an absolute path to a file without relative components"),
        ));
    }
}

/// ACPI tables come from volumes of secrets.
fn tables(field: &Path, acpi: &Acpi, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let slic = acpi.slic_name_ref.as_deref().unwrap_or_default();
    let msdm = acpi.msdm_name_ref.as_deref().unwrap_or_default();
    if slic.is_empty() && msdm.is_empty() {
        causes.push(Cause::invalid(field, "ACPI was set but no SLIC nor MSDM volume reference was set"));
    }
    for (name, reference) in [("slicNameRef", slic), ("msdmNameRef", msdm)] {
        if reference.is_empty() {
            continue;
        }
        let message = match spec.volumes.iter().find(|volume| volume.name == reference) {
            Some(volume) if volume.secret.is_some() => continue,
            Some(_) => format!("{field} refers to Volume of unsupported type."),
            None => format!("{field} does not have a matching Volume."),
        };
        causes.push(Cause::invalid(&field.child(name), message));
    }
}
