//! Disk images for guests: ISO 9660 with Joliet and Rock Ridge names, made in memory.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Cursor, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use hadris_iso::joliet::JolietLevel;
use hadris_iso::read::PathSeparator;
use hadris_iso::write::options::{BaseIsoLevel, CreationFeatures, IsoFormatOptions};
use hadris_iso::write::{InputEntry, InputEntryKind, InputMetadata, InputTree, IsoImageWriter};

/// The image's size is a multiple of this, in bytes: drives with sectors of 4 KiB accept it, like KubeVirt's
/// images.
pub const ALIGNMENT: usize = 4096;

/// Smallest image, in bytes. busybox reads the first 68 KiB of a disk at once to find its label, and treats a
/// shorter disk as broken.
pub const SMALLEST: usize = 128 * 1024;

/// The unit of the format, in bytes.
pub(crate) const SECTOR: usize = 2048;

/// Longest name of a file or a directory, in bytes. Longer names do not fit into a directory record with its
/// other fields: the writer fails with some of them, and Linux misreads many others.
pub const LONGEST_NAME: usize = 128;

/// Space for descriptors, path tables, directories and padding in addition to the files; the image is cut to
/// the used length.
const OVERHEAD: usize = 256 * 1024;

/// Why an image cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum IsoError {
    /// The text is not valid as the name of a file or a directory.
    #[error("name '{}...' of a file is longer than {LONGEST_NAME} bytes", .0.chars().take(32).collect::<String>())]
    Name(String),
    /// The writer failed.
    #[error("make ISO image: {0}")]
    Write(String),
    /// The size of the written image is not found in it.
    #[error("ISO image has no volume descriptor")]
    Unsound,
}

/// A file of an image, owned by root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Directories and name, with slashes between them.
    pub path: String,
    /// Its content.
    pub contents: Vec<u8>,
    /// Permissions to read it, as bits of its mode. A directory can be entered by everyone who may read
    /// something in it.
    pub mode: u32,
}

/// The image with this label and these files.
///
/// # Errors
/// If they do not fit the format.
pub fn image(label: &str, files: Vec<File>) -> Result<Vec<u8>, IsoError> {
    let mut names = files.iter().flat_map(|file| file.path.split('/'));
    if let Some(name) = names.find(|name| name.len() > LONGEST_NAME) {
        return Err(IsoError::Name(name.to_owned()));
    }
    let contents = files.iter().map(|file| file.contents.len().next_multiple_of(SECTOR)).sum::<usize>();
    let mut root = Directory::default();
    for file in files {
        root.put(file);
    }
    let tree = InputTree { path_separator: PathSeparator::ForwardSlash, entries: root.entries().0 };
    let features = CreationFeatures {
        filenames: BaseIsoLevel::Level1 { supports_lowercase: false, supports_rrip: true },
        joliet: Some(JolietLevel::Level3),
        rock_ridge: Some(hadris_iso::rrip::RripOptions::default()),
        ..CreationFeatures::default()
    };
    let options = IsoFormatOptions {
        volume_name: label.to_owned(),
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
    let buffer = Cursor::new(vec![0; OVERHEAD + contents]);
    let written =
        IsoImageWriter::create(buffer, tree, options).map_err(|error| IsoError::Write(error.to_string()))?;
    let mut image = written.into_inner();
    let used = volume_bytes(&image).filter(|used| *used <= image.len()).ok_or(IsoError::Unsound)?;
    image.resize(used.next_multiple_of(ALIGNMENT).max(SMALLEST), 0);
    Ok(image)
}

/// Writes an image to its path, replacing an earlier one atomically. It may contain secrets, so only this
/// user may read it.
///
/// # Errors
/// If it cannot be written.
pub fn save(image: &[u8], path: &Path) -> io::Result<()> {
    let part = path.with_extension("part");
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(image)?;
    std::fs::rename(&part, path)
}

/// The content of a directory, by name.
#[derive(Default)]
struct Directory {
    files: BTreeMap<String, (Vec<u8>, u32)>,
    directories: BTreeMap<String, Directory>,
}

impl Directory {
    fn put(&mut self, file: File) {
        let File { path, contents, mode } = file;
        let (above, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let steps = above.split('/').filter(|step| !step.is_empty());
        let place = steps.fold(self, |at, step| at.directories.entry(step.to_owned()).or_default());
        place.files.insert(name.to_owned(), (contents, mode));
    }

    /// Its entries, and the permissions to read any of them.
    fn entries(self) -> (Vec<InputEntry>, u32) {
        let mut readers = 0;
        let mut entries = Vec::new();
        for (name, (contents, mode)) in self.files {
            readers |= mode;
            entries.push(entry(name, InputEntryKind::File(contents), mode));
        }
        for (name, directory) in self.directories {
            let (below, mode) = directory.entries();
            readers |= mode;
            entries.push(entry(name, InputEntryKind::Directory(below), mode | mode >> 2));
        }
        (entries, readers)
    }
}

fn entry(name: String, kind: InputEntryKind, mode: u32) -> InputEntry {
    InputEntry {
        name: Arc::new(name),
        kind,
        metadata: InputMetadata { mode: Some(mode), uid: Some(0), gid: Some(0), ..InputMetadata::default() },
    }
}

/// Size of the volume in bytes, from its primary descriptor (sector 16): the number of sectors is at offset
/// 80.
fn volume_bytes(image: &[u8]) -> Option<usize> {
    let descriptor = image.get(16 * SECTOR..17 * SECTOR)?;
    if !descriptor.starts_with(b"\x01CD001") {
        return None;
    }
    let sectors = u32::from_le_bytes(descriptor.get(80..84)?.try_into().ok()?);
    usize::try_from(sectors).ok()?.checked_mul(SECTOR)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// The ways to read names: Joliet, and the one that Linux guests prefer.
    pub(crate) const NAMES: [&str; 2] = ["norock", "any"];

    /// The volume's files, read by an independent program.
    pub(crate) fn read_back(image: &[u8], names: &str, directory: &Path) -> Vec<File> {
        let path = directory.join(format!("image-{names}.iso"));
        std::fs::write(&path, image).unwrap();
        let target = directory.join(format!("out-{names}"));
        let done = Command::new("xorriso")
            .args(["-report_about", "WARNING", "-read_fs", names, "-osirrox", "on", "-indev"])
            .arg(&path)
            .args(["-extract", "/"])
            .arg(&target)
            .output()
            .expect("xorriso is needed (Debian package xorriso)");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let mut files = Vec::new();
        collect(&target, &target, &mut files);
        files.sort_by(|one, other| one.path.cmp(&other.path));
        files
    }

    fn collect(root: &Path, directory: &Path, files: &mut Vec<File>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(root, &path, files);
            } else {
                let mode = path.metadata().unwrap().permissions().mode() & 0o777;
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.push(File { path: name, contents: std::fs::read(&path).unwrap(), mode });
            }
        }
    }

    fn file(path: &str, contents: &str) -> File {
        File { path: path.to_owned(), contents: contents.into(), mode: 0o444 }
    }

    #[test]
    fn names_that_a_key_may_have_come_back_whole() {
        let long = "k".repeat(LONGEST_NAME);
        let mut files: Vec<File> = [
            ".dot",
            "A.b.c",
            "a-very-long-name.of.a.key",
            "no_dot",
            "seven/of/them/a/b/c/d/..e",
            "gr\u{fc}\u{df}e-an-alle.\u{4e16}",
        ]
        .into_iter()
        .map(|path| file(path, path))
        .chain([file(&long, "long"), file("same-start-1", "1"), file("same-start-2", "2"), file("empty", "")])
        .collect();
        files.sort_by(|one, other| one.path.cmp(&other.path));
        let image = image("a label of thirty-two characters", files.clone()).unwrap();
        assert_eq!(&image[16 * SECTOR + 40..][..32], b"a label of thirty-two characters");
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read_back(&image, "any", directory.path()), files);
        // Joliet's names are shorter but still distinct.
        let found = read_back(&image, "norock", directory.path());
        let contents = |files: &[File]| -> BTreeSet<Vec<u8>> {
            files.iter().map(|file| file.contents.clone()).collect()
        };
        assert_eq!((found.len(), contents(&found)), (files.len(), contents(&files)));
    }

    #[test]
    fn many_files_with_a_common_prefix_stay_distinct() {
        let files: Vec<File> = (0..500)
            .map(|number| file(&format!("a-common-beginning-{number:04}"), &number.to_string()))
            .collect();
        let image = image("many", files.clone()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        for names in NAMES {
            let found = read_back(&image, names, directory.path());
            let told = |files: &[File]| -> Vec<(String, Vec<u8>)> {
                files.iter().map(|file| (file.path.clone(), file.contents.clone())).collect()
            };
            assert!(told(&found) == told(&files), "{names}: {} files", found.len());
        }
    }

    #[test]
    fn a_name_that_the_writer_cannot_write_is_refused() {
        let files = |name: &str| vec![file(&format!("a/{name}"), "")];
        // Each together with a short name of another length.
        for ending in ["", ".", ".x", ".txt"] {
            for start in ["", ".", "k.", "kkkkkkkkkkkk."] {
                let fill = LONGEST_NAME - ending.len() - start.len();
                let name = format!("{start}{}{ending}", "k".repeat(fill));
                image("names", files(&name)).unwrap();
                let error = image("names", files(&format!("k{name}"))).unwrap_err().to_string();
                assert!(error.ends_with("is longer than 128 bytes"), "{error}");
            }
        }
    }

    #[test]
    fn nothing_is_an_image_too() {
        let image = image("empty", Vec::new()).unwrap();
        assert_eq!(image.len(), SMALLEST);
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read_back(&image, "any", directory.path()), []);
    }

    #[test]
    fn directories_are_searchable_by_the_readers_of_their_files() {
        let mut files = vec![file("a/for-all", "x"), file("b/for-root", "y")];
        files[1].mode = 0o400;
        let (entries, readers) = {
            let mut root = Directory::default();
            files.into_iter().for_each(|file| root.put(file));
            root.entries()
        };
        let modes: Vec<_> = entries.iter().map(|entry| entry.metadata.mode).collect();
        assert_eq!((modes, readers), (vec![Some(0o555), Some(0o500)], 0o444));
    }
}
