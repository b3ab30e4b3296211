//! The key of a migration, and the file in which QEMU reads it.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use barevirt_qmp::qapi::qmp::{self, QCryptoTLSCredsEndpoint};

/// QEMU's name for the object with the key.
pub(super) const KEY: &str = "migration-key";
/// Name of the source in the key file.
const USER: &str = "migration";
/// Name of the key file that QEMU reads in the given directory.
const KEY_FILE: &str = "keys.psk";
/// File with the group for QEMU's key exchange. Without it QEMU generates one, which takes seconds.
const GROUP_FILE: &str = "dh-params.pem";
/// GnuTLS's ciphers without the one that it would choose. A shared key of QEMU's goes with ciphers of SHA-256 only: AES-128-GCM,
/// which processors have instructions for, and ChaCha20, which GnuTLS prefers and which costs twice the processor time.
const CIPHERS: &str = "NORMAL:-CHACHA20-POLY1305";
/// The group ffdhe2048 of RFC 7919.
const GROUP: &str = include_str!("ffdhe2048.pem");

/// A key for one migration. It is never printed.
pub struct Key(Vec<u8>);

impl Key {
    /// Shortest and longest key in bytes that QEMU's TLS can use.
    const LENGTHS: std::ops::RangeInclusive<usize> = 32..=64;

    /// A key of these bytes; `None` if there are too few or too many.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        Self::LENGTHS.contains(&bytes.len()).then_some(Self(bytes))
    }

    fn line(&self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{USER}:{hex}\n")
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Key")
    }
}

/// The object that has QEMU read the key.
pub(super) fn credentials(keys: &Path, endpoint: QCryptoTLSCredsEndpoint) -> qmp::object_add {
    let mut psk = qmp::TlsCredsPskProperties::from(qmp::TlsCredsProperties {
        dir: Some(keys.display().to_string()),
        endpoint: Some(endpoint),
        priority: Some(CIPHERS.to_owned()),
        verify_peer: None,
    });
    psk.username = (endpoint == QCryptoTLSCredsEndpoint::client).then(|| USER.to_owned());
    qmp::object_add((psk, KEY.to_owned()).into())
}

/// Writes the key for QEMU, in the place of an earlier migration's.
pub(super) fn write(keys: &Path, key: &Key) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(keys)?;
    // An earlier migration may have left one.
    remove(keys)?;
    let mut open = OpenOptions::new();
    let mut file = open.write(true).create_new(true).mode(0o600).open(keys.join(KEY_FILE))?;
    file.write_all(key.line().as_bytes())?;
    std::fs::write(keys.join(GROUP_FILE), GROUP)
}

/// Removes the key.
pub(super) fn remove(keys: &Path) -> io::Result<()> {
    [KEY_FILE, GROUP_FILE].iter().try_for_each(|name| match std::fs::remove_file(keys.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_key_is_readable_by_qemu_alone_and_not_printed() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let key = Key::new(vec![0xab; 32]).unwrap();
        for _ in 0..2 {
            let keys = directory.path().join("keys");
            write(&keys, &key).unwrap();
            let path = keys.join(KEY_FILE);
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text, format!("migration:{}\n", "ab".repeat(32)));
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        remove(&directory.path().join("keys")).unwrap();
        remove(&directory.path().join("keys")).unwrap();
        assert_eq!(format!("{key:?}"), "Key");
        assert!(Key::new(vec![0; 31]).is_none() && Key::new(vec![0; 65]).is_none());
    }
}
