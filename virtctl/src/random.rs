//! Names that nobody has chosen, of Kubernetes' letters: without vowels and what looks alike.

const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A name for an object that was given none.
pub(crate) fn name(of: &str) -> String {
    format!("{of}-{}", suffix(5))
}

/// A word of that many letters.
pub(crate) fn suffix(length: usize) -> String {
    (0..length).map(|_| char::from(LETTERS[fastrand::usize(..LETTERS.len())])).collect()
}
