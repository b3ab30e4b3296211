//! Connections for a child that can connect to nothing by itself.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use barevirt_confinement::Connects;

/// Stack of the thread that answers.
const STACK: usize = 64 << 10;

/// The connections that are offered to a child. Each of its attempts to connect gets the next one, and is refused when none is
/// left. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Offered(Arc<Mutex<VecDeque<OwnedFd>>>);

impl Offered {
    fn all(&self) -> MutexGuard<'_, VecDeque<OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers these connections, in this order, instead of all that are left of earlier ones.
    pub fn put(&self, connections: impl IntoIterator<Item = OwnedFd>) {
        *self.all() = connections.into_iter().collect();
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    fn take(&self) -> Option<OwnedFd> {
        self.all().pop_front()
    }

    /// Answers the attempts of a child, until it has ended.
    pub(super) fn answering(connects: Connects) -> io::Result<Self> {
        let offered = Self::default();
        let own = offered.clone();
        let answer = move || {
            loop {
                match connects.answer(|| own.take()) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        tracing::warn!(%error, "a child gets no connections any more");
                        return;
                    }
                }
            }
        };
        thread::Builder::new().name("connects".to_owned()).stack_size(STACK).spawn(answer)?;
        Ok(offered)
    }
}
