//! Answers to the guest's requests of DHCP and DHCPv6, at a limited pace.
//!
//! A guest asks for its addresses some times while it boots, and seldom after that. One that floods its launcher with
//! requests gets no answer to most of them. Advertisements have a pace of their own ([`pace`](super::pace)).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use barevirt_protocol::pace::Bucket;
use barevirt_qmp::quiet::Quiet;
use tokio::time::Instant;

use super::guest::Guest;
use super::{v4, v6};

/// Answers that a card gets at once.
const AT_ONCE: u32 = 20;
/// After that it gets one in this time.
const EVERY: Duration = Duration::from_millis(100);

/// What answers the requests of one card.
#[derive(Debug)]
pub(super) struct Answers<'a> {
    guest: &'a Guest,
    pace: Mutex<Bucket>,
    quiet: Quiet,
}

impl<'a> Answers<'a> {
    pub(super) fn new(guest: &'a Guest) -> Self {
        Self { guest, pace: Mutex::new(Bucket::new(AT_ONCE, EVERY)), quiet: Quiet::new(1) }
    }

    /// The answer to a request of DHCP, if there is one and it is time for one.
    pub(super) fn v4(&self, request: &[u8], now: Instant) -> Option<v4::Reply> {
        v4::answer(request, self.guest).filter(|_| self.is_time(now))
    }

    /// The answer to a message of DHCPv6, if there is one and it is time for one.
    pub(super) fn v6(&self, message: &[u8], now: Instant) -> Option<Vec<u8>> {
        v6::answer(message, self.guest).filter(|_| self.is_time(now))
    }

    /// Whether an answer may be given now. Only messages that have one count. Other hosts of the guest's network do not
    /// use up the guest's answers: the frames on its tap are its own, and the handler's socket for DHCPv4 receives only
    /// what is sent from its MAC address, whatever a request says.
    fn is_time(&self, now: Instant) -> bool {
        if self.pace.lock().unwrap_or_else(PoisonError::into_inner).take(now) {
            return true;
        }
        if let Some(left_out) = self.quiet.line_at(now.into_std()) {
            let mac = self.guest.mac;
            tracing::warn!(%mac, left_out, "the guest asks for its addresses too often: no answer");
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::guest::tests::guest;
    use super::*;

    #[test]
    fn a_card_gets_twenty_answers_at_once_and_then_ten_in_a_second() {
        let guest = guest();
        let (answers, begun) = (Answers::new(&guest), Instant::now());
        let (discover, solicit) = (v4::tests::discover(), v6::tests::solicit());
        // Both families in turn.
        let count = |now: Instant, requests: usize| {
            let is_answered = |number: &usize| match number % 2 {
                0 => answers.v4(&discover, now).is_some(),
                _ => answers.v6(&solicit, now).is_some(),
            };
            (0..requests).filter(is_answered).count()
        };
        assert_eq!(count(begun, 1000), 20);
        let second = (1..=100).map(|tick| count(begun + Duration::from_millis(10) * tick, 50));
        assert_eq!(second.sum::<usize>(), 10);
        assert_eq!(count(begun + Duration::from_secs(60), 1000), 20);
    }

    #[test]
    fn messages_without_an_answer_do_not_count() {
        let guest = guest();
        let (answers, now) = (Answers::new(&guest), Instant::now());
        let mut stranger = v4::tests::discover();
        stranger[28] ^= 1;
        assert!((0..1000).all(|_| answers.v4(&stranger, now).is_none() && answers.v6(&[], now).is_none()));
        assert!(answers.v4(&v4::tests::discover(), now).is_some());
    }
}
