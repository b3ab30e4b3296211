//! Directories that the guest mounts by virtiofs.

use super::ports::{DEVICES, Ports};
use crate::device::filesystem::Filesystem;
use crate::error::PlanError;
use crate::facts::Facts;
use barevirt_api::sizing;
use barevirt_api::v1::Devices;
use barevirt_api::valid::ValidVmi;

/// Names in the PCI layout.
pub(super) fn pci_names(devices: &Devices) -> impl Iterator<Item = String> {
    devices.filesystems.iter().map(|shared| Filesystem::id(&shared.name))
}

/// Whether all memory is touched at the start. The server of a directory touches memory that the guest has
/// not used yet, and this memory is charged to the server's container. In a pod whose limits equal its
/// requests, that container would have no space for it.
pub(super) fn is_touched(vmi: &ValidVmi) -> bool {
    !vmi.spec().domain.devices.filesystems.is_empty() && sizing::is_guaranteed(vmi)
}

pub(super) fn plan(
    devices: &Devices,
    facts: &Facts,
    ports: &Ports<'_>,
) -> Result<Vec<Filesystem>, PlanError> {
    let one = |(index, name): (usize, &String)| {
        let ready = facts.filesystems.iter().find(|(known, _)| known == name);
        let (_, socket) = ready.ok_or_else(|| PlanError::Unprepared {
            field: format!("{DEVICES}.filesystems[{index}]"),
            what: "connection to virtiofsd",
        })?;
        Ok(Filesystem { name: name.clone(), socket: *socket, seat: ports.seat(&Filesystem::id(name))? })
    };
    devices.filesystems.iter().map(|shared| &shared.name).enumerate().map(one).collect()
}
