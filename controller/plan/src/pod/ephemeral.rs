//! How much of its node's disk a guest may use: the size limit of the folder with its ephemeral disks.
//!
//! Each of these disks is a file that grows as its guest writes, up to the disk's size. The limit is their sum, so that no
//! guest is evicted for its own disks; the installation may set a lower limit for all of them together.

use barevirt_api::cloud_init;
use barevirt_api::quantity;
use barevirt_api::settings::NodeDisk;
use barevirt_api::valid::{ValidDisk, ValidVmi};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Space for the folder itself and the disk of metrics.
const MARGIN: u64 = 16 << 20;
/// An image of cloud-init: a Kubernetes secret has 1 MiB at most, and several become one image.
const CLOUD_INIT: u64 = 16 << 20;
/// The first tables of a qcow2 file.
const TABLES: u64 = 1 << 20;

/// The limit.
pub(super) fn limit(vmi: &ValidVmi, node_disk: &NodeDisk) -> Quantity {
    let most = |disk: &ValidDisk| most_of(vmi, disk, node_disk);
    let sum = vmi.boot_disks().map(most).fold(MARGIN, u64::saturating_add);
    quantity::from_bytes(node_disk.total.map_or(sum, |total| sum.min(total)))
}

/// Largest size of a disk's file; 0 where it is elsewhere or never written.
fn most_of(vmi: &ValidVmi, disk: &ValidDisk, node_disk: &NodeDisk) -> u64 {
    let volume = &disk.volume;
    if volume.container_disk.is_some() {
        // The image's size is not known here: the launcher sees it, and refuses larger images.
        return if disk.disk.is_cdrom() { 0 } else { qcow2(node_disk.largest_image) };
    }
    if let Some(claim) = volume.claim() {
        let size = claim_size(vmi, &volume.name);
        // The disk on a claim may be larger than the claim's request: a folder has no quota.
        return if claim.is_ephemeral {
            qcow2(node_disk.largest_image.max(size.saturating_mul(2)))
        } else {
            0
        };
    }
    if let Some(source) = &volume.empty_disk {
        return qcow2(quantity::bytes(&source.capacity).unwrap_or(u64::MAX));
    }
    if cloud_init::of(volume).is_some() { CLOUD_INIT } else { 0 }
}

/// A qcow2 file whose disk is completely written: tables take 10 bytes for each 64 KiB.
fn qcow2(size: u64) -> u64 {
    size.saturating_add(size / 4096).saturating_add(TABLES)
}

fn claim_size(vmi: &ValidVmi, volume: &str) -> u64 {
    let status = vmi.vmi().status.as_ref();
    let known = status.and_then(|status| status.volume_status.iter().find(|known| known.name == volume));
    let claim = known.and_then(|known| known.persistent_volume_claim_info.as_ref());
    claim.and_then(|claim| claim.disk_bytes()).unwrap_or(0)
}
