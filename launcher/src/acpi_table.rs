//! ACPI tables from the manifest's secrets, which bind a licence to a machine.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use barevirt_api::firmware::AcpiTable;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::object_disk::{self, ObjectDiskError};

/// Largest table, in bytes. The largest usual one, SLIC, has 374.
const LARGEST: usize = 64 << 10;
/// Bytes of the header that every table begins with (ACPI specification, 5.2.6): signature, length, and others.
const HEADER: usize = 36;

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AcpiTableError {
    /// Its secret cannot be read.
    #[error(transparent)]
    Secret(#[from] ObjectDiskError),
    /// The secret lacks the key.
    #[error("the secret of volume {volume} has no {key}")]
    NoKey {
        /// The volume.
        volume: String,
        /// The key that it should have.
        key: &'static str,
    },
    /// The content is not a table of this kind.
    #[error("{key} of volume {volume} is not an ACPI table {signature}: {why}")]
    NoTable {
        /// The volume.
        volume: String,
        /// The key.
        key: &'static str,
        /// The expected signature.
        signature: &'static str,
        /// The fault.
        why: String,
    },
    /// It cannot be passed on.
    #[error("write it: {0}")]
    Write(#[from] io::Error),
}

/// Opens a table for reading. `objects` is the directory below which the kubelet has mounted the objects of
/// volumes.
///
/// # Errors
/// If the secret has no valid table.
pub fn open(table: &AcpiTable<'_>, objects: &Path) -> Result<OwnedFd, AcpiTableError> {
    let AcpiTable { volume, key, signature, .. } = *table;
    let name = || volume.name.to_owned();
    let files = object_disk::files(&volume, objects)?;
    let file = files.into_iter().find(|file| file.path == key);
    let contents = file.ok_or_else(|| AcpiTableError::NoKey { volume: name(), key })?.contents;
    check(&contents, signature).map_err(|why| AcpiTableError::NoTable {
        volume: name(),
        key,
        signature,
        why,
    })?;
    let memory = memfd_create(c"acpi-table", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?;
    std::fs::File::from(memory.try_clone()?).write_all_at(&contents, 0)?;
    Ok(memory)
}

fn check(contents: &[u8], signature: &str) -> Result<(), String> {
    let length = contents.get(4..8).and_then(|length| length.try_into().ok()).map(u32::from_le_bytes);
    match length {
        _ if contents.len() < HEADER => {
            Err(format!("it has {} bytes, a header has {HEADER}", contents.len()))
        }
        _ if contents.len() > LARGEST => Err(format!("it has more than {LARGEST} bytes")),
        _ if !contents.starts_with(signature.as_bytes()) => Err("it begins otherwise".to_owned()),
        Some(said) if usize::try_from(said) != Ok(contents.len()) => {
            Err(format!("it says that it has {said} bytes, and has {}", contents.len()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_what_it_says() {
        let table = |signature: &str, said: u32, bytes: usize| {
            let mut table = [signature.as_bytes(), &said.to_le_bytes()].concat();
            table.resize(bytes, 0);
            check(&table, "SLIC")
        };
        assert_eq!(table("SLIC", 36, 36), Ok(()));
        assert_eq!(table("SLIC", 374, 374), Ok(()));
        for (wrong, why) in [
            (table("SLIC", 8, 8), "it has 8 bytes, a header has 36"),
            (table("MSDM", 36, 36), "it begins otherwise"),
            (table("SLIC", 36, 374), "it says that it has 36 bytes, and has 374"),
            (table("SLIC", 65537, 65537), "it has more than 65536 bytes"),
            (check(&[], "SLIC"), "it has 0 bytes, a header has 36"),
        ] {
            assert_eq!(wrong, Err(why.to_owned()));
        }
    }
}
