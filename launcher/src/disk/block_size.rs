//! The block sizes of volumes, for disks that are to have them (`blockSize.matchVolume`).
//!
//! The kernel tells those of a device below /sys/dev/block: the same figures that the requests BLKSSZGET and BLKPBSZGET
//! return. A file has the block size of its file system.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use barevirt_api::v1::Disk;
use barevirt_machine::Blocks;
use nix::sys::stat::{major, minor};
use nix::sys::statvfs::fstatvfs;

/// Where the kernel describes devices.
const DEVICES: &str = "/sys/dev/block";

/// The block sizes of the volume that is open here, if its disk is to have them.
///
/// # Errors
/// If the kernel does not tell them.
pub fn wanted(disk: &Disk, volume: &impl AsFd) -> io::Result<Option<Blocks>> {
    if !disk.matches_volume() {
        return Ok(None);
    }
    find(volume, Path::new(DEVICES)).map(Some)
}

fn find(volume: &impl AsFd, devices: &Path) -> io::Result<Blocks> {
    let file = File::from(volume.as_fd().try_clone_to_owned()?);
    let found = file.metadata()?;
    if !found.file_type().is_block_device() {
        return Ok(Blocks::of_file(fstatvfs(&file)?.block_size()));
    }
    let number = found.rdev();
    of_device(&devices.join(format!("{}:{}", major(number), minor(number))))
}

fn of_device(device: &Path) -> io::Result<Blocks> {
    let queue = queue(device);
    let (logical, physical) = (figure(&queue, "logical_block_size")?, figure(&queue, "physical_block_size")?);
    let discard = match figure(&queue, "discard_granularity") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        discard => discard?,
    };
    let impossible = || {
        let what = format!("{} tells blocks of {logical} and {physical} bytes", queue.display());
        io::Error::new(io::ErrorKind::InvalidData, what)
    };
    Blocks::of_device(logical, physical, discard).ok_or_else(impossible)
}

/// The queue of a device; a partition has that of its disk.
fn queue(device: &Path) -> PathBuf {
    let own = device.join("queue");
    if own.exists() { own } else { device.join("../queue") }
}

fn figure(queue: &Path, name: &str) -> io::Result<u64> {
    let path = queue.join(name);
    let told = |error: io::Error| io::Error::new(error.kind(), format!("read {}: {error}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(told)?;
    text.trim().parse::<u64>().map_err(|error| told(io::Error::new(io::ErrorKind::InvalidData, error)))
}

#[cfg(test)]
mod tests {
    use super::super::loop_device::Loop;
    use super::*;
    use serde_json::json;

    fn disk(block_size: serde_json::Value) -> Disk {
        serde_json::from_value(json!({"name": "a", "disk": {"bus": "virtio"}, "blockSize": block_size}))
            .unwrap()
    }

    fn describe(queue: &Path, figures: &[(&str, &str)]) {
        std::fs::create_dir_all(queue).unwrap();
        for (name, figure) in figures {
            std::fs::write(queue.join(name), format!("{figure}\n")).unwrap();
        }
    }

    const FOUR: [(&str, &str); 3] =
        [("logical_block_size", "4096"), ("physical_block_size", "8192"), ("discard_granularity", "65536")];

    #[test]
    fn a_disk_of_the_node_and_its_partitions_have_the_sizes_of_its_queue() {
        let root = tempfile::tempdir().unwrap();
        let whole = root.path().join("sda");
        describe(&whole.join("queue"), &FOUR);
        std::fs::create_dir(whole.join("sda1")).unwrap();
        let expected = Blocks { logical: 4096, physical: 8192, discard: Some(65536) };
        for (link, device) in [("8:0", "sda"), ("8:1", "sda/sda1")] {
            let link = root.path().join(link);
            std::os::unix::fs::symlink(root.path().join(device), &link).unwrap();
            assert_eq!(of_device(&link).unwrap(), expected, "{device}");
        }
        std::fs::remove_file(whole.join("queue/discard_granularity")).unwrap();
        assert_eq!(of_device(&whole).unwrap().discard, Some(0));
    }

    #[test]
    fn a_device_of_unknown_sizes_is_an_error_that_names_its_file() {
        let root = tempfile::tempdir().unwrap();
        let text = |device: &Path| of_device(device).unwrap_err().to_string();
        let lost = text(&root.path().join("8:9"));
        assert!(lost.starts_with("read ") && lost.contains("logical_block_size"), "{lost}");
        let odd = root.path().join("8:0");
        describe(&odd.join("queue"), &[("logical_block_size", "many"), ("physical_block_size", "512")]);
        assert!(text(&odd).contains("logical_block_size: invalid digit"), "{}", text(&odd));
        describe(&odd.join("queue"), &[("logical_block_size", "0"), ("physical_block_size", "0")]);
        assert!(text(&odd).ends_with("tells blocks of 0 and 0 bytes"), "{}", text(&odd));
    }

    #[test]
    fn a_file_has_the_sizes_of_its_file_system_if_its_disk_wants_them() {
        let file = tempfile::tempfile().unwrap();
        let told = fstatvfs(&file).unwrap().block_size();
        let wants = |block_size| wanted(&disk(block_size), &file).unwrap();
        assert_eq!(wants(json!({"matchVolume": {}})), Some(Blocks::of_file(told)));
        assert_eq!(wants(json!({"matchVolume": {"enabled": false}})), None);
        assert_eq!(wants(json!(null)), None);
    }

    #[test]
    fn a_device_has_the_sizes_that_its_kernel_reports() {
        let root = tempfile::tempdir().unwrap();
        let Some(_device) = Loop::new(&root.path().join("dev"), 1 << 20, &["data"]) else { return };
        let device = File::open(root.path().join("dev/data")).unwrap();
        let Blocks { logical, physical, discard } = find(&device, Path::new(DEVICES)).unwrap();
        assert!(
            logical == 512 && physical >= logical && discard.is_some(),
            "{logical} {physical} {discard:?}"
        );
    }
}
