//! Names that look like those that the API server makes up, and follow from a text: who looks at an old observation and
//! creates an object twice finds that it is there.

use sha1::{Digest, Sha1};

/// Longest name of a pod: what the API server keeps to when it makes names up.
const LIMIT: usize = 63;
/// Characters that follow from the text.
const SUFFIX: usize = 5;

/// The beginning, cut where the name would be too long, with characters that follow from `seed`.
pub fn name(beginning: &str, seed: &str) -> String {
    let mut name: String = beginning.chars().take(LIMIT - SUFFIX).collect();
    name.push_str(&suffix(seed));
    name
}

/// From the alphabet of generated names: no vowels, no words.
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
