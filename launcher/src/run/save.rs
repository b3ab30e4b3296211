//! Saves a guest's disk as one image after the guest has ended. A QEMU without a machine copies it, so that
//! no other program is needed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Options, Qmp};
use serde_json::{Value, json};

use super::args::DiskPath;
use crate::bare_qemu::{Accelerator, BareQemu};
use crate::disk::qcow2;
use crate::disk::{Format, Image};

/// Time limit of one command; the copy itself is a job whose state is queried.
const COMMAND: Duration = Duration::from_secs(60);
/// Interval of these queries.
const ASKED_EVERY: Duration = Duration::from_millis(50);

/// One disk to save.
#[derive(Debug)]
pub struct Save {
    /// The volume.
    pub volume: String,
    /// The base image, and its format.
    pub base: (PathBuf, Image),
    /// The overlay that the guest wrote.
    pub overlay: PathBuf,
    /// The new image.
    pub to: PathBuf,
}

/// The disks to save, when all paths are known.
///
/// # Errors
/// Names a volume that has no such image.
pub fn plan(
    wanted: &[DiskPath],
    bases: &[(String, PathBuf, Image)],
    directory: &Path,
) -> anyhow::Result<Vec<Save>> {
    let one = |disk: &DiskPath| {
        let DiskPath { volume, path } = disk;
        let Some((_, base, image)) = bases.iter().find(|(name, ..)| name == volume) else {
            bail!("--save {volume}=...: the manifest has no volume of that name with an image");
        };
        if path.exists() {
            bail!("--save {volume}={}: there is such a file, which is not overwritten", path.display());
        }
        let overlay = directory.join(format!("{volume}.overlay.qcow2"));
        Ok(Save { volume: volume.clone(), base: (base.clone(), *image), overlay, to: path.clone() })
    };
    wanted.iter().map(one).collect()
}

/// Copies the disk. The new file is complete, or does not exist.
///
/// # Errors
/// Names the volume.
pub async fn save(qemu: &Path, save: &Save) -> anyhow::Result<()> {
    let part = save.to.with_added_extension("part");
    let _ = std::fs::remove_file(&part);
    let copied = copy(qemu, save, &part).await;
    let kept = copied.and_then(|()| {
        std::fs::rename(&part, &save.to).with_context(|| format!("cannot write {}", save.to.display()))
    });
    if kept.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    kept.with_context(|| format!("cannot save volume {}", save.volume))
}

async fn copy(qemu: &Path, save: &Save, to: &Path) -> anyhow::Result<()> {
    let (base, image) = &save.base;
    qcow2::create(to, image.virtual_size)?;
    let (bare, monitor) = BareQemu::start(qemu, Accelerator::Tcg)?;
    let copied = job(monitor, base, *image, &save.overlay, to).await;
    let said = bare.end().await;
    copied.with_context(|| format!("QEMU: {said}"))
}

async fn job(
    monitor: tokio::net::UnixStream,
    base: &Path,
    image: Image,
    overlay: &Path,
    to: &Path,
) -> anyhow::Result<()> {
    let (qmp, _events) = Qmp::open(monitor, Options::default(), Deadline::after(COMMAND)).await?;
    let file = |path: &Path, read_only: bool| json!({"driver": "file", "filename": path, "read-only": read_only, "discard": "unmap"});
    let format = match image.format {
        Format::Raw => "raw",
        Format::Qcow2 => "qcow2",
    };
    let mut below =
        json!({"driver": format, "node-name": "base", "read-only": true, "file": file(base, true)});
    if image.format == Format::Qcow2 {
        below["backing"] = Value::Null;
    }
    let written = json!({"driver": "qcow2", "node-name": "written", "read-only": true, "file": file(overlay, true),
        "backing": "base"});
    let whole =
        json!({"driver": "qcow2", "node-name": "whole", "file": file(to, false), "backing": Value::Null});
    for node in [below, written, whole] {
        qmp.execute_raw("blockdev-add", node, Deadline::after(COMMAND)).await?;
    }
    qmp.execute(backup(), Deadline::after(COMMAND)).await?;
    loop {
        let jobs = qmp.execute(qmp::query_jobs {}, Deadline::after(COMMAND)).await?;
        if let Some(job) = jobs.first().filter(|job| job.status == qmp::JobStatus::concluded) {
            if let Some(error) = &job.error {
                bail!("{error}");
            }
            break;
        }
        tokio::time::sleep(ASKED_EVERY).await;
    }
    qmp.execute(qmp::job_dismiss { id: "save".to_owned() }, Deadline::after(COMMAND)).await?;
    // The image is closed, and so complete, before this QEMU ends.
    qmp.execute(qmp::blockdev_del { node_name: "whole".to_owned() }, Deadline::after(COMMAND)).await?;
    Ok(())
}

/// The job that copies the overlay and its base into the new image.
fn backup() -> qmp::blockdev_backup {
    qmp::blockdev_backup(qmp::BlockdevBackup {
        base: qmp::BackupCommon {
            job_id: Some("save".to_owned()),
            device: "written".to_owned(),
            sync: qmp::MirrorSyncMode::full,
            // Otherwise the job would disappear together with its error.
            auto_dismiss: Some(false),
            auto_finalize: None,
            bitmap: None,
            bitmap_mode: None,
            compress: None,
            discard_source: None,
            filter_node_name: None,
            on_source_error: None,
            on_target_error: None,
            speed: None,
            x_perf: None,
        },
        target: "whole".to_owned(),
    })
}
