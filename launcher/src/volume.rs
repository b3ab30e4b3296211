//! `virt-launcher volume`: the program of an attachment pod. It opens the disk of its pod's claim, and offers
//! the descriptor on the descriptor socket to the node's handler, which passes it to the launcher of the
//! guest.
//!
//! In this way a disk gets into a running pod without a mount, and without any privilege except that of the
//! pod that was admitted with the claim. The pod lives until the guest has released the disk, and until then
//! the kubelet keeps the claim mounted.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::Context as _;
use barevirt_protocol::descriptors::{self, Call, Reply};
use barevirt_protocol::message::Request;
use barevirt_protocol::names::{DESCRIPTOR_SOCKET, SOCKETS_DIRECTORY, STREAM_DISK};
use barevirt_protocol::seqpacket::PacketListener;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use crate::disk::claim::{self, Access, ClaimError, Places};
use crate::signals::Stops;

/// Offer the disk of a claim to virt-handler, until told to end.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The volume on the claim.
    #[arg(long, value_name = "NAME")]
    pub volume: String,

    /// Open the disk read-only.
    #[arg(long)]
    pub read_only: bool,

    /// Bytes of a new disk, if the claim has none yet.
    #[arg(long, value_name = "BYTES")]
    pub size: Option<u64>,

    /// Directory of the socket.
    #[arg(long, value_name = "DIR", default_value = SOCKETS_DIRECTORY)]
    pub sockets: PathBuf,

    /// Paths of claims.
    #[command(flatten)]
    pub claims: Places,
}

/// Offers the disk. Must run within a `LocalSet`.
///
/// # Errors
/// If the pod is not set up as expected.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut stops = Stops::new().context("cannot wait for signals")?;
    let listener = PacketListener::bind(&args.sockets.join(DESCRIPTOR_SOCKET))
        .with_context(|| format!("cannot listen in {}", args.sockets.display()))?;
    let (calls, mut called) = mpsc::channel(8);
    let allowed = vec![0, nix::unistd::getuid().as_raw()];
    spawn_local(descriptors::serve(listener, allowed, calls));
    tracing::info!(volume = args.volume, "disk offered");
    loop {
        tokio::select! {
            why = stops.next() => {
                tracing::info!(why, "told to end");
                return Ok(());
            }
            Some(Call { request, reply, .. }) = called.recv() => {
                // This fails if the client is gone; the descriptor is then closed.
                let _ = reply.send(answer(&args, &request));
            }
        }
    }
}

fn answer(args: &Args, request: &Request) -> Reply {
    match request {
        Request::Take(take) if take.stream == STREAM_DISK => match find(args) {
            Ok(disk) => {
                tracing::info!(volume = args.volume, "disk handed over");
                Ok(vec![disk])
            }
            Err(error) => {
                tracing::warn!(volume = args.volume, %error, "there is no disk to hand over");
                Err(error.to_string())
            }
        },
        Request::Take(take) => Err(format!("there is no stream {}", take.stream)),
        Request::Give(_) => Err("nothing is wanted here".to_owned()),
    }
}

fn find(args: &Args) -> Result<OwnedFd, ClaimError> {
    // The handler may ask again while the guest uses the disk.
    let access = if args.read_only { Access::Read } else { Access::Share };
    claim::find(&args.volume, access, args.size, &args.claims).map(|disk| disk.file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_protocol::message::{Give, Take};
    use std::fs::File;

    #[test]
    fn a_disk_is_handed_to_its_caller_or_its_absence_explained() {
        let root = tempfile::tempdir().unwrap();
        let claims = root.path().join("claims");
        let args = |read_only| Args {
            volume: "data".to_owned(),
            read_only,
            size: Some(1 << 20),
            sockets: root.path().to_owned(),
            claims: Places {
                directories: claims.clone(),
                devices: root.path().join("dev"),
                room: claim::Room::default(),
            },
        };
        let take = |stream: &str| Request::Take(Take { stream: stream.to_owned() });
        let refusal = |args, request| answer(&args, &request).unwrap_err();
        assert_eq!(
            refusal(args(false), take("disk")),
            "its claim is neither mounted nor a device of this pod"
        );
        std::fs::create_dir_all(claims.join("data")).unwrap();
        assert_eq!(refusal(args(true), take("disk")), "disk.img is not on its claim, which is read-only");
        let disk = File::from(answer(&args(false), &take("disk")).unwrap().pop().unwrap());
        assert_eq!(disk.metadata().unwrap().len(), 1 << 20);
        assert_eq!(refusal(args(false), take("serial0")), "there is no stream serial0");
        let give = Request::Give(Give { revision: 0, name: "kvm".to_owned() });
        assert_eq!(refusal(args(false), give), "nothing is wanted here");
    }
}
