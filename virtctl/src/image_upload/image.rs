//! The file or directory that is uploaded, as the body of a request.
//!
//! A file is read piece by piece, each after the previous one was sent, so only one piece is in memory, however
//! large the file is. Each piece is read at its offset, so an earlier try does not affect the next one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as Task, Poll, ready};

use anyhow::{Context, ensure};
use http_body_util::Either;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::task::JoinHandle;

use super::container_disk;
use super::directory::{Directory, Packed};
use super::upload::Content;

/// How much is read at once.
const PIECE: u64 = 256 << 10;

/// What is to be uploaded.
#[derive(Debug)]
pub(super) enum Image {
    /// A file, a disk, or a copy of the disk in a container disk.
    File { file: Arc<File>, length: u64 },
    /// A directory, as an archive.
    Directory(Directory),
}

impl Image {
    /// Opens a file, a disk, a container disk, or a directory that is to be an archive.
    pub(super) fn open(path: &Path, content: Content) -> anyhow::Result<Self> {
        let shown = path.display();
        if content == Content::Archive && path.is_dir() {
            return Directory::open(path).map(Self::Directory);
        }
        let copy = if content == Content::Image { container_disk::open(path)? } else { None };
        let mut file = match copy {
            Some(copy) => copy,
            None => File::open(path).with_context(|| format!("open {shown}"))?,
        };
        let metadata = file.metadata().with_context(|| format!("open {shown}"))?;
        ensure!(!metadata.is_dir(), "{shown} is a directory, not an image");
        // A disk has no length in its metadata.
        let length = io::Seek::seek(&mut file, io::SeekFrom::End(0));
        let length = length.with_context(|| format!("{shown} cannot be read again for another try"))?;
        ensure!(length > 0, "{shown} is empty: there is nothing to upload");
        Ok(Self::File { file: Arc::new(file), length })
    }

    /// Its length in bytes; that of a directory is not exact.
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::File { length, .. } => *length,
            Self::Directory(directory) => directory.length(),
        }
    }

    /// Whether an upload can go on within it: a directory is packed again each time.
    pub(super) fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// The image from that byte on, or all of a directory, as a body; `sent` gets the byte that was reached, at the end the length.
    pub(super) fn body(&self, from: u64, sent: Arc<AtomicU64>) -> Either<Pieces, Packed> {
        match self {
            Self::File { file, length } => {
                sent.store(from, Ordering::Relaxed);
                Either::Left(Pieces { file: file.clone(), length: *length, at: from, sent, reading: None })
            }
            Self::Directory(directory) => Either::Right(directory.body(sent)),
        }
    }
}

/// The body of one try.
pub(super) struct Pieces {
    file: Arc<File>,
    length: u64,
    at: u64,
    sent: Arc<AtomicU64>,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

fn piece(file: &File, at: u64, length: u64) -> io::Result<Bytes> {
    let mut bytes = vec![0; usize::try_from(length.min(PIECE)).unwrap_or(usize::MAX)];
    let read = file.read_at(&mut bytes, at)?;
    if read == 0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the file became shorter while it was sent",
        ));
    }
    bytes.truncate(read);
    Ok(bytes.into())
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Task<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let (at, left) = (self.at, self.length - self.at);
        if left == 0 {
            return Poll::Ready(None);
        }
        if self.reading.is_none() {
            let file = self.file.clone();
            self.reading = Some(tokio::task::spawn_blocking(move || piece(&file, at, left)));
        }
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(task));
        self.reading = None;
        let bytes = match read.map_err(io::Error::other).flatten() {
            Ok(bytes) => bytes,
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        self.at += bytes.len() as u64;
        self.sent.store(self.at, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.at == self.length
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length - self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::io::Write;

    fn file(length: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
        let bytes: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        (file, bytes)
    }

    #[tokio::test]
    async fn all_of_a_file_is_sent_in_pieces_and_can_be_sent_again() {
        let (file, bytes) = file(600 << 10);
        let image = Image::open(file.path(), Content::Image).unwrap();
        assert_eq!(image.length(), 600 << 10);
        for _ in 0..2 {
            let sent = Arc::new(AtomicU64::new(0));
            let mut body = image.body(0, sent.clone());
            assert_eq!(body.size_hint().exact(), Some(600 << 10));
            let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(first.len() as u64, PIECE);
            assert_eq!(sent.load(Ordering::Relaxed), PIECE);
            let rest = body.collect().await.unwrap().to_bytes();
            assert_eq!([&first[..], &rest[..]].concat(), bytes);
            assert_eq!(sent.load(Ordering::Relaxed), 600 << 10);
        }
        let rest = image.body(500_000, Arc::default()).collect().await.unwrap().to_bytes();
        assert_eq!(rest, bytes[500_000..]);
    }

    #[tokio::test]
    async fn a_file_that_becomes_shorter_is_an_error() {
        let (file, _) = file(600 << 10);
        let image = Image::open(file.path(), Content::Archive).unwrap();
        file.as_file().set_len(300 << 10).unwrap();
        let sent = image.body(0, Arc::default()).collect().await;
        assert!(sent.unwrap_err().to_string().contains("became shorter"));
    }

    #[test]
    fn a_file_that_is_no_image_is_not_opened() {
        let error = |path: &Path| format!("{:#}", Image::open(path, Content::Image).unwrap_err());
        let folder = tempfile::tempdir().unwrap();
        assert!(error(folder.path()).contains("is a directory"));
        std::fs::write(folder.path().join("a"), "x").unwrap();
        assert!(matches!(Image::open(folder.path(), Content::Archive), Ok(Image::Directory(_))));
        assert!(error(&folder.path().join("none")).contains("No such file"));
        assert!(error(file(0).0.path()).contains("is empty"));
    }
}
