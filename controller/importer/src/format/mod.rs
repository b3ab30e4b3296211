//! The format of an untrusted image, from its first and its last bytes. Pure and bounded.
//!
//! ```text
//!   QFI\xfb --> qcow2  (container_disk::header)
//!   KDMV    --> vmdk   one file that refers to no other
//!   vdi     --> vdi    one file that refers to no other
//!   known, but not these --> refused by name
//!   else    --> raw
//! ```
//!
//! qemu-img opens the files that an image refers to. So an image that refers to any is refused here, before qemu-img sees it.

mod vdi;
mod vmdk;

use container_disk::header::{self, HeaderError, LARGEST};
use std::fmt;

/// Bytes of the beginning of an image that are checked: all in which qemu-img looks for references to other files.
pub const INSPECTED: usize = vmdk::INSPECTED;
/// Bytes of the end of an image that are checked.
pub const END: usize = vmdk::END;

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

/// The properties of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Its format.
    pub format: Format,
    /// Size of the disk that a guest sees, in bytes; a multiple of 512.
    pub virtual_size: u64,
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

/// The properties of the image with these first bytes: [`INSPECTED`], or all of a shorter image. `length` is the length of the
/// image in bytes. Where that is not known, it is no reason to refuse one.
///
/// # Errors
/// The image must not be used.
pub fn inspect(head: &[u8], length: Option<u64>) -> Result<Image, FormatError> {
    let whole = length.unwrap_or(u64::MAX);
    let (format, virtual_size) = if vmdk::is(head) {
        (Format::Vmdk, vmdk::inspect(head, whole)?)
    } else if vdi::is(head) {
        (Format::Vdi, vdi::inspect(head, whole)?)
    } else {
        let guess = if head.starts_with(b"QFI\xfb") { u64::MAX } else { LARGEST };
        let found = header::inspect(head, length.unwrap_or(guess))?;
        let format = match found.format {
            header::Format::Raw => Format::Raw,
            header::Format::Qcow2 => Format::Qcow2,
        };
        (format, found.virtual_size)
    };
    Ok(Image { format, virtual_size })
}

/// Checks a complete image. `end` holds its last [`END`] bytes, or all bytes of a shorter image.
///
/// # Errors
/// The image must not be used.
pub fn inspect_whole(head: &[u8], end: &[u8], length: u64) -> Result<Image, FormatError> {
    let image = inspect(head, Some(length))?;
    if image.format == Format::Vmdk {
        vmdk::inspect_end(head, end, length)?;
    }
    Ok(image)
}

/// Little-endian numbers of a header.
struct Fields<'a> {
    format: Format,
    bytes: &'a [u8],
}

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], FormatError> {
        let bytes = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().ok_or(FormatError::Short(self.format))
    }

    fn u16(&self, at: usize) -> Result<u16, FormatError> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Result<u32, FormatError> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Result<u64, FormatError> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// Refuses a value, unless it is as it has to be.
    fn need(&self, good: bool, field: &'static str, value: u64) -> Result<(), FormatError> {
        if good { Ok(()) } else { Err(FormatError::Field { format: self.format, field, value }) }
    }
}

/// Whether the disk of an image has a size that can be, in bytes.
fn is_possible(size: u64) -> bool {
    (1..=LARGEST).contains(&size)
}

#[cfg(test)]
mod tests;
