//! What was written to a file and not synced.

use std::mem;

/// Bytes, and where in the file they belong.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Write {
    fn end(&self) -> u64 {
        self.at.saturating_add(self.bytes.len() as u64)
    }
}

/// The writes that are not stored yet, in their order.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    writes: Vec<Write>,
}

impl Unsynced {
    /// Remembers a write, and forgets those that it replaces.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        let new = Write { at, bytes: bytes.to_vec() };
        self.writes.retain(|old| old.at < new.at || old.end() > new.end());
        self.writes.push(new);
    }

    /// The length of the file, of which that many bytes are stored.
    pub(crate) fn length(&self, stored: u64) -> u64 {
        self.writes.iter().map(Write::end).fold(stored, u64::max)
    }

    /// Puts the writes over the bytes that are stored at that place.
    pub(crate) fn lay_over(&self, at: u64, stored: &mut [u8]) {
        for write in &self.writes {
            let begin = at.max(write.at);
            let end = at.saturating_add(stored.len() as u64).min(write.end());
            if begin < end {
                let (to, from) = (index(begin - at), index(begin - write.at));
                let count = index(end - begin);
                stored[to..to + count].copy_from_slice(&write.bytes[from..from + count]);
            }
        }
    }

    /// Forgets what is beyond the file's new length.
    pub(crate) fn cut(&mut self, length: u64) {
        self.writes.retain_mut(|write| {
            write.bytes.truncate(index(length.saturating_sub(write.at)));
            !write.bytes.is_empty()
        });
    }

    /// All writes, to be stored in this order. Afterwards there is none.
    pub(crate) fn take(&mut self) -> Vec<Write> {
        mem::take(&mut self.writes)
    }
}

/// A number of bytes as an index.
pub(crate) fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(unsynced: &Unsynced, at: u64, stored: &str) -> String {
        let mut bytes = stored.as_bytes().to_vec();
        unsynced.lay_over(at, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn later_writes_are_over_earlier_ones_and_over_what_is_stored() {
        let mut unsynced = Unsynced::default();
        unsynced.write(2, b"aaaa");
        unsynced.write(4, b"bbbb");
        assert_eq!(read(&unsynced, 0, ".........."), "..aabbbb..");
        assert_eq!(read(&unsynced, 3, "..."), "abb");
        assert_eq!(read(&unsynced, 7, "..."), "b..");
        assert_eq!(read(&unsynced, 8, "..."), "...");
        assert_eq!((unsynced.length(3), unsynced.length(9)), (8, 9));
        unsynced.write(1, b"ccccccc");
        assert_eq!(unsynced.take(), [Write { at: 1, bytes: b"ccccccc".to_vec() }]);
        assert_eq!((read(&unsynced, 0, "...."), unsynced.length(3)), ("....".to_owned(), 3));
    }

    #[test]
    fn a_shorter_file_has_nothing_beyond_its_end() {
        let mut unsynced = Unsynced::default();
        unsynced.write(0, b"aaaa");
        unsynced.write(6, b"bb");
        unsynced.cut(2);
        assert_eq!(unsynced.length(0), 2);
        assert_eq!(read(&unsynced, 0, "........"), "aa......");
        unsynced.cut(0);
        assert!(unsynced.take().is_empty());
    }
}
