//! First-boot configuration: a `cloudInitNoCloud` or `cloudInitConfigDrive` volume becomes the ISO image that cloud-init
//! looks for.
//!
//! ```text
//!  manifest, secrets mounted by the kubelet ─► seed::Seed ─► iso::image ─► file
//! ```
//!
//! | | NoCloud | ConfigDrive |
//! |---|---|---|
//! | label | `cidata` | `config-2` |
//! | meta data | `meta-data` | `openstack/latest/meta_data.json` |
//! | user data | `user-data` | `openstack/latest/user_data` |
//! | network data, if there are any | `network-config` | `openstack/latest/network_data.json` |
//!
//! User data is not interpreted.

pub mod iso;
pub mod seed;

use std::io;
use std::path::{Path, PathBuf};

use barevirt_api::cloud_init::Layout;

use crate::iso::IsoError;

pub use seed::{Device, Identity, Seed, SeedError};

/// Directory below which the kubelet mounts the secrets of a volume, by the volume's name.
pub const SECRETS: &str = "/var/run/kubevirt-private/secret";

/// Why there is no image for a volume.
#[derive(Debug, thiserror::Error)]
pub enum CloudInitError {
    /// Its data cannot be read.
    #[error("volume {volume}: {source}")]
    Seed {
        /// The volume.
        volume: String,
        /// Why.
        source: SeedError,
    },
    /// The image cannot be made.
    #[error("volume {volume}: {source}")]
    Iso {
        /// The volume.
        volume: String,
        /// Why.
        source: IsoError,
    },
    /// The image cannot be written.
    #[error("volume {volume}: write cloud-init image {path}: {source}")]
    Write {
        /// The volume.
        volume: String,
        /// The image.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A config drive that lists devices, as long as their places in the machine are not known.
#[derive(Debug)]
pub struct ConfigDrive {
    /// The volume.
    pub volume: String,
    /// Path of its image.
    pub path: PathBuf,
    /// The guest's identity.
    pub identity: Identity,
    /// The contents without the devices.
    pub seed: Seed,
}

impl ConfigDrive {
    /// Makes its image.
    ///
    /// # Errors
    /// Names the volume.
    pub fn make(self, devices: &[Device]) -> Result<(), CloudInitError> {
        let Self { volume, path, identity, seed } = self;
        write_image(&volume, &seed.with_devices(&identity, devices), &path).map(drop)
    }
}

/// Path of a volume's image below a directory, as in KubeVirt. `first` is false for a second volume of the
/// same layout.
#[must_use]
pub fn image_path(
    directory: &Path,
    identity: &Identity,
    layout: Layout,
    volume: &str,
    first: bool,
) -> PathBuf {
    let name = match layout {
        Layout::NoCloud => "noCloud.iso",
        Layout::ConfigDrive => "configdrive.iso",
    };
    let directory = directory.join("cloud-init-data").join(&identity.namespace).join(&identity.name);
    directory.join(if first { name.to_owned() } else { format!("{volume}-{name}") })
}

/// Writes the image of one volume to `path`, replacing an earlier one atomically, and returns its size in
/// bytes.
///
/// # Errors
/// Names the volume.
pub fn write_image(volume: &str, seed: &Seed, path: &Path) -> Result<u64, CloudInitError> {
    let image =
        iso::image(seed).map_err(|source| CloudInitError::Iso { volume: volume.to_owned(), source })?;
    crate::iso::save(&image, path).map_err(|source| CloudInitError::Write {
        volume: volume.to_owned(),
        path: path.to_owned(),
        source,
    })?;
    Ok(image.len() as u64)
}
