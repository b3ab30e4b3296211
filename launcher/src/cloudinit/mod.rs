//! First-boot configuration: a `cloudInitNoCloud` volume becomes the ISO image that cloud-init looks for.
//!
//! ```text
//!  manifest, secrets mounted by the kubelet ─► seed::Seed ─► iso::image ─► file
//! ```
//!
//! cloud-init takes a file system with the label `cidata` and the files `meta-data`, `user-data` and, where there is
//! one, `network-config`. Nothing in user data is looked at.

pub mod iso;
pub mod seed;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub use iso::IsoError;
pub use seed::{Identity, Seed, SeedError};

/// Where the kubelet mounts the secrets of a volume: beneath this, by the volume's name.
pub const SECRETS: &str = "/var/run/kubevirt-private/secret";

/// Why there is no image for a volume.
#[derive(Debug, thiserror::Error)]
pub enum CloudInitError {
    /// Its data cannot be had.
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
        /// What the system said.
        source: io::Error,
    },
}

/// Makes the image of one volume at `path`, replacing an earlier one as a whole, and returns its size in bytes.
///
/// # Errors
/// Names the volume.
pub fn write_image(volume: &str, seed: &Seed, path: &Path) -> Result<u64, CloudInitError> {
    let image =
        iso::image(seed).map_err(|source| CloudInitError::Iso { volume: volume.to_owned(), source })?;
    let part = path.with_extension("part");
    let write = || -> io::Result<()> {
        // User data may hold passwords: for this user only.
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(&image)?;
        std::fs::rename(&part, path)
    };
    write().map_err(|source| CloudInitError::Write {
        volume: volume.to_owned(),
        path: path.to_owned(),
        source,
    })?;
    Ok(image.len() as u64)
}
