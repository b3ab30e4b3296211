//! A container disk on this machine: an archive that `docker save`, `podman save` or `skopeo copy` wrote, or a folder in OCI's
//! image layout. The disk in it is the image that is uploaded.
//!
//! ```text
//!  archive (tar), folder: oci-layout, index.json ─> index ─> manifest ─┬─> layers, the uppermost first ─> the only file in /disk
//!  archive (tar): manifest.json, as docker writes it ──────────────────┘                                    └─> a copy of it
//! ```
//!
//! With the copy, an upload can go on at any byte, as that of any other file. All of an image is untrusted: its names are only
//! compared, except that a valid digest is the name of a file of the folder; each read into memory is bounded.

mod contents;
mod disk;
mod layers;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;

use contents::Contents;
use disk::Disk;

/// Where the copy is, unless `TMPDIR` says otherwise. `/tmp` is often in memory, and disks are large.
const COPIES: &str = "/var/tmp";

/// A copy of the disk of a container disk; nothing else refers to it. `None` for any other file or folder.
pub(super) fn open(path: &Path) -> anyhow::Result<Option<File>> {
    let what = || format!("container disk {}", path.display());
    let Some(contents) = Contents::open(path)? else { return Ok(None) };
    let Some(layers) = layers::of(&contents).with_context(what)? else { return Ok(None) };
    println!("Reading {}", what());
    let Disk { name, file } = disk::find(layers, &copies()).with_context(what)?;
    println!("The image is its file /disk/{}", name.escape_debug());
    Ok(Some(file))
}

fn copies() -> PathBuf {
    let named = std::env::var_os("TMPDIR").filter(|named| !named.is_empty());
    named.map_or_else(|| COPIES.into(), PathBuf::from)
}

#[cfg(test)]
mod tests;
