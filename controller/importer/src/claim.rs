//! The claim by its contents: one disk, or the files of an archive.

use crate::archive::Tree;
use crate::failure::{Failure, joined};
use crate::target::{Places, Target};
use barevirt_import_job::{Content, Job};
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// What a job says about its claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    content: Content,
    size: u64,
    overhead: u16,
    preallocation: bool,
}

impl Settings {
    pub(crate) fn of(job: &Job) -> Self {
        let Job { source: _, content, size, overhead, preallocation, owner: _ } = *job;
        Settings { content, size, overhead, preallocation }
    }
}

/// A claim that is being filled.
#[derive(Clone, Debug)]
pub(crate) enum Claim {
    /// With a disk.
    Disk(Arc<Target>),
    /// With the files of an archive.
    Tree(Arc<Tree>),
}

impl Claim {
    /// Prepares the claim. What an earlier try has left is removed.
    pub(crate) fn open(places: &Places, settings: Settings) -> Result<Self, Failure> {
        let Settings { content, size, overhead, preallocation } = settings;
        match content {
            Content::Disk => Target::open(places, size, overhead, preallocation)
                .map(|target| Claim::Disk(Arc::new(target))),
            // All of its bytes are written, so that none has to be reserved.
            Content::Archive => Tree::open(places, size, overhead).map(|tree| Claim::Tree(Arc::new(tree))),
        }
    }

    /// Gives complete contents their names; returns their size in bytes.
    pub(crate) async fn finish(&self) -> Result<u64, Failure> {
        let claim = self.clone();
        joined(spawn_blocking(move || match claim {
            Claim::Disk(target) => target.finish(),
            Claim::Tree(tree) => tree.finish().map(|()| tree.bytes()),
        }))
        .await
    }

    /// Removes incomplete contents.
    pub(crate) async fn abandon(&self) -> Result<(), Failure> {
        let claim = self.clone();
        joined(spawn_blocking(move || {
            match claim {
                Claim::Disk(target) => target.abandon(),
                Claim::Tree(tree) => tree.abandon(),
            }
            Ok(())
        }))
        .await
    }
}
