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

mod fields;
mod vdi;
mod vmdk;

use container_disk::header::{self, LARGEST};
pub use fields::{Format, FormatError};

/// Bytes of the beginning of an image that are checked: all in which qemu-img looks for references to other files.
pub const INSPECTED: usize = vmdk::INSPECTED;
/// Bytes of the end of an image that are checked.
pub const END: usize = vmdk::END;

/// The properties of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Its format.
    pub format: Format,
    /// Size of the disk that a guest sees, in bytes; a multiple of 512.
    pub virtual_size: u64,
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

#[cfg(test)]
mod tests;
