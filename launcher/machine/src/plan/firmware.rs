//! The firmware of the machine: BIOS or UEFI, and a kernel that is started without a disk.

use crate::device::tpm::Tpm;
use crate::error::PlanError;
use crate::facts::Facts;
use crate::machine::{Firmware, Kernel};
use barevirt_api::firmware;
use barevirt_api::v1::{Bios, Bootloader};
use barevirt_api::valid::ValidVmi;

pub(super) fn plan(vmi: &ValidVmi, facts: &Facts) -> Result<Firmware, PlanError> {
    let spec = vmi.spec();
    let bootloader: Option<&Bootloader> =
        spec.domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    let flash = match firmware::efi(spec) {
        Some(_) => Some(facts.firmware.flash.clone().ok_or_else(|| missing("bootloader.efi", "firmware"))?),
        None => None,
    };
    Ok(Firmware {
        machine_type: facts.machine_type.clone().unwrap_or_else(|| vmi.machine_type().to_owned()),
        acpi: vmi.acpi(),
        on_serial: bootloader.and_then(|bootloader| bootloader.bios.as_ref()).is_some_and(Bios::uses_serial),
        smm: firmware::smm(spec),
        secure_boot: firmware::secure_boot(spec),
        flash,
        kernel: kernel(vmi, facts)?,
        acpi_tables: facts.firmware.acpi_tables.clone(),
        ignition: facts.firmware.ignition.clone(),
    })
}

fn kernel(vmi: &ValidVmi, facts: &Facts) -> Result<Option<Kernel>, PlanError> {
    let Some((boot, container)) = firmware::kernel_boot(vmi.spec()) else { return Ok(None) };
    let wanted = |path: &Option<String>| firmware::path(path.as_ref()).is_some();
    let found = |name: &str, wanted: bool, found: &Option<String>| match found {
        Some(file) if wanted => Ok(Some(file.clone())),
        None if wanted => Err(missing(name, "file")),
        _ => Ok(None),
    };
    let image =
        found("kernelBoot.container.kernelPath", wanted(&container.kernel_path), &facts.firmware.kernel)?;
    let initrd =
        found("kernelBoot.container.initrdPath", wanted(&container.initrd_path), &facts.firmware.initrd)?;
    // Validation requires the kernel, because QEMU ignores an initrd alone.
    let arguments = boot.kernel_args.clone().filter(|arguments| !arguments.is_empty());
    Ok(image.map(|image| Kernel { image, initrd, arguments }))
}

pub(super) fn tpm(vmi: &ValidVmi, facts: &Facts) -> Result<Option<Tpm>, PlanError> {
    if !firmware::tpm(vmi.spec()) {
        return Ok(None);
    }
    match facts.firmware.tpm {
        Some(socket) => Ok(Some(Tpm { socket })),
        None => {
            let field = "spec.domain.devices.tpm".to_owned();
            Err(PlanError::Unprepared { field, what: "TPM" })
        }
    }
}

fn missing(field: &str, what: &'static str) -> PlanError {
    PlanError::Unprepared { field: format!("spec.domain.firmware.{field}"), what }
}
