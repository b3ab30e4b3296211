//! Plugs disks and cards into the running machine, and removes those that are no longer wanted. Disks are
//! handled here, cards in [`super::cards`]; both share the machine's free places.
//!
//! ```text
//!  accepted Sync ──┐                 ┌─ wanted, its descriptor is held ──> add-fd, blockdev-add, device_add ──> plugged
//!  a descriptor  ──┴─> look, act ────┤
//!                         ^          └─ plugged, not wanted ──> device_del ─ guest releases it ─> blockdev-del, remove-fd
//!                         └── 0.5 s while a guest is asked to release, 10 s after QEMU refused ─┘
//! ```
//!
//! A guest that comes from another node has the disks that it had there. They are treated as if they were
//! plugged in here.
//!
//! A CD drive stays in the machine. Only its disc comes and goes, through the tray ([`super::discs`]).
//!
//! A disk is a volume on a claim: a volume on another claim is unplugged first, and plugged in again, unless
//! it moves there with its guest ([`plugged_disks`]). The descriptor of a disk that QEMU refuses is kept for
//! another attempt. If a guest does not release a disk, it is asked again and again. The descriptor of a disk that
//! is not wanted is forgotten, unless it was given for a later revision: that Sync may be accepted while an earlier
//! one is acted on.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barevirt_api::valid::{ValidDisk, ValidVmi};
use barevirt_machine::{
    Cache, Disk, DiskKind, FileSource, HotDisk as Plan, HotDisks, Image, ImageFormat, VolumeFacts,
};
use barevirt_protocol::names::HotDisk;
use barevirt_protocol::v1;
use barevirt_qmp::newer::QueryNamedBlockNodes;
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::sync::watch;
use tokio::time::Instant;

use super::cards::Cards;
use super::descriptor_store::DescriptorStore;
use super::discs;
use super::monitored::{COMMAND, LATER, Leaving, SOON, ask_for, carry_out, has_device, unless_refused};
use super::plugged_disks;
use super::report::Circumstances;
use super::rest::rest;
use super::wanted::Wanted;
use super::written;
use crate::disk::{block_size, claim};
use crate::growing::{Growing, GrowingDisks};
use crate::reported;

/// Number of the first set of descriptors for plugged disks; lower numbers belong to disks that the machine
/// started with.
pub(super) const FIRST_SET: u32 = 100_000;

/// A disk that the guest has.
#[derive(Debug)]
struct Plugged {
    key: HotDisk,
    disk: Disk,
    set: u32,
    target: String,
    leaving: Option<Leaving>,
}

/// A disk that QEMU refused.
#[derive(Debug)]
struct Refused {
    key: HotDisk,
    why: String,
    at: Instant,
}

/// What other tasks use, too.
#[derive(Debug)]
pub struct Shared {
    /// The descriptors that the handler gave.
    pub store: Rc<RefCell<DescriptorStore>>,
    /// Where the state of disks and cards is reported.
    pub circumstances: watch::Sender<Circumstances>,
    /// Disks that grow with their claims.
    pub growing: GrowingDisks,
}

/// Disks and cards of one machine that are plugged and unplugged.
#[derive(Debug)]
pub struct Plugs {
    room: HotDisks,
    cards: Cards,
    store: Rc<RefCell<DescriptorStore>>,
    circumstances: watch::Sender<Circumstances>,
    growing: GrowingDisks,
    plugged: Vec<Plugged>,
    refused: Vec<Refused>,
    next_set: u32,
}

impl Plugs {
    /// For a machine that has these places when it starts.
    #[must_use]
    pub fn new(room: HotDisks, cards: Cards, shared: Shared) -> Self {
        let (plugged, refused) = (Vec::new(), Vec::new());
        let Shared { store, circumstances, growing } = shared;
        Self { room, cards, store, circumstances, growing, plugged, refused, next_set: FIRST_SET }
    }

    /// Records disks that the guest brings along, with the sets of their descriptors.
    #[must_use]
    pub fn with(mut self, disks: Vec<(HotDisk, u32)>, came: &[Disk]) -> Self {
        for (key, set) in disks {
            let Some(disk) = came.iter().find(|disk| disk.name == key.volume).cloned() else { continue };
            let target = self.room.target(&key.volume).unwrap_or_default().to_owned();
            self.next_set = self.next_set.max(set.saturating_add(1));
            self.plugged.push(Plugged { key, disk, set, target, leaving: None });
        }
        self
    }

    /// Serves the machine to its end.
    pub async fn serve(
        mut self,
        mut people: watch::Receiver<Option<Qmp>>,
        mut wanted: watch::Receiver<Option<Arc<Wanted>>>,
    ) {
        let (mut circumstances, mut heard) = (self.circumstances.subscribe(), self.cards.heard());
        let mut of_node = self.cards.of_node().changes();
        loop {
            let monitor = people.borrow_and_update().clone();
            let latest = wanted.borrow_and_update().clone();
            circumstances.borrow_and_update();
            heard.mark_unchanged();
            of_node.mark_unchanged();
            let mut pause = None;
            if let (Some(monitor), Some(latest)) = (monitor, latest) {
                let outcome = self.turn(&monitor, &latest).await;
                pause = self.pause();
                if let Err(error) = outcome
                    // The end of the stream means the end of QEMU.
                    && !error.is_closed()
                {
                    tracing::warn!(%error, "devices could not be plugged");
                    pause = Some(LATER);
                }
            }
            let on = tokio::select! {
                changed = people.changed() => changed.is_ok(),
                changed = wanted.changed() => changed.is_ok(),
                changed = circumstances.changed() => changed.is_ok(),
                changed = heard.changed() => changed.is_ok(),
                changed = of_node.changed() => changed.is_ok(),
                () = rest(pause) => true,
            };
            if !on {
                return;
            }
        }
    }

    fn pause(&self) -> Option<Duration> {
        let leaving = self.plugged.iter().any(|plugged| plugged.leaving.is_some());
        let disks = if leaving { Some(SOON) } else { (!self.refused.is_empty()).then_some(LATER) };
        [disks, self.cards.pause()].into_iter().flatten().min()
    }

    /// Checks the machine and acts on differences.
    async fn turn(&mut self, qmp: &Qmp, latest: &Wanted) -> Result<(), Error> {
        let vmi = &latest.vmi;
        let wanted = plugged_disks::wanted(vmi, self.plugged.iter().map(|plugged| &plugged.key));
        let mut outcome = self.cards.turn(qmp, latest, &mut self.room, &self.store).await;
        // A disk whose removal was requested is removed even if it is wanted again: it is plugged in again
        // afterwards.
        let go = self.plugged.iter().filter(|one| one.leaving.is_some() || !wanted.contains(&one.key));
        for key in go.map(|plugged| plugged.key.clone()).collect::<Vec<_>>() {
            outcome = outcome.and(self.take_out(qmp, &key).await);
        }
        self.refused.retain(|refused| wanted.contains(&refused.key));
        for key in &wanted {
            let tried =
                self.refused.iter().any(|refused| refused.key == *key && refused.at.elapsed() < LATER);
            if !tried && !self.plugged.iter().any(|plugged| plugged.key.volume == key.volume) {
                outcome = outcome.and(self.plug_in(qmp, vmi, key).await);
            }
        }
        self.drop_unwanted(latest.revision, &wanted);
        self.tell();
        outcome
    }

    /// Forgets descriptors that were never used and are no longer wanted.
    fn drop_unwanted(&self, revision: i64, wanted: &[HotDisk]) {
        let mut store = self.store.borrow_mut();
        let has = self.plugged.iter().map(|plugged| &plugged.key);
        for name in plugged_disks::unwanted(&store.given_by(revision), wanted, has) {
            store.forget(&name);
        }
    }

    async fn plug_in(&mut self, qmp: &Qmp, vmi: &ValidVmi, key: &HotDisk) -> Result<(), Error> {
        let Some(descriptor) = self.store.borrow().copy(&key.descriptor()) else { return Ok(()) };
        self.refused.retain(|refused| refused.key != *key);
        let set = self.next_set;
        self.next_set = self.next_set.saturating_add(1);
        let ready = match facts(key, vmi, &descriptor, set) {
            Ok(ready) => ready,
            Err(why) => return self.refuse(key, why),
        };
        // An answer may have been lost, so the actual state counts.
        self.room.set_scsi(has_device(qmp, HotDisks::SCSI).await?);
        let hot = match self.room.plan(vmi, &ready) {
            Ok(hot) => hot,
            Err(error) => return self.refuse(key, error.to_string()),
        };
        let add = qmp::add_fd { fdset_id: Some(set.into()), opaque: Some(format!("volume {}", key.volume)) };
        qmp.execute_with_fds(add, &[descriptor.as_fd()], Deadline::after(COMMAND)).await?;
        let Plan { disk, steps, room, target } = hot;
        self.room = room;
        let mut plugged = Plugged { key: key.clone(), disk, set, target, leaving: None };
        if let Err((error, why)) = carry_out(qmp, &steps).await {
            tracing::warn!(volume = key.volume, claim = key.claim, why, "disk not plugged in");
            // A command without an answer may still be carried out, so the disk is recorded as one that must
            // be removed.
            plugged.leaving = Some(Leaving::now(Some(why)));
            self.plugged.push(plugged);
            return if matches!(error, Error::Refused { .. }) { Ok(()) } else { Err(error) };
        }
        tracing::info!(volume = key.volume, claim = key.claim, target = plugged.target, "disk plugged in");
        grows(key, vmi, &descriptor, &ready, &self.growing);
        if let Some(entry) = written::entry(key, vmi, &descriptor, &ready) {
            self.circumstances.send_modify(|told| written::come(&mut told.claim_disks, entry));
        }
        // It is in use: no other is accepted under this name.
        drop(self.store.borrow_mut().take(&key.descriptor()));
        self.plugged.push(plugged);
        Ok(())
    }

    fn refuse(&mut self, key: &HotDisk, why: String) -> Result<(), Error> {
        tracing::warn!(volume = key.volume, claim = key.claim, why, "disk not plugged in");
        self.refused.push(Refused { key: key.clone(), why, at: Instant::now() });
        Ok(())
    }

    /// Requests the removal of a disk from the guest; cleans up when the guest has released it.
    async fn take_out(&mut self, qmp: &Qmp, key: &HotDisk) -> Result<(), Error> {
        let Some(at) = self.plugged.iter().position(|plugged| plugged.key == *key) else { return Ok(()) };
        let Plugged { disk, set, leaving, .. } = &mut self.plugged[at];
        self.growing.remove(&key.volume);
        if leaving.get_or_insert_with(|| Leaving::now(None)).asks() {
            tracing::info!(volume = key.volume, claim = key.claim, "the guest is asked to release a disk");
            release(qmp, disk).await?;
        }
        if !is_released(qmp, disk).await? {
            return Ok(());
        }
        undo(qmp, disk, *set).await?;
        // A removed device still holds its disk for a moment.
        if has_nodes(qmp, disk).await? {
            return Ok(());
        }
        let gone = self.plugged.remove(at);
        self.room.free(&gone.disk);
        self.circumstances.send_modify(|told| written::go(&mut told.claim_disks, &gone.disk.name));
        match gone.leaving.and_then(|leaving| leaving.refused) {
            Some(why) => self.refused.push(Refused { key: key.clone(), why, at: Instant::now() }),
            None => {
                self.store.borrow_mut().forget(&key.descriptor());
                tracing::info!(volume = key.volume, claim = key.claim, "disk taken out");
            }
        }
        Ok(())
    }

    /// Publishes the state that the handler and the controller use.
    fn tell(&self) {
        let of = |key: &HotDisk| v1::HotDisk {
            volume: key.volume.clone(),
            claim: key.claim.clone(),
            ..v1::HotDisk::default()
        };
        let plugged = self.plugged.iter().map(|plugged| {
            let trouble = plugged.leaving.as_ref().and_then(|leaving| leaving.trouble("disk"));
            let trouble = trouble.unwrap_or_default();
            let is_plugged = plugged.leaving.is_none();
            v1::HotDisk { plugged: is_plugged, target: plugged.target.clone(), trouble, ..of(&plugged.key) }
        });
        let refused = self
            .refused
            .iter()
            .map(|refused| v1::HotDisk { trouble: refused.why.clone(), ..of(&refused.key) });
        let disks: Vec<v1::HotDisk> = plugged.chain(refused).collect();
        let (names, layout) = (self.store.borrow().names(), self.room.layout().to_saved());
        let cards = self.cards.status();
        self.circumstances.send_if_modified(|told| {
            let new = told.hot_disks != disks
                || told.cards != cards
                || told.descriptors != names
                || told.pci_layout != layout;
            (told.hot_disks, told.descriptors, told.pci_layout) = (disks, names, layout);
            told.cards = cards;
            new
        });
    }
}

/// The facts for the plan about a disk whose descriptor has arrived.
pub(super) fn facts(key: &HotDisk, vmi: &ValidVmi, given: &OwnedFd, set: u32) -> Result<VolumeFacts, String> {
    let looked = |error: std::io::Error| format!("cannot look at the disk: {error}");
    let file = File::from(given.try_clone().map_err(looked)?);
    let source = match file.metadata().map_err(looked)?.file_type() {
        kind if kind.is_file() => FileSource::FdSet(set),
        kind if kind.is_block_device() => FileSource::DeviceFdSet(set),
        _ => return Err("the disk is neither a regular file nor a block device".to_owned()),
    };
    let flags = fcntl(&file, FcntlArg::F_GETFL).map_err(|errno| looked(errno.into()))?;
    let read_only = OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE == OFlag::O_RDONLY;
    let disk = vmi.disks().iter().find(|disk| disk.volume.name == key.volume);
    let (cache, blocks) = match disk {
        Some(ValidDisk { disk, .. }) => {
            let cache = claim::cached(disk, given);
            let blocks = block_size::wanted(disk, given);
            (
                cache.map_err(|error| format!("cache none is not possible: {error}"))?,
                blocks.map_err(|error| format!("cannot find its block size: {error}"))?,
            )
        }
        // The plan reports a disk that there is none of.
        None => (Cache::None, None),
    };
    let (name, format) = (key.volume.clone(), ImageFormat::Raw);
    let thick = reported::is_preallocated(vmi, &name);
    Ok(VolumeFacts { name, source, format, read_only, overlay: None, cache, thick, blocks })
}

/// Has a disk grow with its claim, if the guest may write to it.
pub(super) fn grows(
    key: &HotDisk,
    vmi: &ValidVmi,
    given: &OwnedFd,
    facts: &VolumeFacts,
    growing: &GrowingDisks,
) {
    if written::is_written(key, vmi, facts)
        && let Some(disk) = Growing::of(vmi, &key.volume, &key.claim, given.as_fd(), None)
    {
        growing.add(disk);
    }
}

/// Asks the guest to release a disk, or the disc of its drive.
async fn release(qmp: &Qmp, disk: &Disk) -> Result<(), Error> {
    match disk.device.kind {
        DiskKind::Cdrom => discs::ask(qmp, &disk.id()).await,
        DiskKind::Disk | DiskKind::Lun => ask_for(qmp, &disk.id()).await,
    }
}

/// Whether the guest has released it.
async fn is_released(qmp: &Qmp, disk: &Disk) -> Result<bool, Error> {
    match disk.device.kind {
        DiskKind::Cdrom => discs::take_out(qmp, &disk.id()).await,
        DiskKind::Disk | DiskKind::Lun => Ok(!has_device(qmp, &disk.id()).await?),
    }
}

/// The block nodes of a disk.
fn node_names(disk: &Disk) -> Vec<String> {
    disk.image.as_ref().map(Image::node_names).unwrap_or_default()
}

/// Removes the parts of a disk that the guest does not have.
async fn undo(qmp: &Qmp, disk: &Disk, set: u32) -> Result<(), Error> {
    for node in node_names(disk).iter().rev() {
        let delete = qmp::blockdev_del { node_name: node.as_str().to_owned() };
        unless_refused(qmp.execute(delete, Deadline::after(COMMAND)).await)?;
    }
    if let Some(thread) = disk.own_thread() {
        let delete = qmp::object_del { id: thread.to_owned() };
        unless_refused(qmp.execute(delete, Deadline::after(COMMAND)).await)?;
    }
    let remove = qmp::remove_fd { fdset_id: set.into(), fd: None };
    unless_refused(qmp.execute(remove, Deadline::after(COMMAND)).await)
}

/// Whether any block node of a disk is left.
async fn has_nodes(qmp: &Qmp, disk: &Disk) -> Result<bool, Error> {
    let all = qmp.execute(QueryNamedBlockNodes { flat: true }, Deadline::after(COMMAND)).await?;
    let names = node_names(disk);
    Ok(all.iter().any(|node| names.iter().any(|name| node.node_name.as_deref() == Some(name.as_str()))))
}
