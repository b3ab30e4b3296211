//! Random names from the letters that Kubernetes uses, which exclude vowels and similar letters.

const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A name for an object without one.
pub(crate) fn name(of: &str) -> String {
    format!("{of}-{}", suffix(5))
}

/// A random word of that many letters.
pub(crate) fn suffix(length: usize) -> String {
    (0..length).map(|_| char::from(LETTERS[fastrand::usize(..LETTERS.len())])).collect()
}
