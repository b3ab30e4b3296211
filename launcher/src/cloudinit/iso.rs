//! The content of the image with cloud-init data: the file names and the label that cloud-init looks for.

use barevirt_api::cloud_init::Layout;

use super::seed::Seed;
use crate::iso::{self, File, IsoError};

/// Label by which cloud-init finds its data.
#[must_use]
pub fn label(layout: Layout) -> &'static str {
    match layout {
        Layout::NoCloud => "cidata",
        Layout::ConfigDrive => "config-2",
    }
}

/// The image with the contents of a seed.
///
/// # Errors
/// If the contents are too large for the format.
pub fn image(seed: &Seed) -> Result<Vec<u8>, IsoError> {
    let Seed { layout, meta_data, user_data, network_data } = seed;
    let [meta, user, network] = match layout {
        Layout::NoCloud => ["meta-data", "user-data", "network-config"],
        Layout::ConfigDrive => [
            "openstack/latest/meta_data.json",
            "openstack/latest/user_data",
            "openstack/latest/network_data.json",
        ],
    };
    let mut files = vec![(meta, meta_data), (user, user_data)];
    files.extend(network_data.iter().map(|data| (network, data)));
    let file = |(path, contents): (&str, &Vec<u8>)| File {
        path: path.to_owned(),
        contents: contents.clone(),
        mode: 0o400,
    };
    iso::image(label(*layout), files.into_iter().map(file).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::iso::{ALIGNMENT, SECTOR, SMALLEST};

    fn seed(user_data: &[u8], network: Option<&[u8]>) -> Seed {
        Seed {
            layout: Layout::NoCloud,
            meta_data: b"instance-id: \"vm1.shop\"\nlocal-hostname: \"vm1\"\n".to_vec(),
            user_data: user_data.to_vec(),
            network_data: network.map(<[u8]>::to_vec),
        }
    }

    /// The volume's files and their contents.
    fn read_back(image: &[u8], names: &str, directory: &Path) -> Vec<(String, Vec<u8>)> {
        let files = crate::iso::tests::read_back(image, names, directory);
        files.into_iter().map(|file| (file.path, file.contents)).collect()
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

    /// Sectors of the parts of an image: the test notices a writer that moves or renames something. (The
    /// bytes themselves contain the time at which they were made.)
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
