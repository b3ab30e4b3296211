//! Connections to the containers of the pod that work for the guest: virtiofsd and passt.

use std::os::fd::OwnedFd;

use tokio::time::Instant;

use super::shared::Pod;
use super::wanted::Wanted;
use super::{filesystems, passt};
use crate::guest_end::GuestEnd;

/// All these connections. If the guest is never started, the containers end when the connections are closed.
#[derive(Debug)]
pub(super) struct SideContainers {
    /// Connections to the servers of directories, by the names of their volumes.
    pub directories: Vec<(String, OwnedFd)>,
    /// The connection to passt.
    pub passt: Option<OwnedFd>,
}

impl SideContainers {
    /// Waits for all containers, and connects.
    ///
    /// # Errors
    /// The end of the guest if a container does not listen by the deadline.
    pub(super) async fn connect(
        pod: &Pod,
        wanted: &Wanted,
        deadline: Instant,
        say: &impl Fn(String),
    ) -> Result<Self, GuestEnd> {
        let directories = filesystems::connect(&wanted.vmi, &pod.args.filesystems, deadline, say).await?;
        let passt = passt::connect(&wanted.vmi, &pod.args.passt, deadline, say).await?;
        Ok(Self { directories, passt })
    }

    /// Starts passt, which waits until the pod's network is prepared.
    ///
    /// # Errors
    /// The end of the guest if passt does not work by the deadline.
    pub(super) async fn begin(
        self,
        wanted: &Wanted,
        deadline: Instant,
        say: &impl Fn(String),
    ) -> Result<Self, GuestEnd> {
        let Self { directories, passt } = self;
        let passt = match (passt, wanted.joined_by_passt()) {
            (Some(connection), Some(facts)) => {
                Some(passt::begin(connection, &facts.mac, deadline, say).await?)
            }
            _ => None,
        };
        Ok(Self { directories, passt })
    }
}
