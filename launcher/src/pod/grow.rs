//! Makes disks as large as their claims allow, while the guest runs.
//!
//! ```text
//!  accepted Sync ──> a claim has another size ──> look: storage, QEMU's node ──> block_resize
//!                                                  └── 10 s, up to 30 times, while its storage offers less than the claim
//! ```
//!
//! Sizes are always looked at, so a repeated Sync changes nothing. What QEMU refuses is reported and not tried again
//! until the claim changes. Nothing changes while the guest moves; what is due then is done afterwards, where the guest
//! is.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use barevirt_protocol::v1::DiskTrouble;
use barevirt_qmp::newer::QueryNamedBlockNodes;
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::monitored::{COMMAND, LATER};
use super::report::Circumstances;
use super::rest::rest;
use super::wanted::Wanted;
use crate::disk::claim::Room;
use crate::disk::growth::Extent;
use crate::growing::{Growing, GrowingDisks};
use crate::migration::{MigrationReport, State};
use crate::status::Status;

/// How often a disk is looked at after its claim has changed.
const LOOKS: u32 = 30;
/// Time limit for QEMU's command, which waits for the guest's requests to the disk.
const RESIZE: Duration = Duration::from_secs(60);

/// What is tried for one disk.
#[derive(Debug, Default, PartialEq, Eq)]
struct Attempt {
    /// The size up to which it may grow.
    most: u64,
    /// How often it may still be looked at.
    left: u32,
    /// When it was looked at last.
    looked: Option<Instant>,
    /// Why it has not grown.
    trouble: String,
}

impl Attempt {
    /// Whether the disk is to be looked at now; if so, that counts.
    fn looks(&mut self, most: u64, now: Instant) -> bool {
        if self.most != most {
            *self = Self { most, left: LOOKS, ..Self::default() };
        }
        let looks = self.left > 0 && self.looked.is_none_or(|looked| now >= looked + LATER);
        if looks {
            (self.left, self.looked) = (self.left - 1, Some(now));
        }
        looks
    }

    /// The guest's disk has this size now.
    fn has(&mut self, size: u64, room: &Room) {
        if size >= room.least(self.most) {
            self.left = 0;
        }
    }

    /// Nothing could be done: this look does not count.
    fn waits(&mut self) {
        (self.left, self.looked) = (self.left + 1, None);
    }

    fn fails(&mut self, why: String) {
        (self.left, self.trouble) = (0, why);
    }
}

/// The disks of one machine.
#[derive(Debug)]
pub struct Disks {
    /// Those that the guest has.
    pub growing: GrowingDisks,
    /// The installation's limits.
    pub room: Room,
    /// Where sizes and troubles are reported.
    pub circumstances: watch::Sender<Circumstances>,
    /// Shows whether the guest moves.
    pub status: watch::Receiver<Status>,
}

/// Serves the machine to its end.
pub async fn serve(
    disks: Disks,
    mut people: watch::Receiver<Option<Qmp>>,
    mut wanted: watch::Receiver<Option<Arc<Wanted>>>,
) {
    let mut status = disks.status.clone();
    // Disks that are plugged in are reported there.
    let mut circumstances = disks.circumstances.subscribe();
    let mut attempts = BTreeMap::new();
    loop {
        let monitor = people.borrow_and_update().clone();
        let latest = wanted.borrow_and_update().clone();
        status.borrow_and_update();
        circumstances.borrow_and_update();
        let mut pause = None;
        if let (Some(monitor), Some(latest), false) = (monitor, latest, disks.move_with_guest()) {
            let outcome = disks.turn(&monitor, &latest, &mut attempts).await;
            disks.tell(&attempts);
            pause = attempts.values().any(|attempt| attempt.left > 0).then_some(LATER);
            if let Err(error) = outcome
                // The end of the stream means the end of QEMU.
                && !error.is_closed()
            {
                tracing::warn!(%error, "disks could not be looked at");
            }
        }
        let on = tokio::select! {
            changed = people.changed() => changed.is_ok(),
            changed = wanted.changed() => changed.is_ok(),
            changed = status.changed() => changed.is_ok(),
            changed = circumstances.changed() => changed.is_ok(),
            () = rest(pause) => true,
        };
        if !on {
            return;
        }
    }
}

/// Whether the sizes of disks have to stay as they are, here and on the other node.
fn is_under_way(migration: &MigrationReport) -> bool {
    !matches!(migration.state, State::Arrived | State::Over)
}

impl Disks {
    /// Whether the guest moves to or from here.
    fn move_with_guest(&self) -> bool {
        self.status.borrow().migration.as_ref().is_some_and(is_under_way)
    }

    /// Looks at the disks whose claims have changed, and acts.
    async fn turn(
        &self,
        qmp: &Qmp,
        latest: &Wanted,
        attempts: &mut BTreeMap<String, Attempt>,
    ) -> Result<(), Error> {
        let disks = self.growing.all();
        attempts.retain(|volume, _| disks.iter().any(|disk| disk.volume == *volume));
        let now = Instant::now();
        let mut due = Vec::new();
        for disk in disks {
            let Some(most) = disk.most(&latest.vmi) else { continue };
            if attempts.entry(disk.volume.clone()).or_default().looks(most, now) {
                due.push(disk);
            }
        }
        if due.is_empty() {
            return Ok(());
        }
        let nodes = qmp.execute(QueryNamedBlockNodes { flat: true }, Deadline::after(COMMAND)).await?;
        for disk in due {
            let node = nodes.iter().find(|node| node.node_name.as_ref() == Some(&disk.node));
            let attempt = attempts.get_mut(&disk.volume);
            if let (Some(node), Some(attempt)) = (node, attempt) {
                self.grow(qmp, &disk, node.image.virtual_size, attempt).await?;
            }
        }
        Ok(())
    }

    /// Makes one disk as large as it can be. The guest's disk has `seen` bytes.
    async fn grow(
        &self,
        qmp: &Qmp,
        disk: &Arc<Growing>,
        seen: u64,
        attempt: &mut Attempt,
    ) -> Result<(), Error> {
        let volume = &disk.volume;
        let extent = match look(disk).await {
            Ok(extent) => extent,
            Err(error) => {
                tracing::warn!(volume, %error, "the disk cannot be looked at");
                attempt.fails(format!("cannot look at the disk: {error}"));
                return Ok(());
            }
        };
        // Guests that share a file would change its length at the same time.
        let may_grow = !disk.is_shared || matches!(extent, Extent::Device { .. });
        let size = extent.growth(seen, attempt.most, &self.room).filter(|_| may_grow);
        let Some((size, wanted)) = size.and_then(|size| Some((size, i64::try_from(size).ok()?))) else {
            attempt.has(if may_grow { seen } else { attempt.most }, &self.room);
            return Ok(());
        };
        if self.move_with_guest() {
            attempt.waits();
            return Ok(());
        }
        let resize = qmp::block_resize { device: None, node_name: Some(disk.node.clone()), size: wanted };
        match qmp.execute(resize, Deadline::after(RESIZE)).await {
            Ok(_) => {
                tracing::info!(volume, before = seen, size, "the disk has grown with its claim");
                attempt.has(size, &self.room);
                self.circumstances.send_if_modified(|told| {
                    let told = told.claim_disks.iter_mut().find(|told| told.volume == *volume);
                    told.is_some_and(|told| std::mem::replace(&mut told.bytes, size) != size)
                });
                Ok(())
            }
            Err(Error::Refused { desc, .. }) => {
                tracing::warn!(volume, size, desc, "QEMU refuses block_resize");
                attempt.fails(format!("QEMU refuses block_resize to {size} bytes: {desc}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Publishes which disks could not grow.
    fn tell(&self, attempts: &BTreeMap<String, Attempt>) {
        let failed = attempts.iter().filter(|(_, attempt)| !attempt.trouble.is_empty());
        let troubles: Vec<DiskTrouble> = failed
            .map(|(volume, attempt)| DiskTrouble { volume: volume.clone(), text: attempt.trouble.clone() })
            .collect();
        self.circumstances.send_if_modified(|told| {
            let new = told.not_grown != troubles;
            told.not_grown = troubles;
            new
        });
    }
}

/// Looks at a disk on a thread of its own: its storage may not answer, and this process must be able to end.
async fn look(disk: &Arc<Growing>) -> io::Result<Extent> {
    let (tell, told) = oneshot::channel();
    let disk = Arc::clone(disk);
    let looks = move || {
        // Nobody waits for it any more if this fails.
        let _ = tell.send(Extent::of(&disk.view));
    };
    std::thread::Builder::new().name("disk".to_owned()).spawn(looks)?;
    told.await.unwrap_or_else(|_| Err(io::Error::other("the thread has ended")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_looked_at_when_its_claim_changes_and_again_while_it_is_short() {
        let room = Room::default();
        let begun = Instant::now();
        let at = |times: u32| begun + LATER * times;
        let mut attempt = Attempt::default();
        assert!(attempt.looks(1000, begun));
        attempt.has(950, &room);
        assert!(!attempt.looks(1000, at(1)), "it is as large as it has to be");
        assert!(attempt.looks(2000, at(1)));
        attempt.has(950, &room);
        assert!(!attempt.looks(2000, at(2) - Duration::from_millis(1)), "not at once");
        let looks = (2..100).filter(|times| attempt.looks(2000, at(*times))).count();
        assert_eq!(looks, 29, "not for ever");
        assert!(attempt.looks(1500, at(100)), "a claim that has become smaller is looked at, too");
        attempt.has(2000, &room);
        assert!(!attempt.looks(1500, at(101)));
    }

    #[test]
    fn a_refusal_stays_until_the_claim_changes() {
        let now = Instant::now();
        let mut attempt = Attempt::default();
        assert!(attempt.looks(1000, now));
        attempt.fails("busy".to_owned());
        assert!(!attempt.looks(1000, now + LATER));
        assert_eq!(attempt.trouble, "busy");
        assert!(attempt.looks(2000, now));
        assert_eq!(attempt.trouble, "");
    }

    #[test]
    fn sizes_stay_while_a_guest_moves() {
        let moves = |state| {
            let report = MigrationReport { state, ..report() };
            is_under_way(&report)
        };
        for state in [State::Awaited, State::Receiving, State::Received, State::Sending, State::Switching] {
            assert!(moves(state), "{state:?}");
        }
        assert!(moves(State::Sent) && moves(State::Left));
        assert!(!moves(State::Arrived) && !moves(State::Over));
    }

    fn report() -> MigrationReport {
        MigrationReport {
            uid: String::new(),
            state: State::Over,
            progress: crate::migration::Progress::default(),
            reason: String::new(),
            bottleneck: None,
            slow: None,
            paused: false,
            aborted: false,
            hold: false,
            post_copy: false,
            offers_post_copy: false,
            recovery: None,
        }
    }
}
