//! What only those know who have a certificate's key: by it one of them tells another that it is one.
//!
//! The API server calls webhooks without any proof of who it is, and no cluster can be relied on to give it one. But it calls
//! the path that it finds in its configuration, which few may read. The operator, which makes the key, writes a seal into that
//! path, and the server, which has the key, knows it again. It changes with the certificate.

use sha2::{Digest, Sha256};
use std::fmt;

/// Part of a path that cannot be guessed: 64 digits, as a path of a webhook may have.
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

    /// For the path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether somebody knows it. How long that takes does not tell how much of it was right.
    pub fn is(&self, said: &str) -> bool {
        let differences =
            self.0.bytes().zip(said.bytes()).fold(0, |all, (ours, theirs)| all | (ours ^ theirs));
        said.len() == self.0.len() && differences == 0
    }
}

/// Without the seal: it belongs into no log.
impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_known_again_and_told_to_nobody() {
        let (one, other) = (Seal::of(b"key"), Seal::of(b"another"));
        assert!(one.is(one.as_str()) && !one.is(other.as_str()) && !one.is(""));
        assert!(!one.is(&one.as_str()[1..]) && !one.is(&format!("{}0", one.as_str())));
        assert_eq!(one.as_str().len(), 64);
        assert_eq!(format!("{one:?}"), "Seal");
    }
}
