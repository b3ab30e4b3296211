//! Creates empty qcow2 files without another program: overlays of container disks, and `emptyDisk` volumes.
//!
//! The layout is planned as bytes and then written sparsely. Cluster 0 is the header, 1 the refcount table, 2
//! its only block, and from 3 the L1 table, all zeroes: every cluster of the disk is unallocated, which means
//! zeroes, or the base's contents if QEMU's command line has a base. The header names no backing file, so no
//! program can follow a path in it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::header::{LARGEST, SECTOR};

/// QEMU's own default.
const CLUSTER_BITS: u32 = 16;
const CLUSTER: u64 = 1 << CLUSTER_BITS;

/// Bytes that one entry of the L1 table covers: a cluster of 8-byte L2 entries.
const PER_L1_ENTRY: u64 = CLUSTER / 8 * CLUSTER;

const HEADER_LENGTH: u32 = 112;

/// Clusters before the L1 table.
const FIXED_CLUSTERS: u64 = 3;

/// Why a file was not created.
#[derive(Debug, thiserror::Error)]
pub enum Qcow2Error {
    /// The size is not valid for a disk.
    #[error("disk size of {0} bytes is not between 1 and {LARGEST}")]
    Size(u64),
    /// The system refused.
    #[error("create disk {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// The bytes of a file that are not zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Length of the file.
    pub length: u64,
    /// Offset and bytes of each part, in order.
    pub parts: Vec<(u64, Vec<u8>)>,
}

impl Layout {
    /// The whole file; for tests and small layouts.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.length).unwrap_or(0)];
        for (offset, part) in &self.parts {
            let start = usize::try_from(*offset).unwrap_or(usize::MAX);
            if let Some(place) = bytes.get_mut(start..start.saturating_add(part.len())) {
                place.copy_from_slice(part);
            }
        }
        bytes
    }
}

/// The layout of an empty disk of `virtual_size` bytes, rounded up to a whole sector.
///
/// # Errors
/// If the size is not valid for a disk.
pub fn empty(virtual_size: u64) -> Result<Layout, Qcow2Error> {
    if virtual_size == 0 || virtual_size > LARGEST {
        return Err(Qcow2Error::Size(virtual_size));
    }
    let size = virtual_size.next_multiple_of(SECTOR);
    let l1_entries = size.div_ceil(PER_L1_ENTRY);
    let l1_clusters = (l1_entries * 8).div_ceil(CLUSTER);
    let clusters = FIXED_CLUSTERS + l1_clusters;

    let mut header = Vec::with_capacity(HEADER_LENGTH as usize);
    header.extend(b"QFI\xfb");
    header.extend(3u32.to_be_bytes()); // version
    header.extend([0; 12]); // no backing file
    header.extend(CLUSTER_BITS.to_be_bytes());
    header.extend(size.to_be_bytes());
    header.extend([0; 4]); // not encrypted
    // LARGEST keeps this far below 2^32.
    header.extend(u32::try_from(l1_entries).map_err(|_| Qcow2Error::Size(virtual_size))?.to_be_bytes());
    header.extend((FIXED_CLUSTERS * CLUSTER).to_be_bytes()); // L1 table
    header.extend(CLUSTER.to_be_bytes()); // refcount table
    header.extend(1u32.to_be_bytes()); // of one cluster
    header.extend([0; 12]); // no snapshots
    header.extend([0; 24]); // no feature bits
    header.extend(4u32.to_be_bytes()); // refcounts of 16 bits
    header.extend(HEADER_LENGTH.to_be_bytes());
    header.extend([0; 8]); // zlib, padding

    let refcount_block = (2 * CLUSTER).to_be_bytes().to_vec();
    // One block counts 32768 clusters; LARGEST needs 19.
    let refcounts = (0..clusters).flat_map(|_| 1u16.to_be_bytes()).collect();
    Ok(Layout {
        length: clusters * CLUSTER,
        parts: vec![(0, header), (CLUSTER, refcount_block), (2 * CLUSTER, refcounts)],
    })
}

/// Creates the file of an empty disk at `path`, which must not exist yet, and returns it open for reading and
/// writing. The space is not reserved.
///
/// # Errors
/// If the size is not valid for a disk, the path exists, or the file cannot be written.
pub fn create(path: &Path, virtual_size: u64) -> Result<File, Qcow2Error> {
    let layout = empty(virtual_size)?;
    let write = || -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
            .open(path)?;
        file.set_len(layout.length)?;
        for (offset, part) in &layout.parts {
            file.write_all_at(part, *offset)?;
        }
        Ok(file)
    };
    write().map_err(|source| Qcow2Error::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::disk::header::{Format, INSPECTED, Image, inspect};

    fn qemu_img(arguments: &[&str], path: &Path) -> String {
        let output = Command::new("qemu-img")
            .args(arguments)
            .arg(path)
            .stdin(Stdio::null())
            .output()
            .expect("qemu-img is needed (Debian package qemu-utils)");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    #[test]
    fn qemu_img_finds_nothing_wrong_at_any_size() {
        let directory = tempfile::tempdir().unwrap();
        for (name, asked, size) in [
            ("one", 1, 512),
            ("odd", 10_485_761, 10_486_272),
            ("gib", 1 << 30, 1 << 30),
            ("l1-edge", PER_L1_ENTRY + 512, PER_L1_ENTRY + 512),
            ("two-l1-clusters", 5 << 40, 5 << 40),
            ("largest", LARGEST, LARGEST),
        ] {
            let path = directory.path().join(name);
            drop(create(&path, asked).unwrap());
            let checked = qemu_img(&["check", "-f", "qcow2"], &path);
            assert!(checked.contains("No errors were found"), "{name}: {checked}");
            let info: serde_json::Value =
                serde_json::from_str(&qemu_img(&["info", "--output=json", "-f", "qcow2"], &path)).unwrap();
            assert_eq!(info["virtual-size"], size, "{name}");
            assert!(info.get("backing-filename").is_none(), "{name}: {info}");
        }
    }

    #[test]
    fn the_header_is_accepted_by_our_own_parser() {
        for size in [512, 1 << 20, 3 << 40, LARGEST] {
            let layout = empty(size).unwrap();
            let head = &layout.bytes()[..INSPECTED];
            assert_eq!(inspect(head, layout.length), Ok(Image { format: Format::Qcow2, virtual_size: size }));
        }
    }

    #[test]
    fn written_blocks_are_read_back_by_qemu() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        drop(create(&path, 600 << 20).unwrap());
        let run = |command: &str| {
            let done = Command::new("qemu-io")
                .args(["-f", "qcow2", "-c", command])
                .arg(&path)
                .output()
                .expect("qemu-io is needed (Debian package qemu-utils)");
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            assert!(done.status.success() && !text.contains("failed"), "{command}: {text}");
        };
        run("write -P 0x5a 599M 64k");
        run("read -P 0x5a 599M 64k");
        run("read -P 0 0 64k");
        assert!(qemu_img(&["check", "-f", "qcow2"], &path).contains("No errors were found"));
    }

    #[test]
    fn an_existing_file_is_not_overwritten_and_sizes_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(create(&path, 512), Err(Qcow2Error::Io { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        for size in [0, LARGEST + 1, u64::MAX] {
            assert!(matches!(empty(size), Err(Qcow2Error::Size(_))));
        }
    }
}
