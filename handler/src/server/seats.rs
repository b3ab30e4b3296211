//! Who has a guest's stream, of which there is one each: who comes takes it from whom it had, and tells them so.
//!
//! The launcher, too, has only one client at its serial line, and lets the one before go. It cannot say why: from here the
//! one who is displaced learns it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Namespace, name and stream.
type Key = (String, String, &'static str);

/// The seats of this node.
#[derive(Debug, Clone, Default)]
pub(super) struct Seats(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    /// Number of the one who came last.
    last: u64,
    by: HashMap<Key, (u64, oneshot::Sender<()>)>,
}

/// One that is taken, until this value goes or somebody else comes.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    key: Key,
    number: u64,
    taken: oneshot::Receiver<()>,
}

impl Seats {
    /// Whether somebody has it.
    pub(super) fn is_taken(&self, namespace: &str, name: &str, stream: &'static str) -> bool {
        self.lock().by.contains_key(&(namespace.to_owned(), name.to_owned(), stream))
    }

    /// Takes it.
    pub(super) fn take(&self, namespace: &str, name: &str, stream: &'static str) -> Seat {
        let key = (namespace.to_owned(), name.to_owned(), stream);
        let (tell, taken) = oneshot::channel();
        let mut lock = self.lock();
        lock.last += 1;
        let number = lock.last;
        if let Some((_, before)) = lock.by.insert(key.clone(), (number, tell)) {
            // Fails where the one before is about to go anyway.
            let _ = before.send(());
        }
        drop(lock);
        Seat { seats: self.clone(), key, number, taken }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing that holds it can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Comes back when somebody else has taken it.
    pub(super) async fn taken(&mut self) {
        if (&mut self.taken).await.is_err() {
            // Nobody can any more.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Entry::Occupied(entry) = self.seats.lock().by.entry(self.key.clone())
            && entry.get().0 == self.number
        {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn who_comes_takes_it_from_whom_it_had() {
        let seats = Seats::default();
        let mut first = seats.take("shop", "web", "vnc");
        let mut other = seats.take("shop", "web", "serial0");
        assert!(seats.is_taken("shop", "web", "vnc") && !seats.is_taken("shop", "db", "vnc"));
        let second = seats.take("shop", "web", "vnc");
        timeout(Duration::from_secs(1), first.taken()).await.unwrap();
        assert!(timeout(Duration::from_millis(20), other.taken()).await.is_err());
        // The one who goes leaves the other one's seat.
        drop(first);
        assert!(seats.is_taken("shop", "web", "vnc"));
        drop(second);
        assert!(!seats.is_taken("shop", "web", "vnc"));
    }
}
