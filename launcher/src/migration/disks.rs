//! Disks whose contents are on one node only: QEMU on the target exports its new, empty ones by NBD, and QEMU on the source mirrors
//! into them. From the moment at which a copy is complete every write of the guest is made on both sides before it is answered.
//!
//! The copies end while the guest stands still, before anything of its devices is sent: one that is not complete then ends the
//! migration.

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

/// How long QEMU may take for a command; to open a disk of the other node's is one.
const COMMAND: Duration = Duration::from_secs(10);
/// How long the end of all copies may take. The guest stands still meanwhile.
const END: Duration = Duration::from_secs(20);
/// Between two looks at copies that end.
const LOOK: Duration = Duration::from_millis(5);
/// What sizes are multiples of that QEMU can cut something to, bytes.
const SECTOR: u64 = 512;

/// A disk that is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalDisk {
    /// Its name in the manifest, by which both sides know it.
    pub name: String,
    /// QEMU's node of it.
    pub node: String,
    /// It is on a claim: the target's may have more room.
    pub on_claim: bool,
}

/// The disks of a machine that migrations can copy, and where QEMU listens for them.
#[derive(Debug, Clone, Default)]
pub struct Copyable {
    /// Those that no other node has. Every migration copies them.
    pub local: Vec<LocalDisk>,
    /// Those on claims. A migration copies the ones that move to other claims.
    pub claims: Vec<LocalDisk>,
    /// Names of those on claims that are to be filled by the migration that the guest comes by.
    pub awaited: BTreeSet<String>,
    /// The socket.
    pub socket: PathBuf,
}

impl Copyable {
    /// What is copied to here as the guest comes. A claim is only here for it.
    #[must_use]
    pub fn incoming(&self) -> LocalDisks {
        self.with(|name| self.awaited.contains(name))
    }

    /// What is copied from here, by the connections that there are.
    #[must_use]
    pub fn outgoing(&self, connections: &DiskConnections) -> LocalDisks {
        self.with(|name| connections.contains_key(name))
    }

    fn with(&self, moves: impl Fn(&str) -> bool) -> LocalDisks {
        let claims = self.claims.iter().filter(|disk| moves(&disk.name));
        LocalDisks { all: self.local.iter().chain(claims).cloned().collect(), socket: self.socket.clone() }
    }
}

/// The disks that one migration copies, and where QEMU listens for them.
#[derive(Debug, Clone, Default)]
pub struct LocalDisks {
    /// The disks.
    pub all: Vec<LocalDisk>,
    /// The socket.
    pub socket: PathBuf,
}

/// Connections by the names of disks.
pub type DiskConnections = BTreeMap<String, OwnedFd>;

/// How far the copies are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes that are left.
    pub remaining: u64,
    /// Bytes in all.
    pub total: u64,
    /// All of them are complete.
    pub done: bool,
}

/// QEMU's name of the copy of a disk: of the job, of the node it writes to, and of the connection.
fn copy_name(index: usize) -> String {
    format!("copy-{index}")
}

impl LocalDisks {
    /// Has QEMU on the target take writes to its disks.
    ///
    /// # Errors
    /// When QEMU refuses, or a disk has no connection.
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

    /// Has QEMU on the source begin to copy.
    ///
    /// # Errors
    /// When QEMU refuses, the target does not have a disk, or has another size of it.
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
            let mirror = json!({
                "job-id": copy, "device": node, "target": copy, "sync": "full", "copy-mode": "write-blocking",
                "speed": limits.bandwidth.unwrap_or_default(), "auto-dismiss": false,
                "on-source-error": "report", "on-target-error": "report",
            });
            qmp.execute_raw("blockdev-mirror", mirror, Deadline::after(COMMAND)).await?;
        }
        Ok(())
    }

    /// How far the copies are.
    ///
    /// # Errors
    /// When QEMU does not answer, or a copy has failed.
    pub async fn look(&self, qmp: &Qmp) -> Result<Copied, NotBegun> {
        let jobs = qmp.execute_raw("query-block-jobs", Value::Null, Deadline::after(COMMAND)).await?;
        self.understood(&jobs).map_err(NotBegun::Copy)
    }

    /// Pure: the answer to `query-block-jobs`. What is none of the copies is somebody else's.
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

    /// Ends the copies, which are complete: the guest stands still, and both sides are the same.
    ///
    /// # Errors
    /// When one is not complete, or ends with an error.
    pub async fn finish(&self, qmp: &Qmp) -> Result<(), NotBegun> {
        if self.all.is_empty() {
            return Ok(());
        }
        if !self.look(qmp).await?.done {
            return Err(NotBegun::Copy("a disk is not copied to its end".to_owned()));
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

    /// Has QEMU on the target take no more writes from elsewhere.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub async fn unexport(&self, qmp: &Qmp) -> Result<(), Error> {
        if self.all.is_empty() {
            return Ok(());
        }
        unless_refused(qmp.execute_raw("nbd-server-stop", Value::Null, Deadline::after(COMMAND)).await)
    }

    /// Takes back all of it, on either side, as far as it is there.
    ///
    /// # Errors
    /// When QEMU does not answer.
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

/// Bytes of a node.
async fn size_of(qmp: &Qmp, node: &str) -> Result<u64, NotBegun> {
    let all = json!({"flat": true});
    let nodes = qmp.execute_raw("query-named-block-nodes", all, Deadline::after(COMMAND)).await?;
    let found = nodes.as_array().into_iter().flatten().find(|found| found["node-name"] == node);
    let size = found.and_then(|found| found["image"]["virtual-size"].as_u64());
    size.ok_or_else(|| NotBegun::Copy(format!("QEMU does not tell the size of {node}")))
}

/// The first bytes of what may be larger: QEMU copies only to what has the same size. It refuses what is smaller.
fn first(size: u64, of: Value) -> Value {
    if size.is_multiple_of(SECTOR) { json!({"driver": "raw", "size": size, "file": of}) } else { of }
}

/// Waits until a job has come to its end, or there is none; why it failed, if it did.
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
    Err(NotBegun::Copy("the copy of a disk does not end".to_owned()))
}

/// What is to be taken away was never made.
fn unless_refused(answer: Result<Value, Error>) -> Result<(), Error> {
    match answer {
        Ok(_) | Err(Error::Refused { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Leads a connection of the source's to the socket where QEMU listens.
async fn connect(socket: &Path, outside: OwnedFd) -> Result<(), NotBegun> {
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
