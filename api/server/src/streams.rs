//! How many streams there are: limits for each guest and each user, and what one costs.
//!
//! A stream is a console, a display or a forwarded connection. Without limits one user's loop takes the memory of all, or
//! all the connections that this server accepts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::answer::Refusal;

/// Streams to one guest at the same time.
pub const OF_GUEST: usize = 128;
/// Streams of one user at the same time.
pub const OF_USER: usize = 512;

/// All that are open.
#[derive(Debug, Clone, Default)]
pub struct Streams(Arc<Mutex<HashMap<Holder, usize>>>);

/// Who or what has streams.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Holder {
    User(String),
    Guest(String, String),
}

/// One that is open, for as long as this value is held.
#[derive(Debug)]
pub struct Seat {
    streams: Streams,
    holders: [Holder; 2],
}

impl Streams {
    /// One more.
    ///
    /// # Errors
    /// 429 naming the user or the guest that has too many.
    pub fn open(&self, user: &str, namespace: &str, name: &str) -> Result<Seat, Refusal> {
        let holders = [Holder::User(user.to_owned()), Holder::Guest(namespace.to_owned(), name.to_owned())];
        let mut open = self.lock();
        let of = |holder: &Holder| open.get(holder).copied().unwrap_or_default();
        if of(&holders[0]) >= OF_USER {
            return Err(Refusal::too_many(format!(
                "user \"{user}\" has {OF_USER} streams open, and may have no more: close one first"
            )));
        }
        if of(&holders[1]) >= OF_GUEST {
            return Err(Refusal::too_many(format!(
                "virtualmachineinstance {namespace}/{name} has {OF_GUEST} streams open, and may have no more: \
                 close one first"
            )));
        }
        for holder in &holders {
            *open.entry(holder.clone()).or_default() += 1;
        }
        drop(open);
        Ok(Seat { streams: self.clone(), holders })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Holder, usize>> {
        // Nothing that holds it can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.streams.lock();
        for holder in &self.holders {
            if let Some(count) = open.get_mut(holder) {
                *count -= 1;
                if *count == 0 {
                    open.remove(holder);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_and_a_user_have_so_many_and_no_more() {
        let streams = Streams::default();
        let mut held: Vec<Seat> = (0..OF_GUEST)
            .map(|number| streams.open(&format!("user{number}"), "shop", "web").unwrap())
            .collect();
        let refused = streams.open("jdoe", "shop", "web").unwrap_err();
        assert_eq!((refused.code.as_u16(), refused.reason), (429, "TooManyRequests"));
        assert!(refused.message.contains("virtualmachineinstance shop/web has 128 streams"), "{refused:?}");
        assert!(streams.open("jdoe", "shop", "db").is_ok());
        held.pop();
        assert!(streams.open("jdoe", "shop", "web").is_ok());
        drop(held);
        let held: Vec<Seat> = (0..OF_USER)
            .map(|number| streams.open("jdoe", "shop", &format!("vm{number}")).unwrap())
            .collect();
        let refused = streams.open("jdoe", "shop", "web").unwrap_err();
        assert!(refused.message.contains("user \"jdoe\" has 512 streams"), "{refused:?}");
        assert!(streams.open("other", "shop", "web").is_ok());
        drop(held);
        assert!(streams.lock().is_empty());
    }
}
