//! Sizes of a drive's blocks.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Sizes of a drive's blocks in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Saved", into = "Saved")]
pub struct Blocks {
    /// Size of the smallest block that is read or written.
    pub logical: u32,
    /// Size of the medium's blocks.
    pub physical: u32,
    /// Size of blocks that can be discarded.
    pub discard: Option<u32>,
}

/// The saved form: layouts of many disks have to be short.
type Saved = (u32, u32, Option<u32>);

impl From<Saved> for Blocks {
    fn from((logical, physical, discard): Saved) -> Self {
        Self { logical, physical, discard }
    }
}

impl From<Blocks> for Saved {
    fn from(Blocks { logical, physical, discard }: Blocks) -> Self {
        (logical, physical, discard)
    }
}

impl Blocks {
    /// Sizes that QEMU accepts, if they are powers of two.
    const SIZES: RangeInclusive<u32> = 512..=2 << 20;

    /// Blocks of files are not larger: guests refuse blocks that are larger than their pages.
    const LARGEST_OF_FILES: u32 = 4096;

    /// Blocks of a device with these sizes, corrected as in KubeVirt where they cannot be. `None` if neither the
    /// logical nor the physical size is possible.
    #[must_use]
    pub fn of_device(logical: u64, physical: u64, discard: u64) -> Option<Self> {
        let (logical, physical) = (possible(logical), possible(physical));
        let logical = logical.or(physical)?;
        let physical = physical.filter(|physical| *physical >= logical).unwrap_or(logical);
        let discard = u32::try_from(discard).ok().filter(|discard| discard.is_multiple_of(logical));
        Some(Self { logical, physical, discard: Some(discard.unwrap_or(physical)) })
    }

    /// Blocks of a file on a file system with blocks of this size: a file has only one size.
    #[must_use]
    pub fn of_file(block: u64) -> Self {
        let larger = block.is_power_of_two() && block >= u64::from(Self::LARGEST_OF_FILES);
        let size =
            if larger { Self::LARGEST_OF_FILES } else { possible(block).unwrap_or(*Self::SIZES.start()) };
        Self { logical: size, physical: size, discard: Some(size) }
    }

    /// The same for a bus whose drives have logical blocks of 512 bytes only.
    pub(crate) fn of_512(self) -> Self {
        Self { logical: *Self::SIZES.start(), discard: None, ..self }
    }

    /// Whether QEMU makes a drive with these sizes.
    pub(crate) fn are_possible(self) -> bool {
        let Self { logical, physical, discard } = self;
        let is_size = |size: u32| possible(size.into()).is_some();
        is_size(logical)
            && is_size(physical)
            && logical <= physical
            && discard.is_none_or(|discard| discard.is_multiple_of(logical))
    }
}

/// A size that QEMU accepts.
fn possible(size: u64) -> Option<u32> {
    let size = u32::try_from(size).ok()?;
    (size.is_power_of_two() && Blocks::SIZES.contains(&size)).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(logical: u32, physical: u32, discard: Option<u32>) -> Blocks {
        Blocks { logical, physical, discard }
    }

    #[test]
    fn sizes_of_a_device_are_corrected_where_they_cannot_be() {
        for (told, expected) in [
            ((512, 4096, 512), Some((512, 4096, 512))),
            ((4096, 4096, 4 << 20), Some((4096, 4096, 4 << 20))),
            // It cannot discard.
            ((512, 512, 0), Some((512, 512, 0))),
            ((0, 4096, 4096), Some((4096, 4096, 4096))),
            ((512, 0, 512), Some((512, 512, 512))),
            ((4096, 512, 4096), Some((4096, 4096, 4096))),
            ((512, 3000, 512), Some((512, 512, 512))),
            ((4096, 8192, 512), Some((4096, 8192, 8192))),
            ((512, 4096, 1 << 40), Some((512, 4096, 4096))),
            ((0, 0, 512), None),
            ((3, 4 << 20, 512), None),
        ] {
            let (logical, physical, discard) = told;
            let found = Blocks::of_device(logical, physical, discard);
            let expected =
                expected.map(|(logical, physical, discard)| blocks(logical, physical, Some(discard)));
            assert_eq!(found, expected, "{told:?}");
            assert!(found.is_none_or(Blocks::are_possible), "{told:?}");
        }
    }

    #[test]
    fn a_file_has_the_blocks_of_its_file_system_but_none_that_guests_refuse() {
        for (block, expected) in [
            (1024, 1024),
            (4096, 4096),
            (1 << 20, 4096),
            (4 << 20, 4096),
            (1 << 40, 4096),
            (0, 512),
            (1000, 512),
            (256, 512),
        ] {
            assert_eq!(Blocks::of_file(block), blocks(expected, expected, Some(expected)), "{block}");
        }
    }

    #[test]
    fn a_drive_with_blocks_of_512_bytes_keeps_the_physical_size() {
        let there = blocks(4096, 8192, Some(8192)).of_512();
        assert_eq!(there, blocks(512, 8192, None));
        assert!(there.are_possible());
    }

    #[test]
    fn sizes_are_saved_as_a_list() {
        for (blocks, text) in
            [(blocks(512, 4096, Some(0)), "[512,4096,0]"), (blocks(512, 512, None), "[512,512,null]")]
        {
            assert_eq!(serde_json::to_string(&blocks).unwrap(), text);
            assert_eq!(serde_json::from_str::<Blocks>(text).unwrap(), blocks);
        }
    }

    #[test]
    fn impossible_sizes_are_known() {
        for (logical, physical, discard) in [
            (256, 512, None),
            (0, 0, None),
            (4096, 512, None),
            (512, 4 << 20, None),
            (1536, 4096, None),
            (512, 3000, None),
            (4096, 4096, Some(512)),
        ] {
            assert!(!blocks(logical, physical, discard).are_possible(), "{logical} {physical} {discard:?}");
        }
    }
}
