//! Copies the only file in /disk out of layers, which are each read once.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, ensure};
use barevirt_layers::layer;
use barevirt_layers::listing::Listing;
use barevirt_layers::unpack::unpacked;

use super::super::progress::Progress;
use super::contents::Part;

/// How much is read at once, in bytes.
const PIECE: usize = 256 << 10;
/// Most entries of all layers.
const MOST_ENTRIES: u64 = 4 << 20;
/// Most bytes of all files in the layers: 64 TiB, as large as a disk can be.
const MOST_BYTES: u64 = 64 << 40;

/// The disk of an image.
pub(super) struct Disk {
    /// Its name in /disk.
    pub(super) name: String,
    /// A copy that has no name.
    pub(super) file: File,
}

/// What has been read of the layers.
struct Search<'a> {
    copies: &'a Path,
    listing: Listing,
    copy: Option<File>,
    entries: u64,
    bytes: u64,
}

/// Finds the disk in layers, the uppermost first, and copies it into a directory.
pub(super) fn find(layers: Vec<Part>, copies: &Path) -> anyhow::Result<Disk> {
    let mut search = Search { copies, listing: Listing::default(), copy: None, entries: 0, bytes: 0 };
    let count = layers.len();
    for (above, layer) in layers.into_iter().enumerate() {
        search.read(layer).with_context(|| format!("layer {} of {count}", count - above))?;
        if search.listing.is_complete() {
            break;
        }
    }
    let name = search.listing.only()?.to_owned();
    let file = search.copy.with_context(|| format!("/disk/{} was not read", name.escape_debug()))?;
    Ok(Disk { name, file })
}

impl Search<'_> {
    fn read(&mut self, part: Part) -> anyhow::Result<()> {
        let (mut archive, _) = unpacked(Box::new(BufReader::with_capacity(PIECE, part)), PIECE)?;
        while let Some(entry) = layer::next(&mut archive)? {
            self.entries += 1;
            self.bytes = self.bytes.saturating_add(entry.size);
            ensure!(self.entries <= MOST_ENTRIES, "there are more than {MOST_ENTRIES} files");
            ensure!(self.bytes <= MOST_BYTES, "there are more than {MOST_BYTES} bytes of files");
            let is_disk = self.listing.add(&entry)? && entry.is_file();
            // With a second one there is no disk, only an error that names both.
            let read = if is_disk && self.copy.is_none() {
                self.copy = Some(copied(&mut archive, entry.size, self.copies)?);
                entry.size
            } else {
                0
            };
            layer::skip_contents(&mut archive, entry.size, read)?;
        }
        // Padding; the checksum of a compressed stream comes after it.
        io::copy(&mut archive.take(MOST_BYTES), &mut io::sink())?;
        self.listing.end_of_layer();
        Ok(())
    }
}

/// A copy of the next bytes, in a file without a name.
fn copied(archive: &mut impl Read, size: u64, copies: &Path) -> anyhow::Result<File> {
    let write =
        || format!("copy the disk of {size} bytes into {}; TMPDIR names another folder", copies.display());
    let file = tempfile::tempfile_in(copies).with_context(write)?;
    let progress = Progress::of(0, size);
    let (mut piece, mut at) = (vec![0; PIECE], 0);
    while at < size {
        let most = usize::try_from(size - at).unwrap_or(usize::MAX).min(PIECE);
        let read = &mut piece[..most];
        archive.read_exact(read).context("read the disk")?;
        // Zeros need no space.
        if read.iter().any(|byte| *byte != 0) {
            file.write_all_at(read, at).with_context(write)?;
        }
        at += most as u64;
        progress.show(at);
    }
    file.set_len(size).with_context(write)?;
    Ok(file)
}
