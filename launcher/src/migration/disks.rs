//! Disks whose contents exist only on one node. QEMU on the target exports its new, empty disks by NBD, and
//! QEMU on the source mirrors into them. As soon as a copy is complete, every write of the guest is made on
//! both sides before it is acknowledged.
//!
//! The copies end while the guest is paused, before its device state is sent. If one is not complete then,
//! the migration fails.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use super::limits::Limits;
use super::qemu::{KEY, NotBegun};
use super::relay::relay;

/// Time limit for a command of QEMU; opening a disk on the other node is the slowest one.
const COMMAND: Duration = Duration::from_secs(10);
/// Time limit for ending all copies. The guest is paused during this time.
const END: Duration = Duration::from_secs(20);
/// Interval of polling while copies end.
const LOOK: Duration = Duration::from_millis(5);
/// QEMU can limit a disk to multiples of this size, in bytes.
const SECTOR: u64 = 512;

/// A disk to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalDisk {
    /// Its name in the manifest, which both sides use.
    pub name: String,
    /// QEMU's name of its block node.
    pub node: String,
    /// Whether it is on a claim: the target's may be larger.
    pub on_claim: bool,
}

/// The disks of a machine that migrations can copy, and the socket on which QEMU receives them.
#[derive(Debug, Clone, Default)]
pub struct Copyable {
    /// Disks that no other node has. Every migration copies them.
    pub local: Vec<LocalDisk>,
    /// Disks on claims. A migration copies those that move to other claims.
    pub claims: Vec<LocalDisk>,
    /// Names of the disks on claims that the incoming migration fills.
    pub awaited: BTreeSet<String>,
    /// The socket.
    pub socket: PathBuf,
}

impl Copyable {
    /// The disks that the incoming migration copies to here. Disks on claims are only included if it fills
    /// them.
    #[must_use]
    pub fn incoming(&self) -> LocalDisks {
        self.with(|name| self.awaited.contains(name))
    }

    /// The disks that are copied from here, one for each connection.
    #[must_use]
    pub fn outgoing(&self, connections: &DiskConnections) -> LocalDisks {
        self.with(|name| connections.contains_key(name))
    }

    /// The socket on which QEMU takes a new connection, after one broke in post-copy.
    #[must_use]
    pub fn recovery_socket(&self) -> PathBuf {
        self.socket.with_file_name("recovery.sock")
    }

    fn with(&self, moves: impl Fn(&str) -> bool) -> LocalDisks {
        let claims = self.claims.iter().filter(|disk| moves(&disk.name));
        LocalDisks { all: self.local.iter().chain(claims).cloned().collect(), socket: self.socket.clone() }
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
        let mut start = json!({
            "addr": {"type": "unix", "data": {"path": path}}, "max-connections": self.all.len(),
        });
        if tls {
            start["tls-creds"] = json!(KEY);
        }
        qmp.execute_raw("nbd-server-start", start, Deadline::after(COMMAND)).await?;
        for LocalDisk { name, node, .. } in &self.all {
            let connection = connections.remove(name).ok_or_else(|| NotBegun::NoConnection(name.clone()))?;
            let export =
                json!({"type": "nbd", "id": node, "node-name": node, "name": name, "writable": true});
            qmp.execute_raw("block-export-add", export, Deadline::after(COMMAND)).await?;
            connect(&self.socket, connection).await?;
        }
        Ok(())
    }

    /// Starts the copies in QEMU on the source.
    ///
    /// # Errors
    /// If QEMU refuses, or the target does not have a disk or has it in another size.
    pub async fn copy(
        &self,
        qmp: &Qmp,
        mut connections: DiskConnections,
        tls: bool,
        limits: Limits,
    ) -> Result<(), NotBegun> {
        for (index, LocalDisk { name, node, on_claim }) in self.all.iter().enumerate() {
            let copy = copy_name(index);
            let connection = connections.remove(name).ok_or_else(|| NotBegun::NoConnection(name.clone()))?;
            let fd = qmp::getfd { fdname: copy.clone() };
            qmp.execute_with_fds(fd, &[connection.as_fd()], Deadline::after(COMMAND)).await?;
            let mut target = json!({"driver": "nbd", "export": name, "server": {"type": "fd", "str": copy}});
            if tls {
                target["tls-creds"] = json!(KEY);
                target["tls-hostname"] = json!("migration");
            }
            if *on_claim {
                target = first(size_of(qmp, node).await?, target);
            }
            target["node-name"] = json!(copy);
            match qmp.execute_raw("blockdev-add", target, Deadline::after(COMMAND)).await {
                Err(Error::Refused { desc, .. }) if *on_claim => {
                    let why = format!("disk {name} cannot be copied to its new claim: {desc}");
                    return Err(NotBegun::Copy(why));
                }
                added => added.map(drop)?,
            }
            // Both sides have the same image beneath a disk of the node, so only what the guest wrote is copied. A
            // claim is copied whole. Without an image beneath, `top` is the whole disk, too.
            let sync = if *on_claim { "full" } else { "top" };
            let mirror = json!({
                "job-id": copy, "device": node, "target": copy, "sync": sync, "copy-mode": "write-blocking",
                "speed": limits.bandwidth.unwrap_or_default(), "auto-dismiss": false,
                "on-source-error": "report", "on-target-error": "report",
            });
            qmp.execute_raw("blockdev-mirror", mirror, Deadline::after(COMMAND)).await?;
        }
        Ok(())
    }

    /// Progress of the copies.
    ///
    /// # Errors
    /// If QEMU does not answer, or a copy has failed.
    pub async fn look(&self, qmp: &Qmp) -> Result<Copied, NotBegun> {
        let jobs = qmp.execute_raw("query-block-jobs", Value::Null, Deadline::after(COMMAND)).await?;
        self.understood(&jobs).map_err(NotBegun::Copy)
    }

    /// Parses the answer to `query-block-jobs`. Pure. Jobs that are not copies are ignored.
    fn understood(&self, jobs: &Value) -> Result<Copied, String> {
        let mut seen = Copied { done: true, ..Copied::default() };
        for (index, LocalDisk { name, .. }) in self.all.iter().enumerate() {
            let job = jobs.as_array().into_iter().flatten().find(|job| job["device"] == copy_name(index));
            let job = job.ok_or_else(|| format!("the copy of disk {name} has ended"))?;
            if let Some(why) = job["error"].as_str() {
                return Err(format!("disk {name} cannot be copied: {why}"));
            }
            let number = |field: &str| job[field].as_u64().unwrap_or_default();
            seen.total += number("len");
            seen.remaining += number("len").saturating_sub(number("offset"));
            seen.done &= job["ready"] == true;
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
            let end = json!({"device": copy_name(index)});
            qmp.execute_raw("block-job-cancel", end, Deadline::after(COMMAND)).await?;
        }
        for (index, LocalDisk { name, .. }) in self.all.iter().enumerate() {
            let copy = copy_name(index);
            if let Some(why) = concluded(qmp, &copy).await? {
                return Err(NotBegun::Copy(format!("disk {name} cannot be copied: {why}")));
            }
            qmp.execute_raw("job-dismiss", json!({"id": copy}), Deadline::after(COMMAND)).await?;
            qmp.execute_raw("blockdev-del", json!({"node-name": copy}), Deadline::after(COMMAND)).await?;
        }
        Ok(())
    }

    /// Makes QEMU on the target stop the export.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub async fn unexport(&self, qmp: &Qmp) -> Result<(), Error> {
        if self.all.is_empty() {
            return Ok(());
        }
        unless_refused(qmp.execute_raw("nbd-server-stop", Value::Null, Deadline::after(COMMAND)).await)
    }

    /// Undoes everything on either side, as far as it was done.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub async fn forget(&self, qmp: &Qmp) -> Result<(), Error> {
        if self.all.is_empty() {
            return Ok(());
        }
        self.unexport(qmp).await?;
        for index in 0..self.all.len() {
            let copy = copy_name(index);
            let end = json!({"device": copy, "force": true});
            unless_refused(qmp.execute_raw("block-job-cancel", end, Deadline::after(COMMAND)).await)?;
            match concluded(qmp, &copy).await {
                Ok(_) | Err(NotBegun::Copy(_)) => {}
                Err(NotBegun::Monitor(error)) => return Err(error),
                Err(NotBegun::Key(_) | NotBegun::NoConnection(_) | NotBegun::Connect(_)) => {}
            }
            let dismiss = json!({"id": copy});
            unless_refused(qmp.execute_raw("job-dismiss", dismiss, Deadline::after(COMMAND)).await)?;
            let node = json!({"node-name": copy});
            unless_refused(qmp.execute_raw("blockdev-del", node, Deadline::after(COMMAND)).await)?;
        }
        Ok(())
    }
}

/// Size of a node in bytes.
async fn size_of(qmp: &Qmp, node: &str) -> Result<u64, NotBegun> {
    let all = json!({"flat": true});
    let nodes = qmp.execute_raw("query-named-block-nodes", all, Deadline::after(COMMAND)).await?;
    let found = nodes.as_array().into_iter().flatten().find(|found| found["node-name"] == node);
    let size = found.and_then(|found| found["image"]["virtual-size"].as_u64());
    size.ok_or_else(|| NotBegun::Copy(format!("QEMU does not tell the size of {node}")))
}

/// The first bytes of a disk that may be larger: QEMU only copies to a disk of the same size. It refuses a
/// smaller disk.
fn first(size: u64, of: Value) -> Value {
    if size.is_multiple_of(SECTOR) { json!({"driver": "raw", "size": size, "file": of}) } else { of }
}

/// Waits until a job has ended or does not exist; returns why it failed, if it did.
async fn concluded(qmp: &Qmp, id: &str) -> Result<Option<String>, NotBegun> {
    let ends = Instant::now() + END;
    while Instant::now() < ends {
        let jobs = qmp.execute_raw("query-jobs", Value::Null, Deadline::after(COMMAND)).await?;
        let Some(job) = jobs.as_array().into_iter().flatten().find(|job| job["id"] == id) else {
            return Ok(None);
        };
        if job["status"] == "concluded" {
            return Ok(job["error"].as_str().map(str::to_owned));
        }
        sleep(LOOK).await;
    }
    Err(NotBegun::Copy("the copy of a disk does not complete".to_owned()))
}

/// An error answer means that the object was never made.
fn unless_refused(answer: Result<Value, Error>) -> Result<(), Error> {
    match answer {
        Ok(_) | Err(Error::Refused { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Connects a connection from the source to the socket on which QEMU listens.
pub(super) async fn connect(socket: &Path, outside: OwnedFd) -> Result<(), NotBegun> {
    let lead = async {
        let inside = UnixStream::connect(socket).await?.into_std()?;
        relay(outside, inside)
    };
    lead.await.map_err(NotBegun::Connect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_copies_are_to_be_there_and_complete() {
        let disk =
            |name: &str| LocalDisk { name: name.to_owned(), node: format!("disk-{name}"), on_claim: false };
        let disks = LocalDisks { all: vec![disk("a"), disk("b")], socket: PathBuf::new() };
        let job = |index: u32, ready: bool| json!({"device": format!("copy-{index}"), "len": 10, "offset": 4, "ready": ready});
        let seen = disks.understood(&json!([job(0, true), job(1, false), job(7, false)])).unwrap();
        assert_eq!(seen, Copied { remaining: 12, total: 20, done: false });
        assert!(disks.understood(&json!([job(0, true), job(1, true)])).unwrap().done);
        assert_eq!(disks.understood(&json!([job(0, true)])).unwrap_err(), "the copy of disk b has ended");
        let mut failed = job(1, false);
        failed["error"] = json!("No space left on device");
        let why = disks.understood(&json!([job(0, true), failed])).unwrap_err();
        assert_eq!(why, "disk b cannot be copied: No space left on device");
    }

    #[test]
    fn claims_are_copied_only_where_they_move() {
        let disk =
            |name: &str, on_claim| LocalDisk { name: name.to_owned(), node: name.to_owned(), on_claim };
        let copyable = Copyable {
            local: vec![disk("root", false)],
            claims: vec![disk("data", true), disk("more", true)],
            awaited: ["more".to_owned()].into(),
            socket: PathBuf::new(),
        };
        let names =
            |disks: LocalDisks| disks.all.into_iter().map(|disk| disk.name).collect::<Vec<_>>().join(" ");
        assert_eq!(names(copyable.incoming()), "root more");
        let connection = || OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0);
        assert_eq!(names(copyable.outgoing(&DiskConnections::new())), "root");
        let connections = ["data", "root", "other"].map(|name| (name.to_owned(), connection())).into();
        assert_eq!(names(copyable.outgoing(&connections)), "root data");
        assert_eq!(first(1024, json!("x"))["size"], 1024);
        assert_eq!(first(1000, json!("x")), json!("x"));
    }
}
