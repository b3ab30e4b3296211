//! Formats, refusals, and the numbers of a header.

use container_disk::header::{HeaderError, LARGEST};
use std::fmt;

/// A format of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The guest's bytes, unchanged.
    Raw,
    /// QEMU's copy-on-write format.
    Qcow2,
    /// VMware's format.
    Vmdk,
    /// `VirtualBox`'s format.
    Vdi,
}

impl fmt::Display for Format {
    /// The name that qemu-img knows it by.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
            Format::Vmdk => "vmdk",
            Format::Vdi => "vdi",
        })
    }
}

/// Why an image is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Its format is not served.
    #[error("image is in {0} format: only raw, qcow2, vmdk and vdi are supported")]
    Format(&'static str),
    /// It is raw or qcow2, and refused as such.
    #[error(transparent)]
    Header(HeaderError),
    /// It is shorter than its header, or than its footer.
    #[error("{0} image ends within its header")]
    Short(Format),
    /// A part of its contents is in another image.
    #[error("{0} image names a parent, which is not allowed")]
    Parent(Format),
    /// Its contents are in several files.
    #[error("vmdk image is not one file: {0}")]
    Parts(&'static str),
    /// It is a kind of vmdk that is not served.
    #[error("vmdk image is of kind {0:?}: only monolithicSparse and streamOptimized are supported")]
    Kind(String),
    /// Its end contradicts its beginning.
    #[error("vmdk image has a footer that is not that of its header")]
    Footer,
    /// A value that no valid image has.
    #[error("{format} image has a bad header: {field} is {value}")]
    Field {
        /// The format.
        format: Format,
        /// The field, by its name in the specification.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl From<HeaderError> for FormatError {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::Format(name) => FormatError::Format(name),
            other => FormatError::Header(other),
        }
    }
}

/// Little-endian numbers of a header.
pub(super) struct Fields<'a> {
    pub(super) format: Format,
    pub(super) bytes: &'a [u8],
}

impl Fields<'_> {
    pub(super) fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], FormatError> {
        let bytes = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().ok_or(FormatError::Short(self.format))
    }

    pub(super) fn u16(&self, at: usize) -> Result<u16, FormatError> {
        self.array(at).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&self, at: usize) -> Result<u32, FormatError> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&self, at: usize) -> Result<u64, FormatError> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// Refuses a value, unless it is as it has to be.
    pub(super) fn need(&self, good: bool, field: &'static str, value: u64) -> Result<(), FormatError> {
        if good { Ok(()) } else { Err(FormatError::Field { format: self.format, field, value }) }
    }
}

/// Whether the disk of an image has a size that can be, in bytes.
pub(super) fn is_possible(size: u64) -> bool {
    (1..=LARGEST).contains(&size)
}
