//! Connections of a migration that the handler gave, kept until QEMU takes them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use barevirt_protocol::names::{MigrationChannel, MigrationStream};

/// Most that are kept: one migration has no more.
const MOST: usize = 300;

/// Connections by migration and what they are for. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<Mutex<BTreeMap<MigrationChannel, OwnedFd>>>);

impl Connections {
    /// Takes over a connection. Given again before it is taken, the later one counts.
    ///
    /// # Errors
    /// Says why it is not wanted.
    pub fn give(&self, channel: MigrationChannel, mut given: Vec<OwnedFd>) -> Result<(), String> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(descriptor) = given.pop().filter(|_| given.is_empty()) else {
            return Err(format!("{} is one descriptor", channel.descriptor()));
        };
        // Those of a migration before are of no use any more.
        kept.retain(|other, _| other.uid == channel.uid);
        if kept.len() >= MOST && !kept.contains_key(&channel) {
            return Err(format!("more than {MOST} connections"));
        }
        kept.insert(channel, descriptor);
        Ok(())
    }

    /// Takes all connections of a migration for good.
    #[must_use]
    pub fn take_all(&self, uid: &str) -> BTreeMap<MigrationStream, OwnedFd> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *kept);
        let (taken, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(channel, _)| channel.uid == uid);
        kept.extend(others);
        taken.into_iter().map(|(channel, connection)| (channel.stream, connection)).collect()
    }
}
