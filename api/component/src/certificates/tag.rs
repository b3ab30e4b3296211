//! Message tags that only holders of a certificate's key can make. A server recognizes with them what it or a
//! replica of it has written.

use ring::hmac::{self, HMAC_SHA256};
use std::fmt;

/// A secret derived from a private key. It is useless for the key's own purpose.
#[derive(Clone)]
pub(super) struct Secret(hmac::Key);

impl Secret {
    /// The secret of a private key, DER.
    pub(super) fn of(key: &[u8]) -> Self {
        let derived = hmac::sign(&hmac::Key::new(HMAC_SHA256, key), b"barevirt tag");
        Secret(hmac::Key::new(HMAC_SHA256, derived.as_ref()))
    }

    /// The tag of a message: HMAC with SHA-256.
    pub(super) fn tag(&self, message: &[u8]) -> Vec<u8> {
        hmac::sign(&self.0, message).as_ref().to_vec()
    }

    /// Whether the message has this tag. The comparison takes the same time however much of the tag is right.
    pub(super) fn has(&self, message: &[u8], tag: &[u8]) -> bool {
        hmac::verify(&self.0, message, tag).is_ok()
    }
}

/// Omits the secret, which must not appear in logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_key_or_message_has_another_tag() {
        let (one, other) = (Secret::of(b"key"), Secret::of(b"another"));
        let tag = one.tag(b"m");
        assert!(Secret::of(b"key").has(b"m", &tag));
        assert!(
            !other.has(b"m", &tag)
                && !one.has(b"n", &tag)
                && !one.has(b"m", &tag[..31])
                && !one.has(b"m", b"")
        );
        assert_eq!(format!("{one:?}"), "Secret");
    }
}
