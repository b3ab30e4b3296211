//! A secret that only holders of a certificate's key know. One holder proves with it to another that it has
//! the key.
//!
//! The API server calls webhooks without proof of its identity, and a server cannot rely on the cluster's
//! configuration to add one. But the API server calls the path in the webhook's configuration, which few
//! clients may read. The operator makes the key and writes a seal into that path. The server has the key as
//! well and recognizes the seal. The seal changes with the certificate.

use sha2::{Digest, Sha256};
use std::fmt;

/// Part of a path that cannot be guessed: 64 hexadecimal digits, which a webhook's path may have.
#[derive(Clone, PartialEq, Eq)]
pub struct Seal(String);

impl Seal {
    /// The seal of a private key, DER.
    pub(super) fn of(key: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"barevirt webhook path\0");
        hash.update(key);
        Seal(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The seal as text, for the path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the given text is the seal. The comparison takes the same time however many characters match.
    pub fn is(&self, said: &str) -> bool {
        let differences =
            self.0.bytes().zip(said.bytes()).fold(0, |all, (ours, theirs)| all | (ours ^ theirs));
        said.len() == self.0.len() && differences == 0
    }
}

/// Omits the seal, which must not appear in logs.
impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_recognised_and_not_printed() {
        let (one, other) = (Seal::of(b"key"), Seal::of(b"another"));
        assert!(one.is(one.as_str()) && !one.is(other.as_str()) && !one.is(""));
        assert!(!one.is(&one.as_str()[1..]) && !one.is(&format!("{}0", one.as_str())));
        assert_eq!(one.as_str().len(), 64);
        assert_eq!(format!("{one:?}"), "Seal");
    }
}
