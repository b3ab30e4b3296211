//! Disks that are made of the manifest and of the cluster's objects: cloud-init, config maps, secrets and the like.
//!
//! The objects may have changed since the guest started. So the disks of a guest that comes from another node are only made as
//! large as they are there, and the migration brings their contents. A source of an older version does not tell their sizes, and
//! sends only those that the guest may write to; the others are then made of the objects as they are now.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use barevirt_api::cloud_init::{self, CloudInit, Layout};
use barevirt_api::names::{CLUSTER_INSTANCETYPE_ANNOTATION, INSTANCETYPE_ANNOTATION};
use barevirt_api::object_volume;
use barevirt_api::valid::{ValidDisk, ValidVmi};
use barevirt_protocol::v1::MadeDisk;

use super::{Places, Prepared, VolumeError};
use crate::cloudinit::{self, CloudInitError, ConfigDrive, Identity, Seed};
use crate::{credentials, object_disk, reported};

/// A disk that was made here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Name of its volume.
    pub volume: String,
    /// Its file.
    pub path: PathBuf,
    /// Whether the guest only reads it.
    pub read_only: bool,
    /// Whether its file is empty, because its contents come with the guest.
    pub comes: bool,
}

impl Made {
    /// The disk as the launcher reports it. `None` if its file is gone.
    #[must_use]
    pub fn report(&self) -> Option<MadeDisk> {
        let bytes = std::fs::metadata(&self.path).ok()?.len();
        Some(MadeDisk { volume: self.volume.clone(), bytes, read_only: self.read_only })
    }
}

/// Prepares the disk if it is one of these, and returns the path of its file.
///
/// # Errors
/// Names the volume.
pub(super) fn prepare(
    vmi: &ValidVmi,
    disk: &ValidDisk,
    places: &Places,
    prepared: &mut Prepared,
) -> Result<Option<PathBuf>, VolumeError> {
    let volume = &disk.volume.name;
    let read_only = disk.disk.is_readonly();
    let comes = if read_only { places.images_come } else { places.comes };
    let comes = if comes { reported::made_size(vmi, volume) } else { None };
    let path = if let Some(given) = cloud_init::of(&disk.volume) {
        seed_disk(vmi, volume, &given, comes.is_some(), places, prepared)?
    } else if let Some(object) = object_volume::of(&disk.volume) {
        match comes {
            Some(_) => places.objects.join(object.disk()),
            None => object_disk::make(&object, &places.objects)
                .map_err(|source| VolumeError::Object { volume: volume.clone(), source })?,
        }
    } else {
        return Ok(None);
    };
    if let Some(size) = comes {
        blank(&path, size).map_err(|source| VolumeError::Blank { volume: volume.clone(), source })?;
    }
    let (volume, comes) = (volume.clone(), comes.is_some());
    prepared.made.push(Made { volume, path: path.clone(), read_only, comes });
    Ok(Some(path))
}

/// Makes a cloud-init disk, unless its contents come with the guest. A config drive with devices is made later. Returns its
/// path.
fn seed_disk(
    vmi: &ValidVmi,
    name: &str,
    given: &CloudInit<'_>,
    comes: bool,
    places: &Places,
    prepared: &mut Prepared,
) -> Result<PathBuf, VolumeError> {
    let mut alike = vmi.volumes().iter();
    let first = alike.find(|other| cloud_init::of(other).is_some_and(|other| other.layout == given.layout));
    let first = first.is_some_and(|first| first.name == name);
    let path_of =
        |identity: &Identity| cloudinit::image_path(&places.directory, identity, given.layout, name, first);
    if comes {
        return Ok(path_of(&identity(vmi, Vec::new())));
    }
    let seed = |source| CloudInitError::Seed { volume: name.to_owned(), source };
    let keys = credentials::cloud_init_keys(vmi.spec(), given.layout, &places.secrets);
    let identity = identity(vmi, keys.map_err(|source| seed(source.into()))?);
    let path = path_of(&identity);
    let seed = Seed::new(given, &identity, &places.secrets.join(name)).map_err(seed)?;
    if given.layout == Layout::ConfigDrive && has_tags(vmi) {
        let late = ConfigDrive { volume: name.to_owned(), path: path.clone(), identity, seed };
        prepared.config_drives.push(late);
    } else {
        cloudinit::write_image(name, &seed, &path)?;
    }
    Ok(path)
}

/// Whether any device has a tag.
fn has_tags(vmi: &ValidVmi) -> bool {
    let devices = &vmi.spec().domain.devices;
    let cards = vmi.interfaces().iter().map(|valid| valid.interface.tag.as_deref());
    let gpus = devices.gpus.iter().map(|gpu| gpu.tag.as_deref());
    let others = devices.host_devices.iter().map(|device| device.tag.as_deref());
    cards.chain(gpus).chain(others).flatten().any(|tag| !tag.is_empty())
}

/// The guest's identity for cloud-init.
fn identity(vmi: &ValidVmi, keys: Vec<String>) -> Identity {
    let annotations = vmi.vmi().metadata.annotations.as_ref();
    // As in KubeVirt, the cluster-wide one comes first.
    let instance_type = [CLUSTER_INSTANCETYPE_ANNOTATION, INSTANCETYPE_ANNOTATION]
        .into_iter()
        .find_map(|name| annotations?.get(name).filter(|name| !name.is_empty()));
    Identity {
        name: vmi.name().to_owned(),
        namespace: vmi.namespace().to_owned(),
        hostname: vmi.hostname(),
        uuid: vmi.named_uuid(),
        instance_type: instance_type.cloned(),
        keys,
    }
}

/// Makes a file of zeroes, and replaces an earlier one.
fn blank(path: &Path, size: u64) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.set_len(size)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use serde_json::{Value, json};

    use super::*;
    use crate::disk::claim;

    /// A machine with a config map in a CD drive and cloud-init on a disk, and the sizes that its status tells.
    fn vmi(sizes: &Value) -> ValidVmi {
        let told: Vec<Value> = sizes.as_object().unwrap().iter().map(entry).collect();
        let object = json!({
            "metadata": {"name": "a", "namespace": "b", "uid": "u"},
            "spec": {
                "domain": {"memory": {"guest": "128Mi"}, "devices": {"autoattachPodInterface": false, "disks": [
                    {"name": "settings", "cdrom": {"bus": "sata"}}, {"name": "seed", "disk": {"bus": "virtio"}},
                ]}},
                "volumes": [
                    {"name": "settings", "configMap": {"name": "c"}},
                    {"name": "seed", "cloudInitNoCloud": {"userData": "#!/bin/sh"}},
                ],
            },
            "status": {"volumeStatus": told},
        });
        ValidVmi::new(serde_json::from_value(object).unwrap()).unwrap()
    }

    fn entry((name, size): (&String, &Value)) -> Value {
        json!({"name": name, "target": "", "size": size})
    }

    /// What is made below the directory for a guest that starts here, or comes: each disk's bytes, and whether its contents come.
    fn made(directory: &Path, vmi: &ValidVmi, comes: bool) -> Vec<(Vec<u8>, bool)> {
        made_with(directory, vmi, comes, comes)
    }

    /// The same, where disks that the guest only reads come or do not.
    fn made_with(directory: &Path, vmi: &ValidVmi, comes: bool, images_come: bool) -> Vec<(Vec<u8>, bool)> {
        let files = directory.join("config-map/settings");
        if !files.exists() {
            std::fs::create_dir_all(files.join("..1")).unwrap();
            std::fs::write(files.join("..1/color"), "blue").unwrap();
            symlink("..1", files.join("..data")).unwrap();
        }
        let at = |name: &str| directory.join(name);
        let places = Places {
            directory: at("ephemeral"),
            secrets: at("secrets"),
            objects: directory.to_owned(),
            claims: claim::Places {
                directories: at("claims"),
                devices: at("devices"),
                room: claim::Room::default(),
            },
            comes,
            images_come,
            shares_kernel: false,
        };
        let mut prepared = Prepared::default();
        for disk in vmi.boot_disks() {
            prepare(vmi, disk, &places, &mut prepared).unwrap().unwrap();
        }
        let reports: Vec<MadeDisk> = prepared.made.iter().filter_map(Made::report).collect();
        assert_eq!(reports.iter().map(|disk| disk.read_only).collect::<Vec<_>>(), [true, false]);
        let bytes = |made: &Made| (std::fs::read(&made.path).unwrap(), made.comes);
        let found: Vec<_> = prepared.made.iter().map(bytes).collect();
        assert!(found.iter().zip(&reports).all(|((bytes, _), told)| bytes.len() as u64 == told.bytes));
        for made in &prepared.made {
            assert_eq!(std::fs::metadata(&made.path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        found
    }

    #[test]
    fn of_a_disk_whose_contents_come_only_the_size_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let sizes = vmi(&json!({"settings": 6144, "seed": 4096}));
        // The status of a guest that starts here is that of an earlier one.
        let started = made(directory.path(), &sizes, false);
        assert!(started.iter().all(|(bytes, comes)| bytes.iter().any(|byte| *byte != 0) && !comes));
        let blank = |size| (vec![0_u8; size], true);
        assert_eq!(made(directory.path(), &sizes, true), [blank(6144), blank(4096)]);
        // An object that changed so that no disk can be made of it does not matter.
        std::fs::remove_dir_all(directory.path().join("config-map/settings/..1")).unwrap();
        assert_eq!(made(directory.path(), &sizes, true), [blank(6144), blank(4096)]);
    }

    #[test]
    fn disks_that_no_handler_has_sent_are_made_of_their_objects() {
        let directory = tempfile::tempdir().unwrap();
        let sizes = vmi(&json!({"settings": 6144, "seed": 4096}));
        let disks = made_with(directory.path(), &sizes, true, false);
        let (image, written) = (&disks[0], &disks[1]);
        assert!(image.0.iter().any(|byte| *byte != 0) && !image.1, "the guest only reads it");
        assert_eq!(*written, (vec![0_u8; 4096], true));
    }

    #[test]
    fn a_disk_of_unknown_or_impossible_size_is_made_of_its_object() {
        let directory = tempfile::tempdir().unwrap();
        let lengths = |sizes: &Value, comes| {
            let disks = made(directory.path(), &vmi(sizes), comes);
            assert!(
                disks.iter().all(|(bytes, comes)| bytes.iter().any(|byte| *byte != 0) && !comes),
                "{sizes}"
            );
            disks.iter().map(|(bytes, _)| bytes.len()).collect::<Vec<_>>()
        };
        let started = lengths(&json!({}), false);
        for sizes in [json!({}), json!({"settings": 0, "seed": -1}), json!({"settings": 1_u64 << 40})] {
            assert_eq!(lengths(&sizes, true), started, "{sizes}");
        }
    }
}
