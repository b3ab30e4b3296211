//! Names that look like those that the API server generates, but are derived from a text: a controller that acts on an old
//! observation and creates an object twice finds that it already exists.

use sha1::{Digest, Sha1};

/// Longest name of a pod: the API server's own limit for generated names.
const LIMIT: usize = 63;
/// Number of characters that are derived from the text.
const SUFFIX: usize = 5;

/// The beginning, cut where the name would be too long, with characters derived from `seed`.
pub fn name(beginning: &str, seed: &str) -> String {
    let mut name: String = beginning.chars().take(LIMIT - SUFFIX).collect();
    name.push_str(&suffix(seed));
    name
}

/// Uses the alphabet of generated names: it has no vowels, so it spells no words.
fn suffix(text: &str) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let digest = Sha1::digest(text.as_bytes());
    digest.iter().take(SUFFIX).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_and_are_cut() {
        assert_eq!(name("web-", "a"), name("web-", "a"));
        assert_ne!(name("web-", "a"), name("web-", "b"));
        let long = name(&"x".repeat(100), "a");
        assert_eq!(long.len(), LIMIT);
        assert!(long.starts_with("xxx"));
    }
}
