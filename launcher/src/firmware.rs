//! Prepares what a machine starts with: the flash of UEFI, the kernel of a kernel boot, and the TPM process
//! beside QEMU.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use barevirt_api::firmware;
use barevirt_api::valid::ValidVmi;
use barevirt_machine::{FdSet, FdSetMember, FileSource, FirmwareFacts, Flash};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::acpi_table::{self, AcpiTableError};
use crate::descriptors::Descriptors;
use crate::process::Command;
use crate::state::Places;

/// The set of descriptors for the variables of UEFI. Volumes have the sets from 10 on.
const VARIABLES_SET: u32 = 2;

/// Why firmware or TPM cannot be prepared; names the field that requests it.
#[derive(Debug, thiserror::Error)]
pub enum FirmwareError {
    /// The variables cannot be prepared.
    #[error("spec.domain.firmware.bootloader.efi: cannot prepare its variables: {0}")]
    Variables(io::Error),
    /// The TPM cannot be prepared.
    #[error("spec.domain.devices.tpm: cannot prepare its state: {0}")]
    Tpm(io::Error),
    /// An ACPI table cannot be used.
    #[error("spec.domain.firmware.acpi.{field}: {source}")]
    AcpiTable {
        /// The field of the table.
        field: &'static str,
        /// The error.
        source: AcpiTableError,
    },
    /// What Ignition is to do cannot be passed on.
    #[error("metadata.annotations: cannot pass on the data for Ignition: {0}")]
    Ignition(io::Error),
    /// There is no kernel.
    #[error("spec.domain.firmware.kernelBoot: no kernel was given")]
    NoKernel,
}

/// Paths on this machine.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The directory of UEFI images, as Debian's package ovmf has them.
    pub ovmf: PathBuf,
    /// swtpm, by path or by name.
    pub swtpm: PathBuf,
    /// Directories for state.
    pub places: Places,
    /// Whether the guest comes from another node: the state of its TPM and its firmware comes with it.
    pub comes: bool,
}

/// A kernel and its initial file system, open for reading.
#[derive(Debug, Default)]
pub struct Kernel {
    /// The kernel.
    pub image: Option<OwnedFd>,
    /// The initial file system.
    pub initrd: Option<OwnedFd>,
}

/// The prepared parts.
#[derive(Debug, Default)]
pub struct Prepared {
    /// For the plan.
    pub facts: FirmwareFacts,
    /// Descriptors that the facts refer to.
    pub fd_sets: Vec<FdSet>,
    /// swtpm, to be started before QEMU.
    pub tpm: Option<Command>,
}

/// Prepares what the manifest requests.
///
/// # Errors
/// Names the field whose request cannot be met.
pub fn prepare(
    vmi: &ValidVmi,
    kernel: Kernel,
    installation: &Installation,
    descriptors: &mut Descriptors,
) -> Result<Prepared, FirmwareError> {
    let spec = vmi.spec();
    let mut prepared = Prepared::default();
    if firmware::efi(spec).is_some() {
        let (code, variables) = if firmware::secure_boot(spec) {
            ("OVMF_CODE_4M.secboot.fd", "OVMF_VARS_4M.ms.fd")
        } else {
            ("OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd")
        };
        let directory = installation.places.directory("nvram", firmware::persistent_efi(spec));
        // The file has its template's name: if secure boot is requested later, the machine does not get
        // variables without keys.
        let file = directory
            .and_then(|directory| directory.copy_once(variables, &installation.ovmf.join(variables)))
            .map_err(FirmwareError::Variables)?;
        let member = FdSetMember { fd: descriptors.add(file), what: "firmware variables".to_owned() };
        prepared.fd_sets.push(FdSet { number: VARIABLES_SET, members: vec![member] });
        prepared.facts.flash = Some(Flash {
            code: FileSource::Path(installation.ovmf.join(code).display().to_string()),
            variables: FileSource::FdSet(VARIABLES_SET),
        });
    }
    if firmware::kernel_boot(spec).is_some() && kernel.image.is_none() {
        return Err(FirmwareError::NoKernel);
    }
    // QEMU only opens these files by name.
    let mut name = |file: OwnedFd| format!("/proc/self/fd/{}", descriptors.add(file));
    prepared.facts.kernel = kernel.image.map(&mut name);
    prepared.facts.initrd = kernel.initrd.map(&mut name);
    for table in firmware::acpi_tables(spec) {
        let open = acpi_table::open(&table, &installation.places.private);
        let open = open.map_err(|source| FirmwareError::AcpiTable { field: table.field, source })?;
        prepared.facts.acpi_tables.push(name(open));
    }
    if let Some(data) = firmware::ignition(vmi.vmi()) {
        prepared.facts.ignition = Some(name(ignition(data).map_err(FirmwareError::Ignition)?));
    }
    if firmware::tpm(spec) {
        let kept = firmware::persistent_tpm(spec);
        let (command, socket) = tpm(installation, kept).map_err(FirmwareError::Tpm)?;
        prepared.facts.tpm = Some(descriptors.add(socket));
        prepared.tpm = Some(command);
    }
    Ok(prepared)
}

/// A file in memory with what Ignition is to do.
fn ignition(data: &str) -> io::Result<OwnedFd> {
    let memory = memfd_create(c"ignition", MFdFlags::MFD_CLOEXEC)?;
    File::from(memory.try_clone()?).write_all_at(data.as_bytes(), 0)?;
    Ok(memory)
}

/// The lock file in swtpm's directory.
const LOCK: &str = ".lock";

/// swtpm on a socket pair, and QEMU's end of the pair. swtpm ends when QEMU has closed its end. Its system
/// calls are filtered by default.
fn tpm(installation: &Installation, kept: bool) -> io::Result<(Command, OwnedFd)> {
    let state = installation.places.directory("tpm", kept)?;
    if kept && installation.comes {
        // The source's swtpm holds the lock of the shared directory until it ends, and cannot release it. The
        // migration ensures that only one of them uses the TPM.
        state.remove(LOCK)?;
    }
    let state = state.into_descriptor();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let arguments = [
        "socket",
        "--tpm2",
        "--ctrl",
        "type=unixio,clientfd=3",
        "--tpmstate",
        "dir=/proc/self/fd/4,mode=0600",
        "--terminate",
    ];
    let command = Command {
        program: installation.swtpm.clone(),
        arguments: arguments.map(str::to_owned).into(),
        descriptors: vec![(3, ours.into()), (4, state)],
        domain: None,
    };
    Ok((command, theirs.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn the_data_for_ignition_is_read_from_its_beginning() {
        let data = r#"{"ignition": {"version": "3.4.0"}}"#;
        let mut read = String::new();
        File::from(ignition(data).unwrap()).read_to_string(&mut read).unwrap();
        assert_eq!(read, data);
    }
}
