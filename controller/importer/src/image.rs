//! Writes an image, an untrusted stream, to the claim.
//!
//! ```text
//!   bytes --(gz, xz, zstd)--> first 10 KiB --raw--------------> blocks into the claim, zeros left out
//!                                          --qcow2, vmdk, vdi-> checked, staged, to be converted
//!                                          --other------------> refused by name
//! ```

use crate::failure::Failure;
use crate::feed::{Feed, FeedFailure};
use crate::format::{END, Format, INSPECTED, Image, inspect, inspect_whole};
use crate::progress::Progress;
use crate::target::Target;
use barevirt_import_job::longest_staged;
use barevirt_layers::unpack::{Peeked, unpacked};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Longest padding after an image in a stream, in bytes.
pub(crate) const MOST_AFTER: u64 = 1 << 20;
/// Share of the transfer in the progress, if a conversion follows, in per cent.
const TRANSFER: u64 = 80;

/// The result of reading a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Filled {
    /// The disk is written.
    Written,
    /// The image is at [`Target::staged`], to be converted.
    Staged(Image),
}

/// Reads an image into the claim. `what` is its name in messages; `length` is that of the stream, if it is known.
///
/// # Errors
/// The image is not served, does not fit, or cannot be read.
pub fn fill(
    stream: Box<dyn Read + Send>,
    (what, length): (&str, Option<u64>),
    trouble: &FeedFailure,
    target: &Target,
    progress: &Progress,
) -> Result<Filled, Failure> {
    let (mut stream, packed) = unpacked(stream, INSPECTED).map_err(|error| trouble.of(what, &error))?;
    let length = length.filter(|_| !packed);
    let refused = |error: &dyn std::fmt::Display| Failure::Final(format!("{what}: {error}"));
    let image = inspect(&stream.head, length).map_err(|error| refused(&error))?;
    match image.format {
        Format::Raw => {
            if let Some(length) = length {
                fits(what, length, target)?;
            }
            if looks_like_a_page(&stream.head) {
                return Err(refused(&"it is a web page, not an image"));
            }
            raw(&mut stream, what, trouble, target)?;
            Ok(Filled::Written)
        }
        Format::Qcow2 | Format::Vmdk | Format::Vdi => {
            fits(what, image.virtual_size, target)?;
            progress.transfer_is(TRANSFER);
            let (file, length) = stage(&mut stream, (what, length), image.virtual_size, trouble, target)?;
            let end = end_of(&file, length)
                .map_err(|error| Failure::io("read the image that is to be converted", &error))?;
            inspect_whole(&stream.head, &end, length).map_err(|error| refused(&error))?;
            Ok(Filled::Staged(image))
        }
    }
}

/// Copies a disk byte for byte, whatever a guest has written to it: its contents are not interpreted.
///
/// # Errors
/// It does not fit, or cannot be read.
pub fn copy(
    stream: Box<dyn Read + Send>,
    (what, length): (&str, u64),
    trouble: &FeedFailure,
    target: &Target,
) -> Result<(), Failure> {
    fits(what, length, target)?;
    let mut stream = Peeked::new(stream, 0).map_err(|error| trouble.of(what, &error))?;
    raw(&mut stream, what, trouble, target)
}

/// Reads the rest of a transfer, so that all of it is verified.
///
/// # Errors
/// The transfer fails, or is too long.
pub fn drain(feed: &mut Feed, most: u64, what: &str, trouble: &FeedFailure) -> Result<(), Failure> {
    let read = io::copy(&mut feed.take(most.saturating_add(1)), &mut io::sink());
    let read = read.map_err(|error| trouble.of(what, &error))?;
    if read > most {
        return Err(Failure::Final(format!("{what} goes on after its image")));
    }
    Ok(())
}

fn fits(what: &str, size: u64, target: &Target) -> Result<(), Failure> {
    if size <= target.size() {
        return Ok(());
    }
    Err(Failure::Final(format!(
        "{what} is a disk of {size} bytes, the claim has room for one of {}: ask for a larger claim",
        target.size()
    )))
}

pub(crate) fn looks_like_a_page(head: &[u8]) -> bool {
    let text = head.trim_ascii_start();
    [&b"<!doctype html"[..], b"<html"]
        .iter()
        .any(|start| text.get(..start.len()).is_some_and(|found| found.eq_ignore_ascii_case(start)))
}

fn raw(stream: &mut Peeked, what: &str, trouble: &FeedFailure, target: &Target) -> Result<(), Failure> {
    let mut piece = vec![0; PIECE];
    let mut offset = 0u64;
    loop {
        let count = read_full(stream, &mut piece).map_err(|error| trouble.of(what, &error))?;
        if count == 0 {
            break;
        }
        let end = offset + count as u64;
        if end > target.size() {
            return Err(Failure::Final(format!(
                "{what} is a disk of more than the {} bytes that the claim has room for: ask for a larger claim",
                target.size()
            )));
        }
        target.write(offset, &piece[..count])?;
        offset = end;
    }
    target.zero_from(offset)
}

fn stage(
    stream: &mut Peeked,
    (what, length): (&str, Option<u64>),
    virtual_size: u64,
    trouble: &FeedFailure,
    target: &Target,
) -> Result<(File, u64), Failure> {
    let most = longest_staged(virtual_size);
    let room = target.room()?;
    if let Some(length) = length
        && length > room
    {
        return Err(Failure::Final(format!(
            "{what} has {length} bytes, for which there is no room beside its disk ({room} bytes): ask for a larger claim"
        )));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = options.open(target.staged());
    let mut file = file.map_err(|error| Failure::io("keep the image until it is converted", &error))?;
    let mut piece = vec![0; PIECE];
    let mut written = 0u64;
    loop {
        let count = read_full(stream, &mut piece).map_err(|error| trouble.of(what, &error))?;
        if count == 0 {
            return Ok((file, written));
        }
        written += count as u64;
        if written > most {
            return Err(Failure::Final(format!(
                "{what} has more than {most} bytes for a disk of {virtual_size} bytes, and goes on"
            )));
        }
        file.write_all(&piece[..count])
            .map_err(|error| Failure::io("keep the image until it is converted", &error))?;
    }
}

/// The last bytes of a file of that length.
fn end_of(file: &File, length: u64) -> io::Result<Vec<u8>> {
    let count = usize::try_from(length).unwrap_or(usize::MAX).min(END);
    let mut end = vec![0; count];
    file.read_exact_at(&mut end, length - count as u64)?;
    Ok(end)
}

pub(crate) fn read_full(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
