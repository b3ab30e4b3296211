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
use crate::disk::late_lock::{self, LateLock};
use crate::signals::Stops;

/// Offer the disk of a claim to virt-handler, until a signal ends it.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The volume on the claim.
    #[arg(long, value_name = "NAME")]
    pub volume: String,

    /// Open the disk read-only.
    #[arg(long)]
    pub read_only: bool,

    /// Open a device even if other guests write to it.
    #[arg(long)]
    pub shareable: bool,

    /// Boot of the kernel of the node from which the guest comes, if a migration made this pod.
    #[arg(long, value_name = "BOOT-ID")]
    pub source_kernel: Option<String>,

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
    let mut lock = LateLock::default();
    loop {
        tokio::select! {
            why = stops.next() => {
                tracing::info!(why, "the container is being stopped");
                return Ok(());
            }
            Some(Call { request, reply, .. }) = called.recv() => {
                // This fails if the client is gone; the descriptor is then closed.
                let _ = reply.send(answer(&args, &request, &mut lock));
            }
        }
    }
}

fn answer(args: &Args, request: &Request, lock: &mut LateLock) -> Reply {
    match request {
        Request::Take(take) if take.stream == STREAM_DISK => match find(args) {
            Ok((disk, locks_later)) => {
                tracing::info!(volume = args.volume, "disk handed over");
                if locks_later {
                    lock.take(late_lock::hold(args.claims.devices.join(&args.volume)));
                }
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

/// Returns also whether the lock of the device is the source's of the guest, so that this pod has to take it later.
fn find(args: &Args) -> Result<(OwnedFd, bool), ClaimError> {
    let find = |access| claim::find(&args.volume, access, args.size, &args.claims);
    let access = access(args);
    let has_source = || late_lock::is_this_kernel(args.source_kernel.as_deref());
    match find(access) {
        Err(ClaimError::InUse(_)) if access == Access::Write && has_source() => {
            find(Access::Share).map(|disk| (disk.file, true))
        }
        found => found.map(|disk| (disk.file, false)),
    }
}

/// The handler asks only while the launcher does not have the disk, so the lock is free then.
fn access(args: &Args) -> Access {
    match (args.read_only, args.shareable) {
        (true, _) => Access::Read,
        (false, true) => Access::Share,
        (false, false) => Access::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::loop_device::Loop;
    use barevirt_protocol::message::{Give, Take};
    use std::fs::File;
    use std::path::Path;

    fn args(root: &Path, volume: &str) -> Args {
        Args {
            volume: volume.to_owned(),
            read_only: false,
            shareable: false,
            source_kernel: None,
            size: Some(1 << 20),
            sockets: root.to_owned(),
            claims: Places {
                directories: root.join("claims"),
                devices: root.join("dev"),
                room: claim::Room::default(),
            },
        }
    }

    fn take(stream: &str) -> Request {
        Request::Take(Take { stream: stream.to_owned() })
    }

    fn asked(args: &Args, request: &Request) -> Reply {
        answer(args, request, &mut LateLock::default())
    }

    #[test]
    fn a_disk_is_handed_to_its_caller_or_its_absence_explained() {
        let root = tempfile::tempdir().unwrap();
        let args = |read_only| Args { read_only, ..args(root.path(), "data") };
        let refusal = |args, request| asked(&args, &request).unwrap_err();
        assert_eq!(
            refusal(args(false), take("disk")),
            "its claim is neither mounted nor a device of this pod"
        );
        std::fs::create_dir_all(root.path().join("claims/data")).unwrap();
        assert_eq!(refusal(args(true), take("disk")), "disk.img is not on its claim, which is read-only");
        let disk = File::from(asked(&args(false), &take("disk")).unwrap().pop().unwrap());
        assert_eq!(disk.metadata().unwrap().len(), 1 << 20);
        assert_eq!(refusal(args(false), take("serial0")), "there is no stream serial0");
        let give = Request::Give(Give { revision: 0, name: "kvm".to_owned() });
        assert_eq!(refusal(args(false), give), "nothing is wanted here");
    }

    #[test]
    fn a_device_is_opened_exclusively_unless_it_is_shared_or_read() {
        let args = args(Path::new("/"), "data");
        assert_eq!(access(&args), Access::Write);
        assert_eq!(access(&Args { shareable: true, ..args.clone() }), Access::Share);
        assert_eq!(access(&Args { read_only: true, ..args.clone() }), Access::Read);
        assert_eq!(access(&Args { read_only: true, shareable: true, ..args }), Access::Read);
    }

    #[test]
    fn a_device_is_handed_to_one_guest_at_a_time_unless_they_share_it() {
        let root = tempfile::tempdir().unwrap();
        let Some(_device) = Loop::new(&root.path().join("dev"), 1 << 20, &["first", "second"]) else {
            return;
        };
        let args = |volume| args(root.path(), volume);
        let held = asked(&args("first"), &take("disk")).unwrap();
        let refused = asked(&args("second"), &take("disk")).unwrap_err();
        assert!(refused.starts_with("get the lock of "), "{refused}");
        asked(&Args { shareable: true, ..args("second") }, &take("disk")).unwrap();
        let reads = Args { read_only: true, ..args("second") };
        assert!(asked(&reads, &take("disk")).is_err());
        // The guest's own source, on a node with this kernel, may have it.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let from = |boot: &str| find(&Args { source_kernel: Some(boot.to_owned()), ..args("second") });
        assert!(from(boot.trim()).unwrap().1);
        assert!(from("another").is_err());
        // A guest that only reads had no lock at its source: the one that is taken is that of another guest.
        assert!(find(&Args { source_kernel: Some(boot.trim().to_owned()), ..reads }).is_err());
        // The lock goes with the descriptor, in whichever process it is.
        let kept = held[0].try_clone().unwrap();
        drop(held);
        assert!(asked(&args("second"), &take("disk")).is_err());
        drop(kept);
        asked(&args("second"), &take("disk")).unwrap();
    }
}
