//! Directories that the guest mounts by virtiofs: what cannot be shared. Pure.

use super::claims::Claims;
use barevirt_api::filesystem;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_plan::pod::claims::Mode;

/// A claim that is a device has no directory.
pub(super) fn not_shared(vmi: &VirtualMachineInstance, claims: &Claims) -> Option<String> {
    filesystem::of(&vmi.spec).find_map(|volume| {
        let claim = volume.claim().filter(|claim| claims.mode(claim.name) == Mode::Block)?;
        Some(format!(
            "failed to render launch manifest: volume {} is shared as a directory, and its claim {} is of mode Block",
            volume.name, claim.name
        ))
    })
}
