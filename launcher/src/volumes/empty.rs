//! Empty disks, which live as long as their pod.

use std::fs::File;
use std::path::PathBuf;

use barevirt_api::quantity;
use barevirt_api::v1::EmptyDiskSource;
use barevirt_api::valid::{ValidDisk, ValidVmi};
use barevirt_machine::Blocks;
use barevirt_protocol::v1::ClaimDisk;

use super::{Places, Prepared, VolumeError, blocks, make};

/// A disk has whole mebibytes, as in KubeVirt.
const ALIGNMENT: u64 = 1 << 20;

/// Makes the disk. Returns the path of its file, and its block sizes.
///
/// # Errors
/// Names the volume.
pub(super) fn prepare(
    vmi: &ValidVmi,
    disk: &ValidDisk,
    source: &EmptyDiskSource,
    places: &Places,
    prepared: &mut Prepared,
) -> Result<(PathBuf, Option<Blocks>), VolumeError> {
    let volume = &disk.volume.name;
    let asked =
        quantity::bytes(&source.capacity).map_err(|_| VolumeError::Capacity { volume: volume.clone() })?;
    let told = vmi.vmi().status.as_ref().and_then(|status| status.disk_bytes(volume));
    let bytes = size(asked, told, places.comes);
    let path = places.directory.join(format!("{volume}.empty.qcow2"));
    make(volume, &path, bytes)?;
    let file = File::open(&path).map_err(|source| VolumeError::Blocks { volume: volume.clone(), source })?;
    let blocks = blocks(disk, &file)?;
    prepared.on_claims.push(ClaimDisk { volume: volume.clone(), bytes });
    Ok((path, blocks))
}

/// The size of a disk for which `asked` bytes are asked. One that comes has the size that its source tells: it is copied only
/// into a disk of the same size, and a source of an older version, which tells none, has made it exactly as large as asked.
fn size(asked: u64, told: Option<u64>, comes: bool) -> u64 {
    let whole = asked / ALIGNMENT * ALIGNMENT;
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
