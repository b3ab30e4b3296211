//! Checks the first bytes of an untrusted disk image. Pure and bounded.
//!
//! Two formats are supported, qcow2 and raw. Raw has no signature, so every format that QEMU or users know is
//! refused by name: a VMDK passed on as raw would boot to a black screen. A qcow2 image is refused if it
//! would make QEMU open another file, ask for a key, or do more work than its file size justifies.
//!
//! Layout of the qcow2 header: QEMU's `docs/interop/qcow2.txt`.

use std::fmt;

/// Number of bytes of the file that are checked.
pub const INSPECTED: usize = 4096;

/// Largest virtual size, in bytes: 64 TiB, more than a file on ext4 or xfs can be by default.
pub const LARGEST: u64 = 64 << 40;

/// Sizes of disks are multiples of this, in bytes.
pub const SECTOR: u64 = 512;

/// A supported format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The guest's bytes, unchanged.
    Raw,
    /// QEMU's copy-on-write format.
    Qcow2,
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        })
    }
}

/// The properties of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Its format.
    pub format: Format,
    /// Size of the disk the guest sees, in bytes; a multiple of [`SECTOR`].
    pub virtual_size: u64,
}

/// Why an image is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It is empty.
    #[error("image is empty")]
    Empty,
    /// Its format is not supported.
    #[error("image is in {0} format: only qcow2 and raw are supported")]
    Format(&'static str),
    /// It is shorter than its header.
    #[error("qcow2 image ends within its header")]
    Short,
    /// Its version is 1 or unknown.
    #[error("qcow2 image has version {0}: only 2 and 3 are supported")]
    Version(u32),
    /// A part of its contents is in another file.
    #[error("qcow2 image names a backing file ({0:?}) in its header, which is not allowed")]
    BackingFile(String),
    /// Its contents are in another file.
    #[error("qcow2 image names an external data file in its header, which is not allowed")]
    DataFile,
    /// It is encrypted, and there is no key.
    #[error("qcow2 image is encrypted, which is not supported")]
    Encrypted,
    /// QEMU marked it as damaged.
    #[error("qcow2 image is marked as corrupt")]
    Corrupt,
    /// It needs an unknown feature.
    #[error("qcow2 image needs unknown features (bits {0:#x})")]
    Features(u64),
    /// A value that no valid image has.
    #[error("qcow2 image has a bad header: {field} is {value}")]
    Field {
        /// The field, by its name in the specification.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// It is larger than any disk here.
    #[error("image has a size of {0} bytes, more than {LARGEST}")]
    TooLarge(u64),
}

/// The properties of the image with these first bytes. `head` holds the first [`INSPECTED`] bytes, or all
/// bytes of a shorter file; `length` is the length of the file in bytes.
///
/// # Errors
/// If the image may not be given to QEMU.
pub fn inspect(head: &[u8], length: u64) -> Result<Image, HeaderError> {
    if length == 0 || head.is_empty() {
        return Err(HeaderError::Empty);
    }
    if head.starts_with(QCOW_MAGIC) {
        return inspect_qcow2(head, length);
    }
    for (name, at, magic) in REFUSED {
        if head.get(*at..).is_some_and(|rest| rest.starts_with(magic)) {
            return Err(HeaderError::Format(name));
        }
    }
    Ok(Image { format: Format::Raw, virtual_size: disk_size(length)? })
}

const QCOW_MAGIC: &[u8] = b"QFI\xfb";

/// Formats with a signature: name, offset, magic.
const REFUSED: &[(&str, usize, &[u8])] = &[
    ("vmdk", 0, b"KDMV"),
    ("vmdk", 0, b"COWD"),
    ("vmdk", 0, b"# Disk DescriptorFile"),
    ("vmdk", 0, b"SE\x00\x00SPARSE"),
    ("vhdx", 0, b"vhdxfile"),
    ("vhd", 0, b"conectix"),
    ("vdi", 64, b"\x7f\x10\xda\xbe"),
    ("luks", 0, b"LUKS\xba\xbe"),
    ("qed", 0, b"QED\0"),
    ("parallels", 0, b"WithoutFreeSpace"),
    ("parallels", 0, b"WithouFreSpacExt"),
    ("bochs", 0, b"Bochs Virtual HD Image"),
    ("cloop", 0, b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop"),
    ("gzip", 0, b"\x1f\x8b\x08"),
    ("xz", 0, b"\xfd7zXZ\0"),
    ("zstd", 0, b"\x28\xb5\x2f\xfd"),
    ("bzip2", 0, b"BZh"),
    ("zip", 0, b"PK\x03\x04"),
    ("tar", 257, b"ustar"),
];

/// Bits of `incompatible_features` that do not change which files are read.
mod feature {
    /// Refcounts may be out of date, which does not matter to a reader.
    pub(super) const DIRTY: u64 = 1 << 0;
    pub(super) const CORRUPT: u64 = 1 << 1;
    pub(super) const DATA_FILE: u64 = 1 << 2;
    pub(super) const COMPRESSION_TYPE: u64 = 1 << 3;
    pub(super) const EXTENDED_L2: u64 = 1 << 4;
    pub(super) const SERVED: u64 = DIRTY | COMPRESSION_TYPE | EXTENDED_L2;
}

/// Largest L1 table QEMU reads, in entries (QCOW_MAX_L1_SIZE is 32 MiB).
const MOST_L1_ENTRIES: u64 = (32 << 20) / 8;

/// Largest refcount table QEMU reads, in bytes (QCOW_MAX_REFTABLE_SIZE is 8 MiB).
const LARGEST_REFCOUNT_TABLE: u64 = 8 << 20;

/// Most snapshots QEMU reads (QCOW_MAX_SNAPSHOTS).
const MOST_SNAPSHOTS: u64 = 65_536;

/// Longest backing file name that the format allows, in bytes.
const LONGEST_NAME: usize = 1023;

struct Header<'a>(&'a [u8]);

impl Header<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> Result<[u8; N], HeaderError> {
        self.0.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).ok_or(HeaderError::Short)
    }

    fn u32(&self, at: usize) -> Result<u32, HeaderError> {
        self.bytes(at).map(u32::from_be_bytes)
    }

    fn u64(&self, at: usize) -> Result<u64, HeaderError> {
        self.bytes(at).map(u64::from_be_bytes)
    }
}

fn inspect_qcow2(head: &[u8], length: u64) -> Result<Image, HeaderError> {
    let header = Header(head);
    let version = header.u32(4)?;
    if !matches!(version, 2 | 3) {
        return Err(HeaderError::Version(version));
    }
    // References to other files are checked first, so that their refusal is the one that is reported.
    let (name_offset, name_size) = (header.u64(8)?, header.u32(16)?);
    if name_offset != 0 || name_size != 0 {
        return Err(HeaderError::BackingFile(backing_name(head, name_offset, name_size)));
    }
    if version == 3 {
        check_version_3(&header)?;
    }
    if header.u32(32)? != 0 {
        return Err(HeaderError::Encrypted);
    }

    let field = |field, value| Err(HeaderError::Field { field, value });
    let cluster_bits = header.u32(20)?;
    if !(9..=21).contains(&cluster_bits) {
        return field("cluster_bits", cluster_bits.into());
    }
    let cluster = 1u64 << cluster_bits;
    let size = header.u64(24)?;
    if size == 0 {
        return field("size", size);
    }
    let virtual_size = disk_size(size)?;

    // The tables that QEMU reads at once must be in the file, within QEMU's own limits, and large enough for
    // the size.
    let l1_entries = u64::from(header.u32(36)?);
    let entry_size = if version == 3 && header.u64(72)? & feature::EXTENDED_L2 != 0 { 16 } else { 8 };
    let covered_by_l1_entry = cluster / entry_size * cluster;
    if l1_entries > MOST_L1_ENTRIES || l1_entries < size.div_ceil(covered_by_l1_entry) {
        return field("l1_size", l1_entries);
    }
    let within = |offset: u64, bytes: u64| {
        offset.is_multiple_of(cluster)
            && offset >= cluster
            && offset.checked_add(bytes).is_some_and(|end| end <= length)
    };
    let l1_offset = header.u64(40)?;
    if !within(l1_offset, l1_entries * 8) {
        return field("l1_table_offset", l1_offset);
    }
    let refcount_bytes = u64::from(header.u32(56)?) * cluster;
    if refcount_bytes == 0 || refcount_bytes > LARGEST_REFCOUNT_TABLE {
        return field("refcount_table_clusters", refcount_bytes / cluster);
    }
    let refcount_offset = header.u64(48)?;
    if !within(refcount_offset, refcount_bytes) {
        return field("refcount_table_offset", refcount_offset);
    }
    let snapshots = u64::from(header.u32(60)?);
    if snapshots > MOST_SNAPSHOTS {
        return field("nb_snapshots", snapshots);
    }
    let snapshots_offset = header.u64(64)?;
    if snapshots > 0 && !within(snapshots_offset, 0) {
        return field("snapshots_offset", snapshots_offset);
    }
    Ok(Image { format: Format::Qcow2, virtual_size })
}

fn check_version_3(header: &Header<'_>) -> Result<(), HeaderError> {
    let features = header.u64(72)?;
    if features & feature::DATA_FILE != 0 {
        return Err(HeaderError::DataFile);
    }
    if features & feature::CORRUPT != 0 {
        return Err(HeaderError::Corrupt);
    }
    if features & !feature::SERVED != 0 {
        return Err(HeaderError::Features(features & !feature::SERVED));
    }
    let refcount_order = header.u32(96)?;
    if refcount_order > 6 {
        return Err(HeaderError::Field { field: "refcount_order", value: refcount_order.into() });
    }
    let header_length = header.u32(100)?;
    if !(104..=INSPECTED as u64).contains(&header_length.into()) || header_length % 8 != 0 {
        return Err(HeaderError::Field { field: "header_length", value: header_length.into() });
    }
    if features & feature::COMPRESSION_TYPE != 0 {
        let [compression] = header.bytes(104)?;
        // 1 is zstd; 0, zlib, is written without the feature bit.
        if header_length < 112 || compression != 1 {
            return Err(HeaderError::Field { field: "compression_type", value: compression.into() });
        }
    }
    Ok(())
}

/// The backing file's name as far as it was read; only for the message.
fn backing_name(head: &[u8], offset: u64, size: u32) -> String {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let size = usize::try_from(size).unwrap_or(usize::MAX).min(LONGEST_NAME);
    let name = head.get(start..).map(|rest| &rest[..size.min(rest.len())]).unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn disk_size(bytes: u64) -> Result<u64, HeaderError> {
    if bytes > LARGEST {
        return Err(HeaderError::TooLarge(bytes));
    }
    Ok(bytes.next_multiple_of(SECTOR))
}

#[cfg(test)]
mod tests;
