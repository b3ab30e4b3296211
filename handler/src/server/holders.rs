//! Which client holds a guest's stream. A stream has one client: a new client displaces the previous one,
//! which is closed with the reason.
//!
//! The launcher also allows one client of its serial port and disconnects the previous one. It cannot say
//! why, so the reason comes from here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Namespace, name and stream.
type Key = (String, String, &'static str);

/// The streams of this node that have a client.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamHolders(Arc<Mutex<Holders>>);

#[derive(Debug, Default)]
struct Holders {
    /// Number of the client that connected last.
    last: u64,
    by: HashMap<Key, (u64, oneshot::Sender<()>)>,
}

/// A client that holds a stream until this value is dropped or another client displaces it.
#[derive(Debug)]
pub(super) struct StreamHolder {
    holders: StreamHolders,
    key: Key,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

impl StreamHolders {
    /// Whether a client holds the stream.
    pub(super) fn is_held(&self, namespace: &str, name: &str, stream: &'static str) -> bool {
        self.lock().by.contains_key(&(namespace.to_owned(), name.to_owned(), stream))
    }

    /// Makes a new client the holder of the stream.
    pub(super) fn take(&self, namespace: &str, name: &str, stream: &'static str) -> StreamHolder {
        let key = (namespace.to_owned(), name.to_owned(), stream);
        let (tell, displaced) = oneshot::channel();
        let mut lock = self.lock();
        lock.last += 1;
        let number = lock.last;
        if let Some((_, before)) = lock.by.insert(key.clone(), (number, tell)) {
            // This fails if the previous client is about to leave anyway.
            let _ = before.send(());
        }
        drop(lock);
        StreamHolder { holders: self.clone(), key, number, displaced }
    }

    fn lock(&self) -> MutexGuard<'_, Holders> {
        // The map is never left half changed, so a poisoned lock can be used.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamHolder {
    /// Returns when another client has displaced this one.
    pub(super) async fn displaced(&mut self) {
        if (&mut self.displaced).await.is_err() {
            // There can be no other client any more.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for StreamHolder {
    fn drop(&mut self) {
        if let Entry::Occupied(entry) = self.holders.lock().by.entry(self.key.clone())
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
    async fn a_new_client_displaces_the_former_holder_of_a_stream() {
        let holders = StreamHolders::default();
        let mut first = holders.take("shop", "web", "vnc");
        let mut other = holders.take("shop", "web", "serial0");
        assert!(holders.is_held("shop", "web", "vnc") && !holders.is_held("shop", "db", "vnc"));
        let second = holders.take("shop", "web", "vnc");
        timeout(Duration::from_secs(1), first.displaced()).await.unwrap();
        assert!(timeout(Duration::from_millis(20), other.displaced()).await.is_err());
        // The first client leaves: the second one still holds the stream.
        drop(first);
        assert!(holders.is_held("shop", "web", "vnc"));
        drop(second);
        assert!(!holders.is_held("shop", "web", "vnc"));
    }
}
