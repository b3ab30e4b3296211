//! What the instance's status says about its volumes and their claims. Pure.

use barevirt_api::valid::ValidVmi;
use barevirt_protocol::names::LARGEST_MADE;

/// Size of a disk that was made of the manifest or of an object when the guest started on another node.
#[must_use]
pub fn made_size(vmi: &ValidVmi, volume: &str) -> Option<u64> {
    vmi.vmi().status.as_ref()?.disk_bytes(volume).filter(|size| *size <= LARGEST_MADE)
}

/// Size of a new disk on a claim that the volume moves to with its guest. `None` if the volume does not move.
#[must_use]
pub fn moved_size(vmi: &ValidVmi, volume: &str) -> Option<u64> {
    vmi.vmi().status.as_ref()?.moved_disk_bytes(volume)
}

/// Whether the space of a volume's claim was allocated in advance: of the claim that it moves to, if it moves.
#[must_use]
pub fn is_preallocated(vmi: &ValidVmi, volume: &str) -> bool {
    let Some(status) = vmi.vmi().status.as_ref() else { return false };
    let moved = status.migrated_volumes.iter().find(|moved| moved.volume_name == volume);
    let info = match moved {
        Some(moved) => moved.destination_pvc_info.as_ref(),
        None => {
            let known = status.volume_status.iter().find(|known| known.name == volume);
            known.and_then(|known| known.persistent_volume_claim_info.as_ref())
        }
    };
    info.is_some_and(|info| info.preallocated == Some(true))
}

/// Size of a new disk on the claim.
#[must_use]
pub fn claim_size(vmi: &ValidVmi, volume: &str) -> Option<u64> {
    vmi.vmi().status.as_ref()?.claim_info(volume)?.disk_bytes()
}
