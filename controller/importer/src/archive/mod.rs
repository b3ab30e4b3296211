//! Unpacks an archive, an untrusted stream, into the root of a claim with a file system.
//!
//! ```text
//!   bytes --(gz, xz, zstd)--> meter --> tar: one entry after the other --> name --> tree
//!             bounded          bounded: bytes, names, entries, time         judged    made below the claim, through no link
//! ```
//!
//! Files, directories, symbolic links and hard links are made; their owner is the importer, their permissions are those of the
//! archive without setuid, setgid and sticky bit. An entry that could lead out of the claim, a device, a FIFO and a sparse
//! file end the import with the entry's name: a claim has all files of its archive, or none. The reader of a stream runs on a
//! thread that can open nothing but the claim ([`Tree`]).

mod meter;
mod name;
mod tree;

use crate::failure::Failure;
use crate::feed::FeedFailure;
use crate::image::{MOST_AFTER, looks_like_a_page, read_full};
use crate::reading::{Reading, rest};
use barevirt_layers::unpack::unpacked;
use meter::{Meter, Metered};
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tar::{Archive, Entry, EntryType};
use tracing::info;
use tree::{PlaceError, UNFINISHED};

pub use meter::Bounds;
pub use tree::Tree;

/// Most entries of an archive.
const MOST_ENTRIES: u64 = 1_000_000;
/// Longest time for an archive.
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// How much longer than its contents a compressed archive may be, in bytes.
const BESIDE: u64 = 1 << 20;
/// How much of a stream is looked at before it is read.
const LOOKED_AT: usize = 512;
/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// Reads a transfer that is an archive into the claim.
pub(crate) fn whole(mut reading: Reading<Tree>) -> Result<(), Failure> {
    let (stream, returned) = reading.take_reader();
    let Reading { trouble, what, target: tree, .. } = &reading;
    let bounds = Bounds { bytes: tree.bytes(), entries: MOST_ENTRIES, until: Instant::now() + LONGEST };
    tree.confined(|| unpack(stream, what, trouble, tree, bounds))?;
    // Only padding may follow.
    rest(&returned, MOST_AFTER, what, trouble)
}

/// Unpacks a stream within bounds. `what` is its name in messages.
///
/// # Errors
/// It is no archive, it is damaged or cut off, an entry of it is not served, or it does not fit.
pub fn unpack(
    stream: Box<dyn Read + Send>,
    what: &str,
    trouble: &FeedFailure,
    tree: &Tree,
    bounds: Bounds,
) -> Result<(), Failure> {
    // Compressed bytes are never many more than unpacked ones; without a bound, a stream could go on without contents.
    let stream = Box::new(stream.take(bounds.bytes.saturating_add(BESIDE)));
    let (stream, _) = unpacked(stream, LOOKED_AT).map_err(|error| trouble.of(what, &error))?;
    if looks_like_a_page(&stream.head) {
        return Err(Failure::Final(format!("{what}: it is a web page, not an archive")));
    }
    let meter = Meter::new(what, bounds, trouble);
    let metered = Metered { stream, meter: meter.clone() };
    let unpacking = Unpacking { what, trouble, tree, meter, piece: RefCell::new(vec![0; PIECE]) };
    let left = unpacking.entries(Archive::new(metered), bounds.entries)?;
    unpacking.after(left)
}

/// An archive that is being unpacked.
struct Unpacking<'a> {
    what: &'a str,
    trouble: &'a FeedFailure,
    tree: &'a Tree,
    meter: Rc<Meter>,
    piece: RefCell<Vec<u8>>,
}

impl Unpacking<'_> {
    fn refused(&self, why: impl std::fmt::Display) -> Failure {
        Failure::Final(format!("{} {why}", self.what))
    }

    fn damaged(&self, error: &io::Error) -> Failure {
        let is_short = self.meter.has_ended() || error.kind() == io::ErrorKind::UnexpectedEof;
        match self.trouble.failure() {
            None if is_short => self.refused("is cut off"),
            _ => self.trouble.of(self.what, error),
        }
    }

    /// Unpacks all entries; returns the reader after them.
    fn entries<R: Read>(&self, mut archive: Archive<Metered<R>>, most: u64) -> Result<Metered<R>, Failure> {
        let mut count = 0;
        let mut entries = archive.entries().map_err(|error| self.damaged(&error))?;
        loop {
            self.meter.reads_head();
            let Some(entry) = entries.next() else { break };
            self.meter.reads_contents();
            let mut entry = entry.map_err(|error| match self.trouble.failure() {
                // The error would quote bytes of whatever it is.
                None if count == 0 => {
                    self.refused("is not a tar archive, plain or packed by gzip, xz or zstd")
                }
                _ => self.damaged(&error),
            })?;
            if count == most {
                return Err(self.refused(format_args!("has more than {most} entries")));
            }
            count += 1;
            self.entry(&mut entry)?;
            // `tar` counts the rest of the contents among what precedes the next entry.
            self.copy(&mut entry, None)?;
        }
        if self.meter.has_ended() {
            return Err(self.refused(if count == 0 && self.meter.read() == 0 {
                "is empty"
            } else {
                "is cut off: the mark of an archive's end is missing"
            }));
        }
        info!(entries = count, bytes = self.meter.read(), "the archive is unpacked");
        Ok(archive.into_inner())
    }

    /// Reads what follows the mark of the end: zeros, as many as a block of a tape has.
    fn after<R: Read>(&self, mut left: Metered<R>) -> Result<(), Failure> {
        self.meter.reads_contents();
        let (mut piece, mut read) = (self.piece.borrow_mut(), 0);
        loop {
            let count = read_full(&mut left, &mut piece).map_err(|error| self.damaged(&error))?;
            read += count as u64;
            if read > MOST_AFTER || piece[..count].iter().any(|byte| *byte != 0) {
                return Err(self.refused("goes on after the end of its archive"));
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// Makes one entry.
    fn entry<R: Read>(&self, entry: &mut Entry<'_, R>) -> Result<(), Failure> {
        let name = entry.path_bytes().into_owned();
        let of = |why: &dyn std::fmt::Display| {
            Failure::Final(format!("{}: entry {} {why}", self.what, shown(&name)))
        };
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() {
            return Ok(());
        }
        if kind.is_gnu_sparse() || self.has_holes(entry)? {
            return Err(of(&"is a sparse file: pack it without its holes (tar without --sparse)"));
        }
        let parts = name::parts(&name, UNFINISHED).map_err(|why| of(&why))?;
        if name::is_of_file_system(&parts) {
            return Ok(());
        }
        let mode = entry.header().mode().map_err(|error| self.damaged(&error))?;
        let placed = |made: Result<(), PlaceError>| {
            made.map_err(|why| match why {
                PlaceError::Io(failure) => failure,
                why => of(&why),
            })
        };
        match kind {
            EntryType::Directory => placed(self.tree.make_directory(&parts, mode)),
            // Before there was a type for directories, a name said it.
            EntryType::Regular | EntryType::Continuous if name.ends_with(b"/") => {
                placed(self.tree.make_directory(&parts, mode))
            }
            EntryType::Regular | EntryType::Continuous => {
                let time = entry.header().mtime().map_err(|error| self.damaged(&error))?;
                let file = match self.tree.make_file(&parts) {
                    Ok(file) => file,
                    Err(why) => return placed(Err(why)),
                };
                let size = entry.size();
                let written = self.copy(entry, Some(&file))?;
                if written < size {
                    return Err(of(&format_args!("is cut off after {written} of {size} bytes")));
                }
                placed(tree::complete(&file, mode, time))
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                name::target(&target, parts.len().saturating_sub(1)).map_err(|why| of(&why))?;
                placed(self.tree.make_link(&parts, &target))
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                let to = name::parts(&target, UNFINISHED);
                let to = to.map_err(|why| of(&format_args!("is a hard link whose target {why}")))?;
                placed(self.tree.make_hard_link(&parts, &to))
            }
            EntryType::Char | EntryType::Block => Err(of(&"is a device, which a claim does not take")),
            EntryType::Fifo => Err(of(&"is a FIFO, which a claim does not take")),
            other => Err(of(&format_args!(
                "is of type {:?}: only files, directories and links are unpacked",
                char::from(other.as_byte())
            ))),
        }
    }

    /// Whether its attributes say that it is a sparse file, whose contents begin with a map.
    fn has_holes<R: Read>(&self, entry: &mut Entry<'_, R>) -> Result<bool, Failure> {
        let Some(attributes) = entry.pax_extensions().map_err(|error| self.damaged(&error))? else {
            return Ok(false);
        };
        for attribute in attributes {
            let attribute = attribute.map_err(|error| self.damaged(&error))?;
            if attribute.key_bytes().starts_with(b"GNU.sparse.") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Copies the contents of an entry, or reads them only; returns their length.
    fn copy(&self, contents: &mut impl Read, mut file: Option<&std::fs::File>) -> Result<u64, Failure> {
        let (mut piece, mut written) = (self.piece.borrow_mut(), 0);
        loop {
            let count = read_full(contents, &mut piece).map_err(|error| self.damaged(&error))?;
            if count == 0 {
                return Ok(written);
            }
            if let Some(file) = &mut file {
                let wrote = file.write_all(&piece[..count]);
                wrote.map_err(|error| Failure::io("write to the claim", &error))?;
            }
            written += count as u64;
        }
    }
}

/// A name for messages.
fn shown(name: &[u8]) -> String {
    const MOST: usize = 200;
    let text = String::from_utf8_lossy(&name[..name.len().min(MOST)]);
    let end = if name.len() > MOST { "..." } else { "" };
    format!("{text:?}{end}")
}

#[cfg(test)]
mod tests;
