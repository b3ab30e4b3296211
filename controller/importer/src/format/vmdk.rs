//! VMware's format, as one file: `monolithicSparse` and `streamOptimized`.
//!
//! ```text
//!   sector 0      header: capacity, size of grains, where the grain directory is
//!   sectors 1-20  descriptor, a text: kind, parent, extents (files with the contents)
//!   ...           grains and their tables
//!   last three    footer of a stream: the header again, which now knows where the directory is
//! ```
//!
//! What qemu-img (`block/vmdk.c`) makes of that decides what is checked:
//!
//! - It opens the extents that a descriptor names only if there is no header, or the capacity in it is zero. Both are refused.
//! - It takes the text after `parentFileNameHint` anywhere in sectors 1 to 20 for a backing file. So the word is refused there
//!   wherever it is.
//! - A footer replaces the header. So it has to say the same.

use super::fields::{Fields, Format, FormatError, is_possible};

const MAGIC: &[u8] = b"KDMV";
/// Beginnings of other files of the format, and what they are.
const OTHERS: [(&[u8], &str); 2] = [(b"COWD", "vmfsSparse"), (b"SE\x00\x00SPARSE", "seSparse")];
const DESCRIPTOR: &[u8] = b"# Disk DescriptorFile";
const KINDS: [&str; 2] = ["monolithicSparse", "streamOptimized"];
const HINT: &[u8] = b"parentFileNameHint";

const SECTOR: usize = 512;
/// Sectors of the descriptor, which follows the header.
const DESCRIPTOR_SECTORS: u64 = 20;
/// Header and descriptor.
pub(super) const INSPECTED: usize = 21 * SECTOR;
/// Marker, footer, and the marker of the end.
pub(super) const END: usize = 3 * SECTOR;
/// Place of the grain directory, where only the footer knows it.
const AT_END: u64 = u64::MAX;
/// Flag: there is a second grain directory.
const SECOND_DIRECTORY: u32 = 1 << 1;
/// Entries of a grain table: always as many.
const GRAINS: u32 = 512;
/// Smallest and largest grain that is served, in sectors: 4 KiB and 2 MiB. Programs write 64 KiB.
const GRAIN: std::ops::RangeInclusive<u64> = 8..=4096;
/// Longest value that a message repeats, in bytes.
const MOST_SHOWN: usize = 64;

/// Whether an image has this format, or is a part of one.
pub(super) fn is(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
        || head.starts_with(DESCRIPTOR)
        || OTHERS.iter().any(|(magic, _)| head.starts_with(magic))
}

/// The size of the disk, in bytes.
pub(super) fn inspect(head: &[u8], length: u64) -> Result<u64, FormatError> {
    if head.starts_with(DESCRIPTOR) {
        return Err(FormatError::Parts("it is a descriptor, which names the files with the contents"));
    }
    if let Some((_, kind)) = OTHERS.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(FormatError::Kind((*kind).to_owned()));
    }
    let header = Header::of(head);
    // References to other files are checked first, so that their refusal is the one that is reported.
    header.descriptor(head)?;
    let layout = header.layout()?;
    if layout.directory != AT_END {
        header.tables(&layout, length)?;
    }
    Ok(layout.capacity * SECTOR as u64)
}

/// Checks the footer of a stream.
pub(super) fn inspect_end(head: &[u8], end: &[u8], length: u64) -> Result<(), FormatError> {
    let layout = Header::of(head).layout()?;
    if layout.directory != AT_END {
        return Ok(());
    }
    // qemu-img counts from the end of the last sector.
    if end.len() != END || !length.is_multiple_of(SECTOR as u64) {
        return Err(FormatError::Short(Format::Vmdk));
    }
    let footer = &end[SECTOR..2 * SECTOR];
    if !footer.starts_with(MAGIC) {
        return Err(FormatError::Footer);
    }
    let footer = Header::of(footer);
    let said = footer.layout()?;
    if said.directory == AT_END || (Layout { directory: AT_END, ..said }) != layout {
        return Err(FormatError::Footer);
    }
    footer.tables(&said, length)
}

/// What decides where the contents are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Layout {
    /// Size of the disk, in sectors.
    capacity: u64,
    /// Size of a grain, in sectors.
    grain: u64,
    /// Whether grains are compressed.
    compression: u16,
    /// The sector of the grain directory.
    directory: u64,
}

struct Header<'a>(Fields<'a>);

impl<'a> Header<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Header(Fields { format: Format::Vmdk, bytes })
    }

    fn layout(&self) -> Result<Layout, FormatError> {
        let Header(fields) = self;
        let version = fields.u32(4)?;
        fields.need((1..=3).contains(&version), "version", version.into())?;
        let capacity = fields.u64(12)?;
        fields.need(capacity.checked_mul(SECTOR as u64).is_some_and(is_possible), "capacity", capacity)?;
        let grain = fields.u64(20)?;
        fields.need(grain.is_power_of_two() && GRAIN.contains(&grain), "grainSize", grain)?;
        let entries = fields.u32(44)?;
        fields.need(entries == GRAINS, "numGTEsPerGT", entries.into())?;
        let compression = fields.u16(77)?;
        fields.need(compression <= 1, "compressAlgorithm", compression.into())?;
        Ok(Layout { capacity, grain, compression, directory: fields.u64(56)? })
    }

    /// The directories that qemu-img reads at once have to be in the file.
    fn tables(&self, layout: &Layout, length: u64) -> Result<(), FormatError> {
        let Header(fields) = self;
        let entries = layout.capacity.div_ceil(u64::from(GRAINS) * layout.grain);
        let within = |sector: u64| {
            let end = sector.checked_mul(SECTOR as u64).and_then(|start| start.checked_add(entries * 4));
            sector > 0 && end.is_some_and(|end| end <= length)
        };
        fields.need(within(layout.directory), "gdOffset", layout.directory)?;
        if fields.u32(8)? & SECOND_DIRECTORY != 0 {
            let second = fields.u64(48)?;
            fields.need(within(second), "rgdOffset", second)?;
        }
        Ok(())
    }

    /// Checks that the descriptor refers to no other file. `head` is the beginning of the image.
    fn descriptor(&self, head: &[u8]) -> Result<(), FormatError> {
        let Header(fields) = self;
        let space = head.get(SECTOR..).unwrap_or_default();
        let space = &space[..space.len().min(INSPECTED - SECTOR)];
        if space.windows(HINT.len()).any(|word| word.eq_ignore_ascii_case(HINT)) {
            return Err(FormatError::Parent(Format::Vmdk));
        }
        let at = fields.u64(28)?;
        let text = space.split(|byte| *byte == 0).next().unwrap_or_default();
        if at == 0 || text.is_empty() {
            return Err(FormatError::Parts("it has no descriptor, so it is one of several parts"));
        }
        fields.need(at == 1, "descriptorOffset", at)?;
        let sectors = fields.u64(36)?;
        fields.need((1..=DESCRIPTOR_SECTORS).contains(&sectors), "descriptorSize", sectors)?;
        if !text.starts_with(DESCRIPTOR) {
            return Err(FormatError::Parts("its descriptor is not where it says"));
        }
        let lines = || text.split(|byte| matches!(byte, b'\n' | b'\r')).map(<[u8]>::trim_ascii);
        let values = |name: &str| {
            let name = name.to_owned();
            lines().filter_map(move |line| value(line, &name))
        };
        if values("parentCID").any(|parent| !parent.eq_ignore_ascii_case(b"ffffffff")) {
            return Err(FormatError::Parent(Format::Vmdk));
        }
        let kind = values("createType").next().unwrap_or_default();
        if !KINDS.iter().any(|known| known.as_bytes() == kind) {
            let shown = &kind[..kind.len().min(MOST_SHOWN)];
            return Err(FormatError::Kind(String::from_utf8_lossy(shown).into_owned()));
        }
        let mut extents = lines().filter(|line| is_extent(line));
        match (extents.next(), extents.next()) {
            (Some(one), None) if is_own(one) => Ok(()),
            (Some(_), None) => Err(FormatError::Parts("its descriptor names another file")),
            (None, _) => Err(FormatError::Parts("its descriptor names no extent")),
            (Some(_), Some(_)) => Err(FormatError::Parts("its descriptor names several extents")),
        }
    }
}

/// The value of `name=value` or `name="value"`.
fn value<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (found, value) = line.split_at_checked(name.len())?;
    let value = value.trim_ascii_start().strip_prefix(b"=").filter(|_| found == name.as_bytes())?;
    let value = value.trim_ascii();
    Some(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
}

/// Whether a line names a file with contents: `RW 2048 SPARSE "disk.vmdk"`.
fn is_extent(line: &[u8]) -> bool {
    let word = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    [&b"RW"[..], b"RDONLY", b"NOACCESS"].contains(&word)
}

/// Whether an extent can be the image itself. Its name is what the image was called once, which nothing reads.
fn is_own(line: &[u8]) -> bool {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).skip(2);
    words.next() == Some(&b"SPARSE"[..]) && !line.iter().any(|byte| matches!(byte, b'/' | b'\\'))
}
