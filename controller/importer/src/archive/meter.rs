//! Bounds what is read of an archive: its unpacked bytes, the bytes before the contents of an entry, and the time.
//!
//! `tar` reads long names, attributes and maps of holes into memory, however long an archive says that they are. All of
//! them come between the contents of two entries, and are bounded there.

use crate::failure::Failure;
use crate::feed::FeedFailure;
use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;
use std::time::Instant;

/// Most bytes between the contents of two entries: padding, names, attributes.
const LONGEST_HEAD: u64 = 1 << 20;

/// What an archive may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Its unpacked length, in bytes.
    pub bytes: u64,
    /// Its entries.
    pub entries: u64,
    /// When it has to be unpacked.
    pub until: Instant,
}

/// State that a [`Metered`] shares with its archive's reader.
#[derive(Debug)]
pub(super) struct Meter {
    what: String,
    bounds: Bounds,
    trouble: FeedFailure,
    left: Cell<u64>,
    head: Cell<Option<u64>>,
    ended: Cell<bool>,
}

impl Meter {
    pub(super) fn new(what: &str, bounds: Bounds, trouble: &FeedFailure) -> Rc<Self> {
        Rc::new(Meter {
            what: what.to_owned(),
            bounds,
            trouble: trouble.clone(),
            left: Cell::new(bounds.bytes),
            head: Cell::new(None),
            ended: Cell::new(false),
        })
    }

    /// From now on, what precedes the contents of an entry is read.
    pub(super) fn reads_head(&self) {
        self.head.set(Some(LONGEST_HEAD));
    }

    /// From now on, contents are read.
    pub(super) fn reads_contents(&self) {
        self.head.set(None);
    }

    /// Whether the stream was read to its end.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Bytes that were read.
    pub(super) fn read(&self) -> u64 {
        self.bounds.bytes - self.left.get()
    }

    /// How many bytes may be read now.
    fn allowed(&self, now: Instant) -> Result<u64, Failure> {
        let Meter { what, bounds, left, head, .. } = self;
        let refused = |why: String| Err(Failure::Final(format!("{what} {why}")));
        if now >= bounds.until {
            return refused("takes too long to unpack".to_owned());
        }
        if left.get() == 0 {
            return refused(format!(
                "unpacks to more than the {} bytes that the claim has room for: ask for a larger claim",
                bounds.bytes
            ));
        }
        match head.get() {
            Some(0) => {
                refused(format!("has an entry with more than {LONGEST_HEAD} bytes of names and attributes"))
            }
            Some(head) => Ok(head.min(left.get())),
            None => Ok(left.get()),
        }
    }

    fn took(&self, count: u64) {
        self.left.set(self.left.get().saturating_sub(count));
        self.head.set(self.head.get().map(|head| head.saturating_sub(count)));
        self.ended.set(count == 0);
    }
}

/// A reader within the bounds of its meter.
pub(super) struct Metered<R> {
    pub(super) stream: R,
    pub(super) meter: Rc<Meter>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let allowed = self.meter.allowed(Instant::now()).map_err(|failure| {
            self.meter.trouble.note(failure.clone());
            io::Error::other(failure)
        })?;
        let most = buffer.len().min(usize::try_from(allowed).unwrap_or(usize::MAX));
        let count = self.stream.read(&mut buffer[..most])?;
        self.meter.took(count as u64);
        Ok(count)
    }
}
