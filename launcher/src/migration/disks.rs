//! Disks whose contents exist only on one node. QEMU on the target exports its new, empty disks by NBD, and
//! QEMU on the source mirrors into them. As soon as a copy is complete, every write of the guest is made on
//! both sides before it is acknowledged.
//!
//! The copies end while the guest is paused, before its device state is sent. If one is not complete then,
//! the migration fails.
//!
//! A disk that the guest only reads, and that was made of the manifest or of an object, is copied in the same way: the object may
//! have changed since. Its node at the target stays read-only. QEMU there opens the file once more, to write what comes.

mod nodes;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use barevirt_machine::Image;
use barevirt_qmp::newer::{NamedBlockImage, NamedBlockNode, QueryNamedBlockNodes};
use barevirt_qmp::qapi::qmp::{self, BlockJobInfo};
use barevirt_qmp::{Deadline, Error, Qmp};
use tokio::time::{Instant, sleep};

use super::key::KEY;
use super::limits::Limits;
use super::qemu::NotBegun;
use super::relay::lead;

/// Time limit for a command of QEMU; opening a disk on the other node is the slowest one.
const COMMAND: Duration = Duration::from_secs(10);
/// Time limit for ending all copies. The guest is paused during this time.
const END: Duration = Duration::from_secs(20);
/// Interval of polling while copies end.
const LOOK: Duration = Duration::from_millis(5);

/// A disk to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalDisk {
    /// Its name in the manifest, which both sides use.
    pub name: String,
    /// QEMU's name of its block node.
    pub node: String,
    /// Whether it is on a claim: the target's may be larger.
    pub on_claim: bool,
    /// The file of a disk that the guest only reads.
    pub image: Option<PathBuf>,
}

impl LocalDisk {
    /// A disk that was plugged into the running guest.
    fn plugged(name: &str) -> Self {
        LocalDisk { name: name.to_owned(), node: Image::node_of(name), on_claim: true, image: None }
    }
}

/// The disks of a machine that migrations can copy, and the socket on which QEMU receives them.
#[derive(Debug, Clone, Default)]
pub struct Copyable {
    /// Disks that no other node has. Every migration copies them.
    pub local: Vec<LocalDisk>,
    /// Disks on claims that the guest started or came with. A migration copies those that move to other claims.
    pub claims: Vec<LocalDisk>,
    /// Disks that the guest only reads, and that were made of the manifest and of objects. A migration copies those that it has
    /// a connection for: other versions have none.
    pub images: Vec<LocalDisk>,
    /// Names of the disks that are empty until the incoming migration fills them.
    pub awaited: BTreeSet<String>,
    /// The socket.
    pub socket: PathBuf,
}

impl Copyable {
    /// The disks that the incoming migration copies to here. Disks on claims are only included if it fills
    /// them.
    #[must_use]
    pub fn incoming(&self, connections: &DiskConnections) -> LocalDisks {
        self.with(|LocalDisk { name, image, .. }| {
            self.awaited.contains(name) || (image.is_some() && connections.contains_key(name))
        })
    }

    /// The disks that are copied from here, one for each connection. A name that is none of the start's is that of a disk on
    /// a claim that was plugged in since.
    #[must_use]
    pub fn outgoing(&self, connections: &DiskConnections) -> LocalDisks {
        let mut disks = self.with(|disk| connections.contains_key(&disk.name));
        let plugged = connections.keys().filter(|name| disks.all.iter().all(|disk| disk.name != **name));
        let plugged = plugged.map(|name| LocalDisk::plugged(name)).collect::<Vec<_>>();
        disks.all.extend(plugged);
        disks
    }

    /// The socket on which QEMU takes a new connection, after one broke in post-copy.
    #[must_use]
    pub fn recovery_socket(&self) -> PathBuf {
        self.socket.with_file_name("recovery.sock")
    }

    /// The socket on which QEMU takes several connections for memory.
    #[must_use]
    pub fn memory_socket(&self) -> PathBuf {
        self.socket.with_file_name("memory.sock")
    }

    fn with(&self, moves: impl Fn(&LocalDisk) -> bool) -> LocalDisks {
        let others = self.claims.iter().chain(&self.images).filter(|disk| moves(disk));
        LocalDisks { all: self.local.iter().chain(others).cloned().collect(), socket: self.socket.clone() }
    }
}

/// The disks that one migration copies, and the socket on which QEMU receives them.
#[derive(Debug, Clone, Default)]
pub struct LocalDisks {
    /// The disks.
    pub all: Vec<LocalDisk>,
    /// The socket.
    pub socket: PathBuf,
}

/// Connections by the names of disks.
pub type DiskConnections = BTreeMap<String, OwnedFd>;

/// Progress of the copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Remaining bytes.
    pub remaining: u64,
    /// Total bytes.
    pub total: u64,
    /// Whether all copies are complete.
    pub done: bool,
}

/// QEMU's name for the copy of a disk: for the job, the node that it writes to, and the connection.
fn copy_name(index: usize) -> String {
    format!("copy-{index}")
}

impl LocalDisks {
    /// Makes QEMU on the target export its disks.
    ///
    /// # Errors
    /// If QEMU refuses, or a disk has no connection.
    pub async fn export(
        &self,
        qmp: &Qmp,
        mut connections: DiskConnections,
        tls: bool,
    ) -> Result<(), NotBegun> {
        if self.all.is_empty() {
            return Ok(());
        }
        let path = self.socket.display().to_string();
        let start = qmp::nbd_server_start {
            addr: qmp::UnixSocketAddress { path, abstract_: None, tight: None }.into(),
            max_connections: u32::try_from(self.all.len()).ok(),
            tls_creds: tls.then(|| KEY.to_owned()),
            tls_authz: None,
        };
        qmp.execute(start, Deadline::after(COMMAND)).await?;
        for (index, LocalDisk { name, node, image, .. }) in self.all.iter().enumerate() {
            let connection = connections.remove(name).ok_or_else(|| NotBegun::NoConnection(name.clone()))?;
            let copy = copy_name(index);
            if let Some(path) = image {
                qmp.execute(nodes::image(path, &copy), Deadline::after(COMMAND)).await?;
            }
            let written = if image.is_some() { &copy } else { node };
            qmp.execute(nodes::export(name, node, written), Deadline::after(COMMAND)).await?;
            connect(&self.socket, connection).await?;
        }
        Ok(())
    }

    /// Starts the copies in QEMU on the source. Returns how many bytes are copied.
    ///
    /// # Errors
    /// If QEMU refuses, or the target does not have a disk or has it in another size.
    pub async fn copy(
        &self,
        qmp: &Qmp,
        mut connections: DiskConnections,
        tls: bool,
        limits: Limits,
    ) -> Result<u64, NotBegun> {
        let known = qmp.execute(QueryNamedBlockNodes { flat: true }, Deadline::after(COMMAND)).await?;
        let key = tls.then_some(KEY);
        // Images are too small to have a share.
        let sharing = self.all.iter().filter(|disk| disk.image.is_none()).count();
        let mut bytes = 0_u64;
        for (index, disk) in self.all.iter().enumerate() {
            let (LocalDisk { name, node, on_claim, .. }, copy) = (disk, copy_name(index));
            let connection = connections.remove(name).ok_or_else(|| NotBegun::NoConnection(name.clone()))?;
            let fd = qmp::getfd { fdname: copy.clone() };
            qmp.execute_with_fds(fd, &[connection.as_fd()], Deadline::after(COMMAND)).await?;
            let NamedBlockImage { virtual_size, actual_size } = image_of(&known, node)?;
            let size = on_claim.then_some(virtual_size);
            match qmp.execute(nodes::target(name, &copy, key, size), Deadline::after(COMMAND)).await {
                Err(Error::Refused { desc, .. }) if *on_claim => {
                    let why = format!("disk {name} cannot be copied to its new claim: {desc}");
                    return Err(NotBegun::Copy(why));
                }
                added => added.map(drop)?,
            }
            let mirror = mirror(disk, copy, sharing, limits);
            qmp.execute(mirror, Deadline::after(COMMAND)).await?;
            bytes = bytes.saturating_add(size.or(actual_size).unwrap_or(virtual_size));
        }
        Ok(bytes)
    }

    /// Progress of the copies.
    ///
    /// # Errors
    /// If QEMU does not answer, or a copy has failed.
    pub async fn look(&self, qmp: &Qmp) -> Result<Copied, NotBegun> {
        let jobs = qmp.execute_list(qmp::query_block_jobs {}, Deadline::after(COMMAND)).await?;
        self.understood(&jobs).map_err(NotBegun::Copy)
    }

    /// The meaning of QEMU's answer. Pure. Jobs that are not copies are ignored.
    fn understood(&self, jobs: &[BlockJobInfo]) -> Result<Copied, String> {
        let copies = jobs.iter().filter_map(|job| match job {
            BlockJobInfo::mirror { base, .. } => Some(base),
            _ => None,
        });
        let mut seen = Copied { done: true, ..Copied::default() };
        for (index, LocalDisk { name, .. }) in self.all.iter().enumerate() {
            let job = copies.clone().find(|job| job.device == copy_name(index));
            let job = job.ok_or_else(|| format!("the copy of disk {name} has ended"))?;
            if let Some(why) = &job.error {
                return Err(format!("disk {name} cannot be copied: {why}"));
            }
            seen.total += bytes(job.len);
            seen.remaining += bytes(job.len).saturating_sub(bytes(job.offset));
            seen.done &= job.ready;
        }
        Ok(seen)
    }

    /// Ends the complete copies: the guest is paused, and both sides are identical.
    ///
    /// # Errors
    /// If one is not complete, or ends with an error.
    pub async fn finish(&self, qmp: &Qmp) -> Result<(), NotBegun> {
        if self.all.is_empty() {
            return Ok(());
        }
        if !self.look(qmp).await?.done {
            return Err(NotBegun::Copy("a disk was not copied completely".to_owned()));
        }
        for index in 0..self.all.len() {
            let end = qmp::block_job_cancel { device: copy_name(index), force: None };
            qmp.execute(end, Deadline::after(COMMAND)).await?;
        }
        for (index, LocalDisk { name, .. }) in self.all.iter().enumerate() {
            let copy = copy_name(index);
            if let Some(why) = concluded(qmp, &copy).await? {
                return Err(NotBegun::Copy(format!("disk {name} cannot be copied: {why}")));
            }
            qmp.execute(qmp::job_dismiss { id: copy.clone() }, Deadline::after(COMMAND)).await?;
            qmp.execute(qmp::blockdev_del { node_name: copy }, Deadline::after(COMMAND)).await?;
        }
        Ok(())
    }

    /// Makes QEMU on the target stop the export, and close the files of images for writing.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub async fn unexport(&self, qmp: &Qmp, by: Deadline) -> Result<(), Error> {
        if self.all.is_empty() {
            return Ok(());
        }
        unless_refused(qmp.execute(qmp::nbd_server_stop {}, by).await)?;
        // The guest reads the images by their own nodes.
        for (index, _) in self.all.iter().enumerate().filter(|(_, disk)| disk.image.is_some()) {
            let delete = qmp::blockdev_del { node_name: copy_name(index) };
            unless_refused(qmp.execute(delete, by).await)?;
        }
        Ok(())
    }

    /// Undoes everything on either side, as far as it was done.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub async fn forget(&self, qmp: &Qmp) -> Result<(), Error> {
        if self.all.is_empty() {
            return Ok(());
        }
        self.unexport(qmp, Deadline::after(COMMAND)).await?;
        for index in 0..self.all.len() {
            let copy = copy_name(index);
            let end = qmp::block_job_cancel { device: copy.clone(), force: Some(true) };
            unless_refused(qmp.execute(end, Deadline::after(COMMAND)).await)?;
            match concluded(qmp, &copy).await {
                Ok(_) | Err(NotBegun::Copy(_)) => {}
                Err(NotBegun::Monitor(error)) => return Err(error),
                Err(
                    NotBegun::Key(_)
                    | NotBegun::NoConnection(_)
                    | NotBegun::Connect(_)
                    | NotBegun::NoChannels,
                ) => {}
            }
            let dismiss = qmp::job_dismiss { id: copy.clone() };
            unless_refused(qmp.execute(dismiss, Deadline::after(COMMAND)).await)?;
            let delete = qmp::blockdev_del { node_name: copy };
            unless_refused(qmp.execute(delete, Deadline::after(COMMAND)).await)?;
        }
        Ok(())
    }
}

/// The command that copies a disk to the node of this name. It is one of so many copies.
fn mirror(disk: &LocalDisk, copy: String, copies: usize, limits: Limits) -> qmp::blockdev_mirror {
    // The target has exactly the source's image beneath a disk of the node, as its pod names that by its digest. So only
    // what the guest wrote is copied. A claim is copied whole. Without an image beneath, `top` is the whole disk, too.
    let sync = if disk.on_claim { qmp::MirrorSyncMode::full } else { qmp::MirrorSyncMode::top };
    qmp::blockdev_mirror {
        job_id: Some(copy.clone()),
        device: disk.node.clone(),
        target: copy,
        sync,
        copy_mode: Some(qmp::MirrorCopyMode::write_blocking),
        speed: Some(i64::try_from(limits.of_each_copy(copies)).unwrap_or(i64::MAX)),
        auto_dismiss: Some(false),
        on_source_error: Some(qmp::BlockdevOnError::report),
        on_target_error: Some(qmp::BlockdevOnError::report),
        auto_finalize: None,
        buf_size: None,
        filter_node_name: None,
        granularity: None,
        replaces: None,
    }
}

/// Bytes as QEMU counts them.
fn bytes(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}

/// The image of a node.
fn image_of(nodes: &[NamedBlockNode], node: &str) -> Result<NamedBlockImage, NotBegun> {
    let found = nodes.iter().find(|found| found.node_name.as_deref() == Some(node));
    let image = found.map(|found| found.image.clone());
    image.ok_or_else(|| NotBegun::Copy(format!("QEMU does not tell the size of {node}")))
}

/// Waits until a job has ended or does not exist; returns why it failed, if it did.
async fn concluded(qmp: &Qmp, id: &str) -> Result<Option<String>, NotBegun> {
    let ends = Instant::now() + END;
    while Instant::now() < ends {
        let jobs = qmp.execute_list(qmp::query_jobs {}, Deadline::after(COMMAND)).await?;
        let Some(job) = jobs.into_iter().find(|job| job.id == id) else {
            return Ok(None);
        };
        if job.status == qmp::JobStatus::concluded {
            return Ok(job.error);
        }
        sleep(LOOK).await;
    }
    Err(NotBegun::Copy("the copy of a disk does not complete".to_owned()))
}

/// An error answer means that the object was never made.
pub(super) fn unless_refused<T>(answer: Result<T, Error>) -> Result<(), Error> {
    match answer {
        Ok(_) | Err(Error::Refused { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Connects a connection from the source to the socket on which QEMU listens.
pub(super) async fn connect(socket: &Path, outside: OwnedFd) -> Result<(), NotBegun> {
    lead(socket, outside).await.map_err(NotBegun::Connect)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn all_copies_are_to_be_there_and_complete() {
        let disk = |name: &str| LocalDisk {
            name: name.to_owned(),
            node: format!("disk-{name}"),
            on_claim: false,
            image: None,
        };
        let disks = LocalDisks { all: vec![disk("a"), disk("b")], socket: PathBuf::new() };
        let job = |index: u32, ready: bool| {
            json!({"type": "mirror", "device": format!("copy-{index}"), "len": 10, "offset": 4, "ready": ready, "speed": 0,
                "busy": true, "paused": false, "io-status": "ok", "status": "ready", "auto-finalize": true,
                "auto-dismiss": false, "actively-synced": ready})
        };
        let understood = |jobs: Value| disks.understood(&serde_json::from_value::<Vec<_>>(jobs).unwrap());
        let seen = understood(json!([job(0, true), job(1, false), job(7, false)])).unwrap();
        assert_eq!(seen, Copied { remaining: 12, total: 20, done: false });
        assert!(understood(json!([job(0, true), job(1, true)])).unwrap().done);
        assert_eq!(understood(json!([job(0, true)])).unwrap_err(), "the copy of disk b has ended");
        let mut failed = job(1, false);
        failed["error"] = json!("No space left on device");
        let why = understood(json!([job(0, true), failed])).unwrap_err();
        assert_eq!(why, "disk b cannot be copied: No space left on device");
    }

    #[test]
    fn claims_are_copied_only_where_they_move_and_images_where_both_versions_can() {
        let disk = |name: &str, on_claim, image: Option<&str>| LocalDisk {
            name: name.to_owned(),
            node: name.to_owned(),
            on_claim,
            image: image.map(PathBuf::from),
        };
        let copyable = Copyable {
            local: vec![disk("root", false, None)],
            claims: vec![disk("data", true, None), disk("more", true, None)],
            images: vec![disk("seed", false, Some("/seed")), disk("settings", false, Some("/settings"))],
            awaited: ["more", "settings"].map(str::to_owned).into(),
            socket: PathBuf::new(),
        };
        let names =
            |disks: LocalDisks| disks.all.into_iter().map(|disk| disk.name).collect::<Vec<_>>().join(" ");
        let connections = |names: &[&str]| -> DiskConnections {
            let connection = || OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0);
            names.iter().map(|name| ((*name).to_owned(), connection())).collect()
        };
        // An image without contents is never left out, so a migration without its connection fails.
        assert_eq!(names(copyable.incoming(&connections(&[]))), "root more settings");
        assert_eq!(
            names(copyable.incoming(&connections(&["root", "data", "seed"]))),
            "root more seed settings"
        );
        assert_eq!(names(copyable.outgoing(&connections(&[]))), "root");
        let found = copyable.outgoing(&connections(&["data", "root", "other", "seed"]));
        let plugged = found.all.last().unwrap();
        assert_eq!((plugged.node.as_str(), plugged.on_claim), ("disk-other", true));
        assert_eq!(names(found), "root data seed other");
    }

    #[test]
    fn all_copies_together_have_the_bandwidth_of_one_migration() {
        let mirror = |on_claim, copies, bandwidth| {
            let (name, node) = ("data".to_owned(), "disk-data".to_owned());
            let disk = LocalDisk { name, node, on_claim, image: None };
            let limits = Limits {
                bandwidth,
                downtime: Duration::ZERO,
                auto_converge: false,
                completion: None,
                completion_per_gib: Duration::ZERO,
                progress: None,
                may_pause: false,
                post_copy: false,
                tuning: None,
            };
            serde_json::to_value(mirror(&disk, "copy-0".to_owned(), copies, limits)).unwrap()
        };
        let speed = |copies, bandwidth| mirror(false, copies, bandwidth)["speed"].clone();
        assert_eq!((speed(1, Some(64 << 20)), speed(4, Some(64 << 20))), (json!(64 << 20), json!(16 << 20)));
        // QEMU takes 0 for no limit.
        assert_eq!((speed(3, Some(2)), speed(3, Some(0)), speed(3, None)), (json!(1), json!(0), json!(0)));
        let node = json!({"job-id": "copy-0", "device": "disk-data", "target": "copy-0", "sync": "top",
            "copy-mode": "write-blocking", "speed": 0, "auto-dismiss": false, "on-source-error": "report",
            "on-target-error": "report"});
        assert_eq!(mirror(false, 1, None), node);
        assert_eq!(mirror(true, 1, None)["sync"], "full");
    }
}
