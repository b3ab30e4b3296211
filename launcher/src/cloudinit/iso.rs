//! The image: ISO 9660 with Joliet and Rock Ridge names, made in memory.

use std::io::Cursor;

use hadris_iso::joliet::JolietLevel;
use hadris_iso::read::PathSeparator;
use hadris_iso::write::options::{BaseIsoLevel, CreationFeatures, IsoFormatOptions};
use hadris_iso::write::{InputEntry, InputEntryKind, InputMetadata, InputTree, IsoImageWriter};

use barevirt_api::cloud_init::Layout;

use super::seed::Seed;

/// Label by which cloud-init finds its data.
#[must_use]
pub fn label(layout: Layout) -> &'static str {
    match layout {
        Layout::NoCloud => "cidata",
        Layout::ConfigDrive => "config-2",
    }
}

/// The image's size is a multiple of this, in bytes: drives with sectors of 4 KiB take it, as KubeVirt's images.
pub const ALIGNMENT: usize = 4096;

/// Least size of an image, in bytes. busybox reads the first 68 KiB of a disk at once when it looks for a label, and takes
/// a shorter disk for a broken one.
pub const SMALLEST: usize = 128 * 1024;

const SECTOR: usize = 2048;

/// Room for descriptors, path tables, directories and padding beside the files; the image is cut to what was used.
const OVERHEAD: usize = 256 * 1024;

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum IsoError {
    /// The writer failed.
    #[error("make cloud-init image: {0}")]
    Write(String),
    /// The writer made something whose size it does not say.
    #[error("cloud-init image has no volume descriptor")]
    Unsound,
}

/// The image with the contents of a seed.
///
/// # Errors
/// When the contents are too large for the format.
pub fn image(seed: &Seed) -> Result<Vec<u8>, IsoError> {
    let Seed { layout, meta_data, user_data, network_data } = seed;
    let [meta, user, network] = match layout {
        Layout::NoCloud => ["meta-data", "user-data", "network-config"],
        Layout::ConfigDrive => ["meta_data.json", "user_data", "network_data.json"],
    };
    let mut files = vec![(meta, meta_data), (user, user_data)];
    files.extend(network_data.iter().map(|data| (network, data)));
    let room = OVERHEAD + files.iter().map(|(_, bytes)| bytes.len().next_multiple_of(SECTOR)).sum::<usize>();
    let files: Vec<InputEntry> = files.into_iter().map(|(name, bytes)| file(name, bytes)).collect();
    let entries = match layout {
        Layout::NoCloud => files,
        Layout::ConfigDrive => vec![directory("openstack", vec![directory("latest", files)])],
    };
    let tree = InputTree { path_separator: PathSeparator::ForwardSlash, entries };
    let features = CreationFeatures {
        filenames: BaseIsoLevel::Level1 { supports_lowercase: false, supports_rrip: true },
        joliet: Some(JolietLevel::Level3),
        rock_ridge: Some(hadris_iso::rrip::RripOptions::default()),
        ..CreationFeatures::default()
    };
    let options = IsoFormatOptions {
        volume_name: label(*layout).to_owned(),
        system_id: None,
        volume_set_id: None,
        publisher_id: None,
        preparer_id: None,
        application_id: None,
        sector_size: SECTOR,
        path_separator: PathSeparator::ForwardSlash,
        features,
        strict_charset: false,
    };
    let buffer = Cursor::new(vec![0; room]);
    let written =
        IsoImageWriter::create(buffer, tree, options).map_err(|error| IsoError::Write(error.to_string()))?;
    let mut image = written.into_inner();
    let used = volume_bytes(&image).filter(|used| *used <= image.len()).ok_or(IsoError::Unsound)?;
    image.resize(used.next_multiple_of(ALIGNMENT).max(SMALLEST), 0);
    Ok(image)
}

fn file(name: &str, bytes: &[u8]) -> InputEntry {
    entry(name, InputEntryKind::File(bytes.to_vec()), 0o400)
}

fn directory(name: &str, entries: Vec<InputEntry>) -> InputEntry {
    entry(name, InputEntryKind::Directory(entries), 0o500)
}

fn entry(name: &str, kind: InputEntryKind, mode: u32) -> InputEntry {
    InputEntry {
        name: std::sync::Arc::new(name.to_owned()),
        kind,
        metadata: InputMetadata { mode: Some(mode), uid: Some(0), gid: Some(0), ..InputMetadata::default() },
    }
}

/// Size of the volume in bytes, as its primary descriptor (sector 16) says: the number of sectors is at offset 80.
fn volume_bytes(image: &[u8]) -> Option<usize> {
    let descriptor = image.get(16 * SECTOR..17 * SECTOR)?;
    if !descriptor.starts_with(b"\x01CD001") {
        return None;
    }
    let sectors = u32::from_le_bytes(descriptor.get(80..84)?.try_into().ok()?);
    usize::try_from(sectors).ok()?.checked_mul(SECTOR)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn seed(user_data: &[u8], network: Option<&[u8]>) -> Seed {
        Seed {
            layout: Layout::NoCloud,
            meta_data: b"instance-id: \"vm1.shop\"\nlocal-hostname: \"vm1\"\n".to_vec(),
            user_data: user_data.to_vec(),
            network_data: network.map(<[u8]>::to_vec),
        }
    }

    /// The volume's files and their contents, read by a program of another origin.
    fn read_back(image: &[u8], joliet: &str, directory: &Path) -> Vec<(String, Vec<u8>)> {
        let path = directory.join(format!("seed-{joliet}.iso"));
        std::fs::write(&path, image).unwrap();
        let target = directory.join(format!("out-{joliet}"));
        let done = Command::new("xorriso")
            .args(["-report_about", "WARNING", "-read_fs", joliet, "-osirrox", "on", "-indev"])
            .arg(&path)
            .args(["-extract", "/"])
            .arg(&target)
            .output()
            .expect("xorriso is needed (Debian package xorriso)");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let mut files = Vec::new();
        collect(&target, &target, &mut files);
        files.sort();
        files
    }

    fn collect(root: &Path, directory: &Path, files: &mut Vec<(String, Vec<u8>)>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(root, &path, files);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.push((name, std::fs::read(&path).unwrap()));
            }
        }
    }

    #[test]
    fn a_config_drive_is_laid_out_as_openstack_does() {
        let directory = tempfile::tempdir().unwrap();
        let seed = Seed { layout: Layout::ConfigDrive, ..seed(b"#cloud-config\n", Some(b"{}")) };
        let image = image(&seed).unwrap();
        let expected = vec![
            ("openstack/latest/meta_data.json".to_owned(), seed.meta_data.clone()),
            ("openstack/latest/network_data.json".to_owned(), b"{}".to_vec()),
            ("openstack/latest/user_data".to_owned(), b"#cloud-config\n".to_vec()),
        ];
        for names in ["norock", "any"] {
            assert_eq!(read_back(&image, names, directory.path()), expected, "{names}");
        }
        assert_eq!(&image[16 * SECTOR + 40..][..32], format!("{:32}", "config-2").as_bytes());
        assert_eq!(image.len() % ALIGNMENT, 0);
    }

    #[test]
    fn another_program_reads_the_files_back_under_both_kinds_of_names() {
        let directory = tempfile::tempdir().unwrap();
        let large = vec![b'#'; 1_000_000];
        let seed = seed(&large, Some(b"version: 2\n"));
        let image = image(&seed).unwrap();
        let expected = vec![
            ("meta-data".to_owned(), seed.meta_data.clone()),
            ("network-config".to_owned(), b"version: 2\n".to_vec()),
            ("user-data".to_owned(), large.clone()),
        ];
        for names in ["norock", "any"] {
            let found = read_back(&image, names, directory.path());
            assert!(
                found == expected,
                "{names}: {:?}",
                found.iter().map(|(n, b)| (n, b.len())).collect::<Vec<_>>()
            );
        }
    }

    const LABEL: &str = "cidata";

    #[test]
    fn the_label_is_in_both_descriptors_and_the_size_is_aligned() {
        for (user_data, network) in [(&b"#cloud-config\n"[..], None), (b"", Some(&b"version: 2\n"[..]))] {
            let image = image(&seed(user_data, network)).unwrap();
            assert_eq!(image.len() % ALIGNMENT, 0);
            assert_eq!(image.len(), SMALLEST);
            assert_eq!(&image[16 * SECTOR + 40..][..32], format!("{LABEL:32}").as_bytes());
            // The supplementary descriptor: type 2, UCS-2 level 3, the label in big-endian UCS-2.
            let joliet = &image[17 * SECTOR..18 * SECTOR];
            assert_eq!((&joliet[..6], &joliet[88..91]), (&b"\x02CD001"[..], &b"%/E"[..]));
            let label: Vec<u8> = LABEL.encode_utf16().flat_map(u16::to_be_bytes).collect();
            assert_eq!(&joliet[40..40 + label.len()], label);
        }
    }

    /// Sectors at which the parts of an image are: a writer that moves or renames something shows here. (The bytes
    /// themselves hold the time of their making.)
    #[test]
    fn golden_layout() {
        let image = image(&seed(b"#cloud-config\n", None)).unwrap();
        let sector_of = |text: &str| {
            image.windows(text.len()).position(|window| window == text.as_bytes()).map(|at| at / SECTOR)
        };
        let sectors = ["META_DAT", "meta-data", "instance-id", "#cloud-config"].map(sector_of);
        assert_eq!((image.len(), sectors), (SMALLEST, [Some(19), Some(19), Some(22), Some(23)]));
    }
}
