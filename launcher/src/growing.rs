//! The disks that grow with their claims: before their guest starts, and while it has them.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use barevirt_api::v1::PersistentVolumeClaimInfo;
use barevirt_api::valid::{ValidDisk, ValidVmi};
use barevirt_machine::Image;

use crate::disk::claim::{Disk, Room};
use crate::disk::growth;

/// A disk on a claim that the guest may write to.
#[derive(Debug)]
pub struct Growing {
    /// Its volume.
    pub volume: String,
    /// The claim on which it is.
    pub claim: String,
    /// QEMU's name of its block node.
    pub node: String,
    /// Whether other guests may write to it, too.
    pub is_shared: bool,
    /// A descriptor to look at it.
    pub view: File,
}

impl Growing {
    /// For an open disk; `device` is its path, if it is a device of this pod. `None` if it cannot be looked at.
    #[must_use]
    pub fn of(
        vmi: &ValidVmi,
        volume: &str,
        claim: &str,
        disk: BorrowedFd<'_>,
        device: Option<&Path>,
    ) -> Option<Self> {
        let view = growth::view(disk, device).inspect_err(|error| {
            tracing::warn!(volume, %error, "the disk does not grow while its guest runs");
        });
        let shares = |known: &&ValidDisk| known.volume.name == volume;
        let is_shared =
            vmi.disks().iter().find(shares).is_some_and(|found| found.disk.shareable == Some(true));
        let node = Image::node_of(volume);
        Some(Self { volume: volume.to_owned(), claim: claim.to_owned(), node, is_shared, view: view.ok()? })
    }

    /// The size up to which it may grow, as the instance's status says.
    #[must_use]
    pub fn most(&self, vmi: &ValidVmi) -> Option<u64> {
        let info = vmi.vmi().status.as_ref()?.claim_info(&self.volume)?;
        // The volume may be about to move to another claim.
        info.grown_disk_bytes().filter(|_| info.claim_name.as_ref() == Some(&self.claim))
    }
}

/// Those of one guest, as they come and go.
#[derive(Debug, Clone, Default)]
pub struct GrowingDisks(Rc<RefCell<Vec<Arc<Growing>>>>);

impl GrowingDisks {
    /// The guest has this one from now on.
    pub fn add(&self, disk: Growing) {
        self.remove(&disk.volume);
        self.0.borrow_mut().push(Arc::new(disk));
    }

    /// The guest is to give back the one of this volume.
    pub fn remove(&self, volume: &str) {
        self.0.borrow_mut().retain(|disk| disk.volume != volume);
    }

    /// All at present.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Growing>> {
        self.0.borrow().clone()
    }
}

/// Makes a disk as large as its claim allows, before its guest starts. A guest can also start with a small disk, so
/// a failure is only logged.
pub fn at_start(vmi: &ValidVmi, volume: &str, disk: &mut Disk, room: &Room) {
    let info = vmi.vmi().status.as_ref().and_then(|status| status.claim_info(volume));
    let Some(most) = info.and_then(PersistentVolumeClaimInfo::grown_disk_bytes) else { return };
    match growth::at_start(disk, most, room) {
        Ok(length) if length != disk.length => {
            tracing::info!(volume, before = disk.length, length, "the disk has grown with its claim");
            disk.length = length;
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(volume, %error, "the disk does not grow with its claim"),
    }
}
