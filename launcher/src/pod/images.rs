//! Files in users' images that are volumes of the pod.

use std::path::{Path, PathBuf};

use barevirt_api::firmware;
use barevirt_api::names::{image_volume, kernel_image_volume};
use barevirt_api::valid::ValidVmi;

use crate::disk::{ContainerDisk, ContainerDiskError, container};

/// A file of a user's image.
pub(super) struct InImage {
    /// Name of the volume, or the name of a file that is not a disk.
    pub(super) volume: String,
    /// Mount point of the image.
    root: String,
    /// Path of the file in the image; `None` for its only disk.
    path: Option<PathBuf>,
}

impl InImage {
    pub(super) fn open(&self) -> Result<ContainerDisk, ContainerDiskError> {
        container::open(&self.volume, Path::new(&self.root), self.path.as_deref())
    }
}

/// The files that the images of an instance must have.
pub(super) fn images(vmi: &ValidVmi) -> Vec<InImage> {
    let disks = vmi.boot_volumes().enumerate().filter_map(|(index, volume)| {
        let path = volume.container_disk.as_ref()?.path.as_deref().filter(|path| !path.is_empty());
        Some(InImage {
            volume: volume.name.clone(),
            root: image_volume(index),
            path: path.map(PathBuf::from),
        })
    });
    let kernel = firmware::kernel_boot(vmi.spec()).into_iter().flat_map(|(_, container)| {
        [(firmware::KERNEL_FILE, &container.kernel_path), (firmware::INITRD_FILE, &container.initrd_path)]
            .into_iter()
            .filter_map(|(name, path)| {
                let path = firmware::path(path.as_ref())?;
                Some(InImage {
                    volume: name.to_owned(),
                    root: kernel_image_volume(),
                    path: Some(PathBuf::from(path)),
                })
            })
    });
    disks.chain(kernel).collect()
}
