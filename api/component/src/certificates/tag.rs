//! What only those can write who have a certificate's key: by it a server knows again what it, or a replica of it, has said.

use sha2::{Digest, Sha256};
use std::fmt;

/// A secret that follows from a private key, and is of no use for anything that the key itself is for.
#[derive(Clone)]
pub(super) struct Secret([u8; 32]);

impl Secret {
    /// That of a private key, DER.
    pub(super) fn of(key: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"barevirt tag\0");
        hash.update(key);
        Secret(hash.finalize().into())
    }

    /// The tag of a message: HMAC with SHA-256.
    pub(super) fn tag(&self, message: &[u8]) -> [u8; 32] {
        hmac(&self.0, message)
    }
}

/// Without the secret: it belongs into no log.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// RFC 2104, with a key that is no longer than a block.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let padded = |pad: u8| {
        let mut block = [pad; 64];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2.
    #[test]
    fn a_tag_is_an_hmac() {
        let tag = hmac(b"Jefe", b"what do ya want for nothing?");
        let text: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn another_key_or_message_has_another_tag() {
        let (one, other) = (Secret::of(b"key"), Secret::of(b"another"));
        assert_eq!(one.tag(b"m"), Secret::of(b"key").tag(b"m"));
        assert!(one.tag(b"m") != other.tag(b"m") && one.tag(b"m") != one.tag(b"n"));
        assert_eq!(format!("{one:?}"), "Secret");
    }
}
