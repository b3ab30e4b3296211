//! Odd container images, made for tests and loaded into every node.

use crate::command::{cluster_script, succeed};
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// Packs a folder as the root of an image of that name and loads it into the nodes.
pub fn load(name: &str, root: &Path) -> Result<()> {
    let work = tempfile::tempdir()?;
    let archive = work.path().join("image.oci.tar");
    let buildah = |arguments: &[&str]| {
        let mut command = Command::new("buildah");
        command.arg("--root").arg(work.path().join("root")).arg("--runroot").arg(work.path().join("run"));
        succeed(command.args(["--storage-driver", "vfs"]).args(arguments), None)
    };
    let container = buildah(&["from", "scratch"])?;
    let container = container.trim();
    buildah(&["copy", "--quiet", container, &root.to_string_lossy(), "/"])?;
    buildah(&["commit", "--quiet", container, &format!("oci-archive:{}:{name}", archive.display())])?;
    succeed(cluster_script("load.sh").arg(&archive), None)?;
    Ok(())
}
