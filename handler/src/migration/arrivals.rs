//! The guests that may arrive on this node, each by one migration: who may send it, and which launcher
//! receives it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use barevirt_protocol::names::{MOST_MEMORY_CHANNELS, MigrationStream};
use tokio::sync::watch;
use tokio::time::Instant;

use super::control::{Secret, is_same};
use crate::launchers::Launcher;
use crate::sync::launcher_report::LauncherReport;

/// How long a ticket is valid.
const TICKET: Duration = Duration::from_secs(30);

/// Most streams of one guest: its disks, its memory, and further connections for that.
const MOST_STREAMS: usize = 257 + MOST_MEMORY_CHANNELS as usize;

/// A guest that may arrive.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// The node from which it comes. Only the handler of that node is answered.
    pub source: String,
    /// The launcher that receives it.
    pub launcher: Launcher,
    /// The settings turn encryption off for this migration.
    pub plain: bool,
    /// The latest report of the launcher.
    pub report: watch::Receiver<LauncherReport>,
}

#[derive(Debug)]
struct Awaited {
    arrival: Arrival,
    ticket: Option<Ticket>,
    /// Number of the [`Entry`] that registered it: a migration may be registered again.
    number: u64,
}

/// The purpose of the memory's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The guest begins to arrive.
    Begin {
        /// Both QEMUs use this key; `None` means that nothing is encrypted.
        key: Option<Secret>,
        /// Whether memory on the further connections is compressed.
        compression: bool,
    },
    /// It replaces a connection that broke in post-copy.
    Rejoin,
}

#[derive(Debug)]
struct Ticket {
    secret: Secret,
    purpose: Purpose,
    until: Instant,
    /// Streams for which the ticket was used.
    used: BTreeSet<MigrationStream>,
}

#[derive(Debug, Default)]
struct All {
    awaited: BTreeMap<String, Awaited>,
    number: u64,
}

/// The guests that may arrive here, by the UIDs of their migrations. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Arrivals(Arc<Mutex<All>>);

/// A guest is expected for as long as its entry is held.
#[derive(Debug)]
pub struct Entry {
    arrivals: Arrivals,
    uid: String,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut all = self.arrivals.all();
        if all.awaited.get(&self.uid).is_some_and(|awaited| awaited.number == self.number) {
            all.awaited.remove(&self.uid);
        }
    }
}

impl Arrivals {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an expected guest.
    #[must_use]
    pub fn await_one(&self, uid: String, arrival: Arrival) -> Entry {
        let mut all = self.all();
        all.number += 1;
        let number = all.number;
        all.awaited.insert(uid.clone(), Awaited { arrival, ticket: None, number });
        Entry { arrivals: self.clone(), uid, number }
    }

    /// The guest that arrives by this migration.
    #[must_use]
    pub fn find(&self, uid: &str) -> Option<Arrival> {
        Some(self.all().awaited.get(uid)?.arrival.clone())
    }

    /// Sets the ticket of a migration and replaces an earlier one.
    pub fn admit(&self, uid: &str, secret: Secret, purpose: Purpose) {
        if let Some(awaited) = self.all().awaited.get_mut(uid) {
            let (until, used) = (Instant::now() + TICKET, BTreeSet::new());
            awaited.ticket = Some(Ticket { secret, purpose, until, used });
        }
    }

    /// Uses a ticket. Returns the migration, the launcher that the connection is for, and its purpose. A ticket
    /// is valid once for each stream, and for none after the guest's memory.
    #[must_use]
    pub fn take(&self, shown: &Secret, stream: &MigrationStream) -> Option<(String, Launcher, Purpose)> {
        let mut all = self.all();
        let now = Instant::now();
        let (uid, awaited) = all.awaited.iter_mut().find(|(_, awaited)| {
            awaited.ticket.as_ref().is_some_and(|ticket| is_same(&ticket.secret, shown))
        })?;
        let ticket = awaited.ticket.as_mut().filter(|ticket| now < ticket.until)?;
        if ticket.used.len() >= MOST_STREAMS || !ticket.used.insert(stream.clone()) {
            return None;
        }
        let purpose = ticket.purpose;
        if *stream == MigrationStream::Memory {
            awaited.ticket = None;
        }
        Some((uid.clone(), awaited.arrival.launcher.clone(), purpose))
    }
}
