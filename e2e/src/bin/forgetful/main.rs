//! Storage with a write cache, for tests of what a loss of power leaves: a FUSE file system over a folder. What is written to a
//! file stays in this program's memory until a process syncs the file, and is lost when the program is killed. Closing a file
//! stores nothing.
//!
//!     forgetful FOLDER MOUNTPOINT      serves the folder there until it is unmounted
//!
//! New files and changed lengths are stored at once. There are no links, and nothing is renamed or deleted: a claim with a disk
//! needs none of that.

mod files;
mod unsynced;

use anyhow::{Context, Result};
use clap::Parser;
use files::Files;
use fuser::{Config, MountOption, SessionACL};
use std::path::PathBuf;

/// Serves a folder, and forgets what is written there and not synced.
#[derive(Parser)]
struct Arguments {
    /// Where it is stored.
    folder: PathBuf,
    /// Where it is mounted.
    mountpoint: PathBuf,
}

fn main() -> Result<()> {
    let Arguments { folder, mountpoint } = Arguments::parse();
    let folder = folder.canonicalize().with_context(|| format!("find {}", folder.display()))?;
    let mut options = Config::default();
    options.mount_options = vec![MountOption::FSName("forgetful".to_owned())];
    // QEMU is not root.
    options.acl = SessionACL::All;
    fuser::mount(Files::of(folder), &mountpoint, &options)
        .with_context(|| format!("serve {}", mountpoint.display()))
}
