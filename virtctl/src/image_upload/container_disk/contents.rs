//! The files of an image by name, in an archive or in a folder.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use barevirt_import_job::{DIGEST_PREFIX, is_digest};
use barevirt_layers::layer;
use barevirt_layers::manifest::LONGEST_MANIFEST;

/// Marks OCI's image layout.
pub(super) const LAYOUT: &str = "oci-layout";
/// Its index.
pub(super) const INDEX: &str = "index.json";
/// Folder of its other files, which are named by their digests.
pub(super) const BLOBS: &str = "blobs/sha256/";

/// Size of a header of an archive, and alignment of contents, in bytes.
const RECORD: usize = 512;
/// The signature in the first header of an archive, and where it is.
const SIGNATURE: (usize, &[u8]) = (257, b"ustar");
/// Most files of an archive.
const MOST_FILES: usize = 16 << 10;
/// Longest name of a file in an archive that is looked for, in bytes: a digest has 71.
const LONGEST_NAME: usize = 255;

/// The files of an image.
#[derive(Debug)]
pub(super) enum Contents {
    /// A folder in OCI's image layout.
    Folder(PathBuf),
    /// An archive: its files by name.
    Archive(BTreeMap<String, Part>),
}

/// A part of a file, which is read from its beginning to its end.
#[derive(Clone, Debug)]
pub(super) struct Part {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Contents {
    /// Looks at a file or folder. `None` if it is neither an archive nor a layout.
    pub(super) fn open(path: &Path) -> anyhow::Result<Option<Self>> {
        // Who opens it as an image reports why it cannot be opened.
        let Ok(found) = path.metadata() else { return Ok(None) };
        if found.is_dir() {
            let is_layout = path.join(LAYOUT).is_file();
            return Ok(is_layout.then(|| Self::Folder(path.to_owned())));
        }
        if !found.is_file() {
            return Ok(None);
        }
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let mut header = [0; RECORD];
        let is_archive =
            file.read_exact_at(&mut header, 0).is_ok() && header[SIGNATURE.0..].starts_with(SIGNATURE.1);
        if !is_archive {
            return Ok(None);
        }
        let files = listed(Part { file: Arc::new(file), at: 0, end: found.len() });
        files
            .map(|files| Some(Self::Archive(files)))
            .with_context(|| format!("read archive {}", path.display()))
    }

    /// A file. A name that no layout has is not looked for in a folder.
    pub(super) fn file(&self, name: &str) -> anyhow::Result<Option<Part>> {
        let folder = match self {
            Self::Archive(files) => return Ok(files.get(name).cloned()),
            Self::Folder(folder) => folder,
        };
        if !is_of_layout(name) {
            return Ok(None);
        }
        let path = folder.join(name);
        // A pipe must not be opened: that waits for its writer.
        if !path.is_file() {
            return Ok(None);
        }
        let file = File::open(path).with_context(|| format!("open {name}"))?;
        let end = file.metadata().with_context(|| format!("open {name}"))?.len();
        Ok(Some(Part { file: Arc::new(file), at: 0, end }))
    }
}

impl Part {
    /// Its length, or that of its unread rest, in bytes.
    pub(super) fn length(&self) -> u64 {
        self.end - self.at
    }

    /// All of a manifest or list. `name` is for messages.
    pub(super) fn text(mut self, name: &str) -> anyhow::Result<Vec<u8>> {
        let length = self.length();
        ensure!(length <= LONGEST_MANIFEST as u64, "{name} has {length} bytes, more than {LONGEST_MANIFEST}");
        let mut text = vec![];
        self.read_to_end(&mut text).with_context(|| format!("read {name}"))?;
        Ok(text)
    }
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.length()).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

fn is_of_layout(name: &str) -> bool {
    let is_blob = |digits: &str| is_digest(&format!("{DIGEST_PREFIX}{digits}"));
    name == LAYOUT || name == INDEX || name.strip_prefix(BLOBS).is_some_and(is_blob)
}

/// The files of an archive.
fn listed(mut archive: Part) -> anyhow::Result<BTreeMap<String, Part>> {
    let mut files = BTreeMap::new();
    while let Some(entry) = layer::next(&mut archive)? {
        ensure!(entry.size <= archive.length(), "it ends too early");
        let end = archive.at + entry.size;
        if entry.is_file() && entry.path.len() <= LONGEST_NAME {
            files.insert(entry.path, Part { end, ..archive.clone() });
        }
        ensure!(files.len() <= MOST_FILES, "it has more than {MOST_FILES} files");
        archive.at = end.next_multiple_of(RECORD as u64).min(archive.end);
    }
    Ok(files)
}
