//! Odd container images, made for tests and loaded into every node.

use crate::command::{cluster_script, succeed};
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// `buildah ARGUMENTS` with its store in that folder; an error unless it succeeds.
pub fn buildah(store: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("buildah");
    command.arg("--root").arg(store.join("root")).arg("--runroot").arg(store.join("run"));
    succeed(command.args(["--storage-driver", "vfs"]).args(arguments), None)
}

/// Packs a folder as the root of an image of that name, into an OCI archive.
pub fn pack(name: &str, root: &Path, archive: &Path) -> Result<()> {
    let store = tempfile::tempdir()?;
    let buildah = |arguments: &[&str]| buildah(store.path(), arguments);
    let container = buildah(&["from", "scratch"])?;
    let container = container.trim();
    buildah(&["copy", "--quiet", container, &root.to_string_lossy(), "/"])?;
    buildah(&["commit", "--quiet", container, &format!("oci-archive:{}:{name}", archive.display())])?;
    Ok(())
}

/// Packs a folder as the root of an image of that name and loads it into the nodes.
pub fn load(name: &str, root: &Path) -> Result<()> {
    let work = tempfile::tempdir()?;
    let archive = work.path().join("image.oci.tar");
    pack(name, root, &archive)?;
    load_archive(&archive)
}

/// Loads an OCI archive into the nodes.
pub fn load_archive(archive: &Path) -> Result<()> {
    succeed(cluster_script("load.sh").arg(archive), None).map(drop)
}
