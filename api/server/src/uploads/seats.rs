//! Seats: how many uploads there are at the same time, altogether and into the claims of one namespace.
//!
//! A user who makes pods can have one of their own receive what is sent into their claim. It may take nothing for a day, so the
//! users of one namespace never get all seats.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::answer::Refusal;

/// Uploads at the same time, in each replica. Each takes some hundred kilobytes.
const MOST: usize = 64;
/// The same into claims of one namespace.
const OF_NAMESPACE: usize = 16;

/// Uploads by the namespaces of their claims.
#[derive(Debug, Clone, Default)]
pub(super) struct Seats(Arc<Mutex<BTreeMap<String, usize>>>);

/// A seat, which is taken for as long as this value is held.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    namespace: String,
}

impl Seats {
    /// Takes a seat.
    ///
    /// # Errors
    /// 503 if there is none: the client tries again.
    pub(super) fn take(&self, namespace: &str) -> Result<Seat, Refusal> {
        let mut taken = self.lock();
        if taken.values().sum::<usize>() >= MOST {
            return Err(Refusal::unavailable(format!("{MOST} uploads are under way: try again later")));
        }
        let own = taken.entry(namespace.to_owned()).or_default();
        if *own >= OF_NAMESPACE {
            return Err(Refusal::unavailable(format!(
                "{OF_NAMESPACE} uploads into claims of namespace {namespace} are under way: try again later"
            )));
        }
        *own += 1;
        Ok(Seat { seats: self.clone(), namespace: namespace.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        // No code panics while it holds the lock with the map half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        if let Some(own) = taken.get_mut(&self.namespace) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_of_one_namespace_never_get_all_seats() {
        let seats = Seats::default();
        let mut own: Vec<Seat> = (0..OF_NAMESPACE).map(|_| seats.take("shop").unwrap()).collect();
        let refusal = seats.take("shop").unwrap_err();
        assert!(refusal.message.contains("namespace shop"), "{}", refusal.message);
        let other = seats.take("bank").unwrap();
        own.pop();
        own.push(seats.take("shop").unwrap());
        assert!(seats.take("shop").is_err());
        drop((own, other));
        assert!(seats.lock().is_empty());
    }

    #[test]
    fn all_seats_are_bounded() {
        let seats = Seats::default();
        let all: Vec<Seat> =
            (0..MOST).map(|n| seats.take(&format!("ns-{}", n / OF_NAMESPACE)).unwrap()).collect();
        let refusal = seats.take("another").unwrap_err();
        assert!(refusal.message.contains("64 uploads"), "{}", refusal.message);
        drop(all);
        assert!(seats.take("another").is_ok());
    }
}
