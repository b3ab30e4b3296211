//! The disk with metrics in vhostmd's format: a header that says whether it may be read, followed by the XML.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Size of the disk.
const SIZE: u64 = 256 << 10;
/// Start of every such disk.
const SIGNATURE: &[u8; 4] = b"mvbd";
/// Length of the header, in bytes.
const HEADER: u64 = 16;
/// Longest XML; KubeVirt's limit.
const LIMIT: usize = (256 << 10) - 24;

/// Path of a volume's disk in the directory of the launcher's own files.
#[must_use]
pub fn path(directory: &Path, volume: &str) -> PathBuf {
    directory.join(format!("{volume}.vhostmd"))
}

/// Creates the disk with an empty report.
///
/// # Errors
/// If it cannot be created.
pub fn create(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.set_len(SIZE)?;
    write(&file, "<metrics></metrics>")
}

/// Opens the disk for updates.
///
/// # Errors
/// If it does not exist.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Replaces the report. A reader during the write finds the disk locked.
///
/// # Errors
/// If the report does not fit, or the file cannot be written.
pub fn write(file: &File, report: &str) -> io::Result<()> {
    let body = format!("{report}\n").into_bytes();
    let length = i32::try_from(body.len()).unwrap_or(i32::MAX);
    if body.len() > LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the metrics do not fit on their disk"));
    }
    let checksum = body.iter().fold(0_i32, |sum, byte| sum.wrapping_add(i32::from(*byte)));
    file.write_all_at(&header(1, checksum, length), 0)?;
    file.write_all_at(&body, HEADER)?;
    file.write_all_at(&header(0, checksum, length), 0)
}

fn header(locked: i32, checksum: i32, length: i32) -> Vec<u8> {
    let numbers = [locked, checksum, length].map(i32::to_be_bytes);
    [SIGNATURE.as_slice(), numbers.as_flattened()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_finds_signature_checksum_length_and_text() {
        let directory = tempfile::tempdir().unwrap();
        let path = path(directory.path(), "metrics");
        create(&path).unwrap();
        let empty = std::fs::read(&path).unwrap();
        assert_eq!(empty.len(), 256 << 10);
        assert!(empty[16..].starts_with(b"<metrics></metrics>\n\0"));

        write(&open(&path).unwrap(), "ab").unwrap();
        let disk = std::fs::read(&path).unwrap();
        let sum = u32::from(b'a') + u32::from(b'b') + u32::from(b'\n');
        assert_eq!(&disk[..4], b"mvbd");
        assert_eq!(disk[4..8], [0; 4], "not locked");
        assert_eq!(disk[8..12], sum.to_be_bytes());
        assert_eq!(disk[12..16], 3_u32.to_be_bytes());
        assert_eq!(&disk[16..19], b"ab\n");
    }

    #[test]
    fn metrics_above_the_limit_are_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = path(directory.path(), "metrics");
        create(&path).unwrap();
        let before = std::fs::read(&path).unwrap();
        write(&open(&path).unwrap(), &"x".repeat(LIMIT)).unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}
