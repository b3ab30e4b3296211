//! A directory as an archive (tar), which is packed while it is sent: no copy of it is made on this machine.
//!
//! Files, directories and symbolic links are sent, with permissions and times, without owners.

use std::fs::{File, Metadata, read_dir, read_link};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as Task, Poll, ready};

use anyhow::{Context, bail, ensure};
use hyper::body::{Body, Bytes, Frame};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// How much is sent at once, and how many of these pieces wait in memory.
const PIECE: usize = 256 << 10;
const PIECES: usize = 2;
/// Size of a block of an archive.
const BLOCK: u64 = 512;

/// A directory to be uploaded.
#[derive(Debug)]
pub(super) struct Directory {
    root: Arc<Path>,
    /// Its entries, each after the directory that contains it.
    entries: Arc<[PathBuf]>,
    length: u64,
}

impl Directory {
    /// Lists a directory. Fails if it contains something that an archive for a claim cannot have.
    pub(super) fn open(root: &Path) -> anyhow::Result<Self> {
        let (mut entries, mut length) = (Vec::new(), 2 * BLOCK);
        let mut left = vec![PathBuf::new()];
        while let Some(directory) = left.pop() {
            let path = root.join(&directory);
            let context = || format!("read directory {}", path.display());
            let mut names = Vec::new();
            for entry in read_dir(&path).with_context(context)? {
                names.push(entry.with_context(context)?.file_name());
            }
            names.sort();
            for name in names {
                let name = directory.join(name);
                let path = root.join(&name);
                let found = path.symlink_metadata().with_context(|| format!("open {}", path.display()))?;
                length += BLOCK + name_length(&name);
                if found.is_file() {
                    length += found.len().next_multiple_of(BLOCK);
                } else if found.is_dir() {
                    left.push(name.clone());
                } else if !found.is_symlink() {
                    bail!("{}: only files, directories and links can be uploaded", path.display());
                }
                entries.push(name);
            }
        }
        ensure!(!entries.is_empty(), "{} is empty: there is nothing to upload", root.display());
        Ok(Self { root: root.into(), entries: entries.into(), length })
    }

    /// About how many bytes its archive has.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The archive as a body; `sent` gets the number of bytes that were sent.
    pub(super) fn body(&self, sent: Arc<AtomicU64>) -> Packed {
        let (sender, pieces) = channel(PIECES);
        let (root, entries) = (self.root.clone(), self.entries.clone());
        tokio::task::spawn_blocking(move || {
            let last = match pack(&root, &entries, Pieces(sender.clone())) {
                Ok(()) => None,
                Err(error) => Some(Err(error)),
            };
            // If the body is gone, the try has ended.
            let _ = sender.blocking_send(last);
        });
        Packed { pieces, at: 0, length: self.length, sent }
    }
}

/// How much a long name takes, in an entry of its own.
fn name_length(name: &Path) -> u64 {
    match name.as_os_str().len() as u64 {
        0..=100 => 0,
        long => BLOCK + (long + 1).next_multiple_of(BLOCK),
    }
}

fn pack(root: &Path, entries: &[PathBuf], pieces: Pieces) -> io::Result<()> {
    let mut archive = Builder::new(BufWriter::with_capacity(PIECE, pieces));
    for name in entries {
        let path = root.join(name);
        let of = |error: io::Error| io::Error::new(error.kind(), format!("pack {}: {error}", path.display()));
        append(&mut archive, name, &path).map_err(of)?;
    }
    archive.into_inner()?.flush()
}

fn append(archive: &mut Builder<impl Write>, name: &Path, path: &Path) -> io::Result<()> {
    let found = path.symlink_metadata()?;
    if found.is_symlink() {
        let mut header = header(&found);
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        return archive.append_link(&mut header, name, read_link(path)?);
    }
    if found.is_dir() {
        return archive.append_data(&mut header(&found), name, io::empty());
    }
    let file = File::open(path)?;
    // Its length may have changed since it was listed; from now on the header's counts.
    let found = file.metadata()?;
    archive.append_data(&mut header(&found), name, Exactly { left: found.len(), file })
}

fn header(found: &Metadata) -> Header {
    let mut header = Header::new_gnu();
    header.set_metadata(found);
    // The importer owns what it unpacks.
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// A file, of which exactly so many bytes are read.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read(&mut buffer[..most])?;
        if count == 0 && most > 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file became shorter while it was sent",
            ));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// A piece, or how packing failed; `None` after the last piece of a complete archive.
type Piece = Option<io::Result<Bytes>>;

/// Passes an archive on while it is packed.
struct Pieces(Sender<Piece>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Some(Ok(Bytes::copy_from_slice(bytes))));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The body of one try.
pub(super) struct Packed {
    pieces: Receiver<Piece>,
    at: u64,
    length: u64,
    sent: Arc<AtomicU64>,
}

impl Body for Packed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Task<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match ready!(self.pieces.poll_recv(task)) {
            Some(Some(Ok(bytes))) => {
                self.at += bytes.len() as u64;
                // The length is not exact, and the archive goes on.
                self.sent.store(self.at.min(self.length - 1), Ordering::Relaxed);
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Some(Some(Err(error))) => Poll::Ready(Some(Err(error))),
            Some(None) => {
                self.sent.store(self.length, Ordering::Relaxed);
                Poll::Ready(None)
            }
            // Without its end, an archive must not look complete.
            None => Poll::Ready(Some(Err(io::Error::other("packing ended unexpectedly")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("d".repeat(120));
        std::fs::create_dir(&long).unwrap();
        std::fs::write(long.join("a"), vec![7; 600 << 10]).unwrap();
        std::fs::write(folder.path().join("tool"), "run").unwrap();
        std::fs::set_permissions(folder.path().join("tool"), PermissionsExt::from_mode(0o751)).unwrap();
        symlink("tool", folder.path().join("link")).unwrap();
        folder
    }

    async fn sent(directory: &Directory) -> Result<Vec<u8>, io::Error> {
        let sent = Arc::new(AtomicU64::new(0));
        let all = directory.body(sent.clone()).collect().await?.to_bytes().to_vec();
        assert_eq!(sent.load(Ordering::Relaxed), directory.length());
        Ok(all)
    }

    #[tokio::test]
    async fn a_directory_is_an_archive_that_tar_reads_and_can_be_sent_again() {
        let folder = folder();
        let directory = Directory::open(folder.path()).unwrap();
        let first = sent(&directory).await.unwrap();
        assert_eq!(first.len() as u64, directory.length());
        assert_eq!(sent(&directory).await.unwrap(), first);
        let unpacked = tempfile::tempdir().unwrap();
        let file = unpacked.path().join("archive");
        std::fs::write(&file, &first).unwrap();
        let mut tar = std::process::Command::new("tar");
        let done = tar.arg("-C").arg(unpacked.path()).arg("-xf").arg(&file).status().unwrap();
        assert!(done.success());
        let path = |name: &str| unpacked.path().join(name);
        assert_eq!(std::fs::read(path(&format!("{}/a", "d".repeat(120)))).unwrap(), vec![7; 600 << 10]);
        assert_eq!(std::fs::read_link(path("link")).unwrap(), Path::new("tool"));
        assert_eq!(std::fs::metadata(path("tool")).unwrap().permissions().mode() & 0o777, 0o751);
    }

    #[tokio::test]
    async fn a_directory_that_changes_never_looks_complete() {
        let folder = folder();
        let directory = Directory::open(folder.path()).unwrap();
        std::fs::remove_file(folder.path().join("tool")).unwrap();
        let error = directory.body(Arc::default()).collect().await.unwrap_err();
        assert!(error.to_string().contains("tool: No such file"), "{error}");

        let path = folder.path().join("short");
        std::fs::write(&path, "abc").unwrap();
        let mut short = Exactly { file: File::open(&path).unwrap(), left: 4 };
        let error = io::copy(&mut short, &mut io::sink()).unwrap_err();
        assert!(error.to_string().contains("became shorter"), "{error}");
    }

    #[test]
    fn sockets_and_empty_directories_are_refused_before_anything_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let error = |path: &Path| format!("{:#}", Directory::open(path).unwrap_err());
        assert!(error(folder.path()).contains("is empty"));
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("s")).unwrap();
        assert!(error(folder.path()).contains("/s: only files, directories and links"));
    }
}
