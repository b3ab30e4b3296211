//! Digests, by which a new version of a source is recognised.

/// Prefix of a digest.
pub const DIGEST_PREFIX: &str = "sha256:";
/// Hexadecimal digits that follow.
const DIGITS: usize = 64;

/// Whether a text is a digest: other texts must not become part of names and addresses.
#[must_use]
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix(DIGEST_PREFIX).is_some_and(|digits| {
        digits.len() == DIGITS && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_nothing_else() {
        assert!(is_digest(&format!("sha256:{}", "0a".repeat(32))));
        let long = format!("sha256:{}", "0".repeat(65));
        for bad in
            ["", "sha256:", "sha256:0a", &long, &format!("sha256:{}", "0A".repeat(32)), &"0".repeat(71)]
        {
            assert!(!is_digest(bad), "{bad}");
        }
    }
}
