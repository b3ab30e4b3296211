//! The guest's serial output in a file of limited size: two halves, of which the older one is dropped when
//! the newer is full. Each half begins with a line that says how many bytes were dropped before it, if any.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use barevirt_qmp::quiet::Quiet;

/// Name of the log in the container's private directory.
pub const FILE: &str = "serial0.log";

/// Size limit of both halves together by default, in bytes.
pub const DEFAULT_LIMIT: u64 = 4 << 20;

/// Why the log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open serial log {path}")]
pub struct OpenError {
    path: PathBuf,
    source: io::Error,
}

/// Writes the log at `path` to `out`, the older half first. A missing half is left out.
///
/// # Errors
/// If neither half can be read, or `out` fails.
pub fn print(path: &Path, out: &mut impl Write) -> io::Result<()> {
    match File::open(older(path)) {
        Ok(mut older) => drop(io::copy(&mut older, out)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    io::copy(&mut File::open(path)?, out)?;
    out.flush()
}

fn older(path: &Path) -> PathBuf {
    let mut older = path.as_os_str().to_owned();
    older.push(".1");
    PathBuf::from(older)
}

/// A log of limited size in two files: `path`, and the older half in `path` with the suffix `.1`.
#[derive(Debug)]
pub struct SerialLog {
    path: PathBuf,
    older: PathBuf,
    file: Option<File>,
    half: u64,
    written: u64,
    older_written: u64,
    dropped: u64,
    quiet: Quiet,
}

impl SerialLog {
    /// A new log at `path`, of `limit` bytes in total. An earlier log is replaced.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn create(path: &Path, limit: u64) -> Result<Self, OpenError> {
        let older = older(path);
        let _ = fs::remove_file(&older);
        let file = open(path).map_err(|source| OpenError { path: path.to_owned(), source })?;
        let path = path.to_owned();
        let (half, quiet) = (limit / 2, Quiet::new(1));
        Ok(Self { path, older, file: Some(file), half, written: 0, older_written: 0, dropped: 0, quiet })
    }

    /// Appends bytes. Bytes that cannot be written (a full disk) count as dropped and are reported in the
    /// next half.
    pub fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.written >= self.half {
                self.turn();
            }
            let room = usize::try_from(self.half.saturating_sub(self.written)).unwrap_or(usize::MAX).max(1);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.append(now);
            bytes = later;
        }
    }

    /// Number of bytes that are no longer in either half.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn append(&mut self, bytes: &[u8]) {
        let length = bytes.len() as u64;
        self.written += length;
        if self.file.as_mut().is_none_or(|file| file.write_all(bytes).is_err()) {
            self.dropped += length;
            self.file = None;
        }
    }

    fn turn(&mut self) {
        self.dropped += self.older_written;
        self.older_written = self.written;
        self.written = 0;
        // The guest decides how often this happens, because it writes the log.
        if let Err(error) = fs::rename(&self.path, &self.older)
            && let Some(left_out) = self.quiet.line()
        {
            tracing::warn!(%error, left_out, "cannot rotate the serial log");
        }
        self.file = open(&self.path).ok();
        if let (Some(file), 1..) = (&mut self.file, self.dropped) {
            // Not counted, because the guest did not write it.
            let _ = writeln!(file, "[{} earlier bytes of this console were dropped]", self.dropped);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(limit: u64) -> (tempfile::TempDir, SerialLog) {
        let directory = tempfile::tempdir().unwrap();
        let log = SerialLog::create(&directory.path().join("serial0.log"), limit).unwrap();
        (directory, log)
    }

    fn read(directory: &tempfile::TempDir, name: &str) -> String {
        fs::read_to_string(directory.path().join(name)).unwrap()
    }

    #[test]
    fn everything_is_kept_while_it_fits() {
        let (directory, mut log) = log(200);
        log.write(&[b'a'; 60]);
        log.write(&[b'b'; 60]);
        let whole = read(&directory, "serial0.log.1") + &read(&directory, "serial0.log");
        assert_eq!(whole, "a".repeat(60) + &"b".repeat(60));
        assert_eq!(log.dropped(), 0);
    }

    #[test]
    fn it_is_printed_from_its_beginning() {
        let (directory, mut log) = log(200);
        let print = || {
            let mut out = Vec::new();
            super::print(&directory.path().join("serial0.log"), &mut out)
                .map(|()| String::from_utf8(out).unwrap())
        };
        log.write(b"first\n");
        assert_eq!(print().unwrap(), "first\n");
        log.write(&[b'a'; 120]);
        assert_eq!(print().unwrap(), format!("first\n{}", "a".repeat(120)));
        fs::remove_file(directory.path().join("serial0.log")).unwrap();
        assert_eq!(print().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_oldest_output_is_dropped_and_counted() {
        let (directory, mut log) = log(200);
        for n in 0..1000 {
            log.write(format!("{n:09}\n").as_bytes());
        }
        let newer = read(&directory, "serial0.log");
        let older = read(&directory, "serial0.log.1");
        assert!(newer.starts_with("[9800 earlier bytes of this console were dropped]\n"), "{newer}");
        assert!(newer.ends_with("000000999\n"));
        assert!(older.contains("000000980\n"), "{older}");
        assert_eq!(log.dropped(), 9800);
        assert!(older.len() + newer.len() < 200 + 2 * 60);
    }

    #[test]
    fn one_write_larger_than_the_whole() {
        let (directory, mut log) = log(200);
        log.write(&[b'x'; 950]);
        assert_eq!(log.dropped(), 800);
        let newer = read(&directory, "serial0.log");
        assert_eq!(newer.matches('x').count(), 50);
    }
}
