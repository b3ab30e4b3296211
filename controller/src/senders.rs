//! Whether there may be pods that send claims to other namespaces: only then they are looked for.

use std::sync::Mutex;
use std::sync::PoisonError;

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// There may be some; one that is made during a look may not be seen by it.
    Maybe,
    /// A look is on its way.
    Looking,
    /// There are none.
    None,
}

/// What this process knows of them. A former process may have left some.
#[derive(Debug)]
pub struct Senders(Mutex<Known>);

impl Default for Senders {
    fn default() -> Self {
        Senders(Mutex::new(Known::Maybe))
    }
}

impl Senders {
    fn set(&self, change: impl FnOnce(Known) -> Known) -> Known {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *known;
        *known = change(before);
        before
    }

    /// One is about to be made.
    pub(crate) fn may_be(&self) {
        self.set(|_| Known::Maybe);
    }

    /// Whether a look is worth it, which begins now.
    pub(crate) fn are_there(&self) -> bool {
        self.set(|known| if known == Known::None { known } else { Known::Looking }) != Known::None
    }

    /// The look has found none.
    pub(crate) fn are_gone(&self) {
        self.set(|known| if known == Known::Looking { Known::None } else { known });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_made_during_a_look_is_looked_for_again() {
        let senders = Senders::default();
        assert!(senders.are_there(), "a former process may have left some");
        senders.are_gone();
        assert!(!senders.are_there());
        senders.may_be();
        assert!(senders.are_there());
        senders.may_be();
        senders.are_gone();
        assert!(senders.are_there());
    }
}
