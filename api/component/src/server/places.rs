//! Places of connections: their number, and which connection is displaced when all are taken.
//!
//! A connection of a known client is never displaced, nor one whose request is being answered. Among the
//! others, those that have never had an answer go first, and among these the one that was silent longest. So
//! the connection that an API server keeps open outlives any number of silent ones, and a new connection
//! always finds a place unless all others are busy.

use super::Limits;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// All places of a server.
#[derive(Debug)]
pub struct Places {
    limits: Limits,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Grows with every event: a smaller number is earlier.
    clock: u64,
    taken: BTreeMap<u64, Taken>,
}

#[derive(Debug)]
struct Taken {
    address: IpAddr,
    known: bool,
    /// Requests that have arrived completely and are being answered.
    working: usize,
    answered: bool,
    /// When the connection arrived or was last answered.
    last: u64,
    /// Dropping it tells the connection to close.
    _stay: oneshot::Sender<()>,
}

/// A place that stays taken until the value is dropped.
#[derive(Debug)]
pub struct Place {
    number: u64,
    places: Arc<Places>,
}

/// Tells a connection that it was displaced.
#[derive(Debug)]
pub struct Displaced(oneshot::Receiver<()>);

impl Displaced {
    /// Returns when the place was given to another connection.
    pub async fn wait(self) {
        // Nothing is ever sent: dropping the other end is the signal.
        let _ = self.0.await;
    }
}

impl Places {
    /// Free places within these limits.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Places { limits, inner: Mutex::default() })
    }

    /// A place for a connection from this address; `None` if no other connection can be displaced.
    pub fn enter(places: &Arc<Self>, address: IpAddr) -> Option<(Arc<Place>, Displaced)> {
        let mut inner = places.lock();
        let of_address = |taken: &Taken| taken.address == address && !taken.known;
        let from_there = inner.taken.values().filter(|taken| of_address(taken)).count();
        if from_there >= places.limits.of_address {
            inner.displace(of_address)?;
        } else if inner.taken.len() >= places.limits.connections {
            inner.displace(|taken| !taken.known)?;
        }
        inner.clock += 1;
        let (number, (stay, displaced)) = (inner.clock, oneshot::channel());
        let taken = Taken { address, known: false, working: 0, answered: false, last: number, _stay: stay };
        inner.taken.insert(number, taken);
        drop(inner);
        Some((Arc::new(Place { number, places: places.clone() }), Displaced(displaced)))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Frees the place of the first connection to displace among those.
    fn displace(&mut self, of: impl Fn(&Taken) -> bool) -> Option<()> {
        let may_go = self.taken.iter().filter(|(_, taken)| taken.working == 0 && of(taken));
        let (number, _) = may_go.min_by_key(|(_, taken)| (taken.answered, taken.last))?;
        let number = *number;
        self.taken.remove(&number).map(drop)
    }
}

impl Place {
    fn change(&self, change: impl FnOnce(&mut Taken, u64)) {
        let mut inner = self.places.lock();
        inner.clock += 1;
        let now = inner.clock;
        // The entry is missing if the connection was displaced.
        if let Some(taken) = inner.taken.get_mut(&self.number) {
            change(taken, now);
        }
    }

    /// The server knows the client: the connection is never displaced.
    pub fn known(&self) {
        self.change(|taken, _| taken.known = true);
    }

    /// A request was answered.
    pub(super) fn answered(&self) {
        self.change(|taken, now| {
            taken.answered = true;
            taken.last = now;
        });
    }

    /// A request has arrived completely and is being answered until the value is dropped.
    pub(super) fn work(self: &Arc<Self>) -> Work {
        self.change(|taken, _| taken.working += 1);
        Work(self.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().taken.remove(&self.number);
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct Work(Arc<Place>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.change(|taken, _| taken.working = taken.working.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn from(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn limits(connections: usize, of_address: usize) -> Limits {
        Limits { connections, of_address, ..Limits::BUSY }
    }

    fn has_to_go(displaced: &mut Displaced) -> bool {
        displaced.0.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn the_one_that_is_silent_longest_makes_room() {
        let places = Places::new(limits(3, 3));
        let mut all: Vec<_> = (1..=3).filter_map(|last| Places::enter(&places, from(last))).collect();
        all[0].0.answered();
        let newest = Places::enter(&places, from(9)).unwrap();
        // The second one was displaced: the first had an answer, as an API server's connection has.
        let gone: Vec<bool> = all.iter_mut().map(|(_, displaced)| has_to_go(displaced)).collect();
        assert_eq!(gone, [false, true, false]);
        // If all had answers, the one with the oldest answer is displaced.
        for (place, _) in [&all[2], &newest] {
            place.answered();
        }
        let _other = Places::enter(&places, from(9)).unwrap();
        assert!(has_to_go(&mut all[0].1));
        assert_eq!(places.lock().taken.len(), 3);
        drop((all, newest));
        assert_eq!(places.lock().taken.len(), 1);
    }

    #[test]
    fn known_and_busy_connections_are_kept() {
        let places = Places::new(limits(2, 2));
        let (known, mut of_known) = Places::enter(&places, from(1)).unwrap();
        known.known();
        let (busy, mut of_busy) = Places::enter(&places, from(2)).unwrap();
        let work = busy.work();
        assert!(Places::enter(&places, from(3)).is_none());
        assert!(!has_to_go(&mut of_known) && !has_to_go(&mut of_busy));
        drop(work);
        assert!(Places::enter(&places, from(3)).is_some());
        assert!(has_to_go(&mut of_busy) && !has_to_go(&mut of_known));
    }

    #[test]
    fn the_number_of_connections_of_one_address_is_limited() {
        let places = Places::new(limits(10, 2));
        let (_another, mut of_another) = Places::enter(&places, from(1)).unwrap();
        let mut flood: Vec<_> = (0..20).filter_map(|_| Places::enter(&places, from(2))).collect();
        assert_eq!(places.lock().taken.len(), 3);
        assert!(!has_to_go(&mut of_another));
        // Known clients do not count.
        flood[19].0.known();
        let _one_more = Places::enter(&places, from(2)).unwrap();
        assert_eq!(places.lock().taken.len(), 4);
        assert!(!has_to_go(&mut flood[18].1) && !has_to_go(&mut flood[19].1));
    }
}
