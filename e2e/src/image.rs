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

/// Packs a folder as the root of an image of that name and loads it into the nodes.
pub fn load(name: &str, root: &Path) -> Result<()> {
    let work = tempfile::tempdir()?;
    let archive = work.path().join("image.oci.tar");
    let buildah = |arguments: &[&str]| buildah(work.path(), arguments);
    let container = buildah(&["from", "scratch"])?;
    let container = container.trim();
    buildah(&["copy", "--quiet", container, &root.to_string_lossy(), "/"])?;
    buildah(&["commit", "--quiet", container, &format!("oci-archive:{}:{name}", archive.display())])?;
    succeed(cluster_script("load.sh").arg(&archive), None)?;
    Ok(())
}
