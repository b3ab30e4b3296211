//! Connections of a migration from the handler, kept until QEMU takes them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use barevirt_protocol::names::{MigrationChannel, MigrationStream};

/// Most connections that are kept: one migration never has more.
const MOST: usize = 300;

/// Connections by migration and purpose. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<Mutex<BTreeMap<MigrationChannel, OwnedFd>>>);

impl Connections {
    /// Stores a connection. A later one for the same purpose replaces it.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn give(&self, channel: MigrationChannel, mut given: Vec<OwnedFd>) -> Result<(), String> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(descriptor) = given.pop().filter(|_| given.is_empty()) else {
            return Err(format!("{} is one descriptor", channel.descriptor()));
        };
        // Connections of an earlier migration are useless.
        kept.retain(|other, _| other.uid == channel.uid);
        if kept.len() >= MOST && !kept.contains_key(&channel) {
            return Err(format!("more than {MOST} connections"));
        }
        kept.insert(channel, descriptor);
        Ok(())
    }

    /// Removes and returns all connections of a migration.
    #[must_use]
    pub fn take_all(&self, uid: &str) -> BTreeMap<MigrationStream, OwnedFd> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *kept);
        let (taken, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(channel, _)| channel.uid == uid);
        kept.extend(others);
        taken.into_iter().map(|(channel, connection)| (channel.stream, connection)).collect()
    }
}
