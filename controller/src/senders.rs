//! Whether pods may exist that send claims to other namespaces: only then they are looked for.

use std::sync::Mutex;
use std::sync::PoisonError;

/// The state of this knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// There may be some. A pod that is made during a look may be missed by it.
    Maybe,
    /// A look is in progress.
    Looking,
    /// There are none.
    None,
}

/// What this process knows of senders. A former process may have left some.
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

    /// A sender is about to be made.
    pub(crate) fn may_be(&self) {
        self.set(|_| Known::Maybe);
    }

    /// Whether to look for senders; if so, the look begins now.
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
    fn a_sender_created_during_a_look_is_looked_for_again() {
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
