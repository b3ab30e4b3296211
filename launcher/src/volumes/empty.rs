//! Empty disks, which live as long as their pod.

use barevirt_api::quantity;
use barevirt_api::v1::EmptyDiskSource;
use barevirt_api::valid::ValidVmi;

use crate::disk::claim::aligned;

/// The size of the disk in bytes. `None` if the capacity is not a number of bytes.
pub(super) fn bytes(vmi: &ValidVmi, volume: &str, source: &EmptyDiskSource, comes: bool) -> Option<u64> {
    let asked = quantity::bytes(&source.capacity).ok()?;
    let told = vmi.vmi().status.as_ref().and_then(|status| status.disk_bytes(volume));
    Some(size(asked, told, comes))
}

/// The size of a disk for which `asked` bytes are asked. One that comes has the size that its source tells: it is copied only
/// into a disk of the same size, and a source of an older version, which tells none, has made it exactly as large as asked.
fn size(asked: u64, told: Option<u64>, comes: bool) -> u64 {
    // As in KubeVirt.
    let whole = aligned(asked);
    let is_whole = whole > 0 && (!comes || told == Some(whole));
    if is_whole { whole } else { asked }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_whole_mebibytes_unless_it_comes_from_an_older_version() {
        let (asked, whole) = (1_000_000_000, 999_292_928);
        assert_eq!(size(asked, None, false), whole);
        assert_eq!(size(asked, Some(whole), true), whole);
        assert_eq!(size(asked, None, true), asked);
        // Nobody may ask for more than the manifest does.
        assert_eq!(size(asked, Some(1 << 40), true), asked);
        assert_eq!(size(1 << 30, None, false), 1 << 30);
        assert_eq!(size(5000, None, false), 5000);
    }
}
