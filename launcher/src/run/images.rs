//! Local files instead of container images.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use barevirt_api::valid::ValidVmi;

use super::args::DiskPath;
use crate::disk::Image;
use crate::disk::header::{HeaderError, INSPECTED, inspect};
use crate::volumes::Base;

/// Extensions of image files, in the order in which they are tried.
const ENDINGS: [&str; 3] = ["qcow2", "img", "raw"];

/// Why a volume has no image here.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// None was found.
    #[error("volume {volume}: image {image} is not here: looked for {}/{name}.qcow2 (.img, .raw); give it with --disk {volume}=PATH, or say where images are with --images DIR", directory.display())]
    NotFound {
        /// The volume.
        volume: String,
        /// Its container image.
        image: String,
        /// The file name that was looked for.
        name: String,
        /// The directory that was searched.
        directory: PathBuf,
    },
    /// It cannot be read.
    #[error("volume {volume}: cannot read image {path}")]
    Read {
        /// The volume.
        volume: String,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It is not a supported image.
    #[error("volume {volume}: image {path}: {source}")]
    Header {
        /// The volume.
        volume: String,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: HeaderError,
    },
    /// A path was given for a name that is not a volume with an image.
    #[error("--disk {volume}=...: the manifest has no containerDisk volume of that name")]
    NoVolume {
        /// The name.
        volume: String,
    },
}

/// Images by the names of their volumes; and path and format of each.
pub type Opened = (BTreeMap<String, Base>, Vec<(String, PathBuf, Image)>);

/// Opens the image of every container disk.
///
/// # Errors
/// Names the volume, and the remedy.
pub fn open_all(vmi: &ValidVmi, given: &[DiskPath], directory: &Path) -> Result<Opened, ImageError> {
    let (mut bases, mut found) = (BTreeMap::new(), Vec::new());
    for volume in vmi.volumes() {
        let Some(source) = &volume.container_disk else { continue };
        let path = match given.iter().find(|disk| disk.volume == volume.name) {
            Some(disk) => disk.path.clone(),
            None => find(&volume.name, &source.image, directory)?,
        };
        let base = open(&volume.name, path.clone())?;
        found.push((volume.name.clone(), path, base.image));
        bases.insert(volume.name.clone(), base);
    }
    match given.iter().find(|disk| !bases.contains_key(&disk.volume)) {
        Some(disk) => Err(ImageError::NoVolume { volume: disk.volume.clone() }),
        None => Ok((bases, found)),
    }
}

fn find(volume: &str, image: &str, directory: &Path) -> Result<PathBuf, ImageError> {
    let name = base_name(image);
    let candidates = ENDINGS.iter().map(|ending| directory.join(format!("{name}.{ending}")));
    candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| ImageError::NotFound {
        volume: volume.to_owned(),
        image: image.to_owned(),
        name: name.to_owned(),
        directory: directory.to_owned(),
    })
}

/// The last part of an image's name: `guest-tiny` of `localhost:5000/barevirt/guest-tiny:devel@sha256:...`.
fn base_name(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

fn open(volume: &str, path: PathBuf) -> Result<Base, ImageError> {
    let read = || -> io::Result<(File, Vec<u8>, u64)> {
        let file = File::open(&path)?;
        let length = file.metadata()?.len();
        let mut head = vec![0; INSPECTED];
        let mut filled = 0;
        while filled < head.len() {
            match file.read_at(&mut head[filled..], filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        head.truncate(filled);
        Ok((file, head, length))
    };
    let volume = || volume.to_owned();
    match read() {
        Err(source) => Err(ImageError::Read { volume: volume(), path, source }),
        Ok((file, head, length)) => match inspect(&head, length) {
            Ok(image) => Ok(Base { file: OwnedFd::from(file), image }),
            Err(source) => Err(ImageError::Header { volume: volume(), path, source }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_image_is_its_last_part() {
        for image in
            ["guest-tiny", "a/guest-tiny:devel", "h:5000/b/guest-tiny@sha256:00", "h:5000/guest-tiny"]
        {
            assert_eq!(base_name(image), "guest-tiny", "{image}");
        }
    }

    #[test]
    fn a_missing_image_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let message = find("root", "x/tiny:1", directory.path()).unwrap_err().to_string();
        assert!(message.contains("--disk root=PATH") && message.contains("tiny.qcow2"), "{message}");
        std::fs::write(directory.path().join("tiny.raw"), [0; 512]).unwrap();
        assert!(find("root", "x/tiny:1", directory.path()).is_ok());
    }
}
