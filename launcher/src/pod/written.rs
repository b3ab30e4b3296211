//! Plugged disks that the guest may write to, in the launcher's report: a migration copies those that move to other claims.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;

use barevirt_api::valid::ValidVmi;
use barevirt_machine::VolumeFacts;
use barevirt_protocol::names::HotDisk;
use barevirt_protocol::v1::ClaimDisk;

/// Whether the guest may write to a disk.
pub(super) fn is_written(key: &HotDisk, vmi: &ValidVmi, facts: &VolumeFacts) -> bool {
    let disk = vmi.disks().iter().find(|disk| disk.volume.name == key.volume);
    disk.is_some_and(|disk| !disk.disk.is_readonly()) && !facts.read_only
}

/// The entry of a disk; `None` if the guest only reads it, or its size cannot be found.
pub(super) fn entry(
    key: &HotDisk,
    vmi: &ValidVmi,
    given: &OwnedFd,
    facts: &VolumeFacts,
) -> Option<ClaimDisk> {
    if !is_written(key, vmi, facts) {
        return None;
    }
    let bytes = length(given).inspect_err(|error| {
        tracing::warn!(volume = key.volume, %error, "the disk cannot move to another claim");
    });
    Some(ClaimDisk { volume: key.volume.clone(), bytes: bytes.ok()? })
}

/// The length of a file or a device. QEMU does not use the descriptor's position.
fn length(given: &OwnedFd) -> io::Result<u64> {
    File::from(given.try_clone()?).seek(SeekFrom::End(0))
}

/// Adds an entry, or replaces the one of the same volume.
pub(super) fn come(told: &mut Vec<ClaimDisk>, entry: ClaimDisk) {
    go(told, &entry.volume);
    told.push(entry);
}

/// Removes the entry of a volume.
pub(super) fn go(told: &mut Vec<ClaimDisk>, volume: &str) {
    told.retain(|disk| disk.volume != volume);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_one_entry() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(length(&file.into()).unwrap(), 4096);
        let disk = |volume: &str, bytes| ClaimDisk { volume: volume.to_owned(), bytes };
        let mut told = vec![disk("boot", 1), disk("data", 2)];
        come(&mut told, disk("data", 3));
        assert_eq!(told, [disk("boot", 1), disk("data", 3)]);
        go(&mut told, "data");
        assert_eq!(told, [disk("boot", 1)]);
    }
}
