//! Sizes of the images, compressed, as they are pulled.

use super::{Figure, Figures};
use crate::command::repository;
use anyhow::{Context, Result};
use std::fs;

/// The launcher's image, compressed, in megabytes.
const LAUNCHER_BUDGET: f64 = 30.0;

/// One figure for each archive in `target/images`.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let folder = repository().join("target/images");
    for entry in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".oci.tar")) else { continue };
        #[expect(clippy::cast_precision_loss, reason = "no image has 2^53 bytes")]
        let megabytes = entry.metadata()?.len() as f64 / 1e6;
        let mut figure = Figure::plain(megabytes, "MB", 1);
        if name == "virt-launcher" {
            figure = figure.within("at most 30 MB", |figure| figure.value <= LAUNCHER_BUDGET);
        }
        let short = name.strip_prefix("virt-").unwrap_or(name).replace('-', "_");
        figures.insert(format!("image_{short}_mb"), figure);
    }
    Ok(())
}
