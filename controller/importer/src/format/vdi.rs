//! `VirtualBox`'s format. The layout is that of QEMU's `block/vdi.c`.

use super::fields::{Fields, Format, FormatError, is_possible};
use container_disk::header::SECTOR;

const SIGNATURE: &[u8] = b"\x7f\x10\xda\xbe";
const SIGNATURE_AT: usize = 64;
/// Version 1.1.
const VERSION: u32 = 0x0001_0001;
/// Kinds of images: dynamic and fixed. Others are differences to a parent.
const KINDS: [u32; 2] = [1, 2];
/// Size of a block, in bytes: the only one that qemu-img reads.
const BLOCK: u64 = 1 << 20;
/// UUIDs of images that this one belongs to.
const LINKS: [usize; 2] = [0x1a8, 0x1b8];

/// Whether an image has this format.
pub(super) fn is(head: &[u8]) -> bool {
    head.get(SIGNATURE_AT..).is_some_and(|rest| rest.starts_with(SIGNATURE))
}

/// The size of the disk, in bytes.
pub(super) fn inspect(head: &[u8], length: u64) -> Result<u64, FormatError> {
    let fields = Fields { format: Format::Vdi, bytes: head };
    let version = fields.u32(0x44)?;
    fields.need(version == VERSION, "version", version.into())?;
    for link in LINKS {
        if fields.array::<16>(link)? != [0; 16] {
            return Err(FormatError::Parent(Format::Vdi));
        }
    }
    let kind = fields.u32(0x4c)?;
    fields.need(KINDS.contains(&kind), "image_type", kind.into())?;
    let sector = fields.u32(0x168)?;
    fields.need(u64::from(sector) == SECTOR, "sector_size", sector.into())?;
    let block = u64::from(fields.u32(0x178)?);
    fields.need(block == BLOCK, "block_size", block)?;
    let extra = fields.u32(0x17c)?;
    fields.need(extra == 0, "block_extra", extra.into())?;
    let size = fields.u64(0x170)?;
    fields.need(is_possible(size), "disk_size", size)?;
    let blocks = u64::from(fields.u32(0x180)?);
    fields.need(blocks >= size.div_ceil(BLOCK), "blocks_in_image", blocks)?;
    // The table that qemu-img reads at once has to be in the file.
    let table = u64::from(fields.u32(0x154)?);
    let is_in_file = table >= SECTOR && table.is_multiple_of(SECTOR) && table + blocks * 4 <= length;
    fields.need(is_in_file, "offset_bmap", table)?;
    let data = u64::from(fields.u32(0x158)?);
    fields.need(data >= SECTOR && data.is_multiple_of(SECTOR), "offset_data", data)?;
    Ok(size.next_multiple_of(SECTOR))
}
