//! Copies from this node: another claim, or the disk of a container image.

use crate::failure::Failure;
use crate::feed::FeedFailure;
use crate::image::{Filled, copy, fill};
use crate::progress::Progress;
use crate::target::{Places, Target};
use barevirt_import_job::DISK;
use container_disk::disk::open_in;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::Arc;

/// The name of the source in messages.
pub(crate) const WHAT: &str = "the claim that is copied";

/// Opens the disk of the claim that is mounted as the source; returns its length in bytes, too.
///
/// # Errors
/// It has no disk.
pub fn open(places: &Places) -> Result<(File, u64), Failure> {
    let what = WHAT;
    let failed = |error: io::Error| Failure::Passing(format!("open {what}: {error}"));
    let is_device =
        std::fs::metadata(&places.source_device).is_ok_and(|found| found.file_type().is_block_device());
    let path = if is_device { places.source_device.clone() } else { places.source.join(DISK) };
    let mut options = OpenOptions::new();
    // A guest's disk is a regular file here; links are not followed.
    options.read(true).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK);
    let mut file = match options.open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Failure::Final(format!("{what} has no {DISK}: only disks are copied")));
        }
        opened => opened.map_err(failed)?,
    };
    if !is_device && !file.metadata().map_err(failed)?.is_file() {
        return Err(Failure::Final(format!("{DISK} of {what} is not a file")));
    }
    let length = file.seek(SeekFrom::End(0)).map_err(failed)?;
    file.rewind().map_err(failed)?;
    Ok((file, length))
}

/// Copies the claim that is mounted as the source.
///
/// # Errors
/// It has no disk, or the disk does not fit.
pub fn claim(places: &Places, target: &Target, progress: Arc<Progress>) -> Result<(), Failure> {
    let (file, length) = open(places)?;
    let trouble = FeedFailure::default();
    let stream = Local { file, read: 0, length, trouble: trouble.clone(), progress };
    copy(Box::new(stream), (WHAT, length), &trouble, target)
}

/// Reads the disk of the image that is mounted as the source.
///
/// # Errors
/// It has no disk, or the disk is not served.
pub fn image(places: &Places, target: &Target, progress: Arc<Progress>) -> Result<Filled, Failure> {
    let disk = open_in(&places.source, None).map_err(|error| Failure::Final(error.to_string()))?;
    let (what, trouble) = (format!("disk {} of the image", disk.path.display()), FeedFailure::default());
    let (file, length) = (disk.file, disk.size);
    let stream = Local { file, read: 0, length, trouble: trouble.clone(), progress: progress.clone() };
    fill(Box::new(stream), (&what, Some(length)), &trouble, target, &progress)
}

/// A file that reports how far it was read.
struct Local {
    file: File,
    read: u64,
    length: u64,
    trouble: FeedFailure,
    progress: Arc<Progress>,
}

impl Read for Local {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.trouble.note(Failure::Passing(format!("read the source: {error}")));
            }
        })?;
        self.read += count as u64;
        self.progress.transferred(self.read, self.length);
        Ok(count)
    }
}
