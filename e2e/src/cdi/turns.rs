//! Which tests of one program can run at the same time: those with CDI's kinds, or those without.

use std::sync::{Condvar, Mutex, PoisonError};

/// The tests of which side may run, in one program.
pub(super) static TURNS: Turns =
    Turns { held: Mutex::new(Held { by: Side::Absent, tests: 0 }), changed: Condvar::new() };

/// A group of tests that can run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// There is no CDI.
    Absent,
    /// CDI's kinds exist.
    Kinds,
    /// A test that needs both in turn, and runs alone.
    Alone,
}

struct Held {
    by: Side,
    tests: usize,
}

pub(super) struct Turns {
    held: Mutex<Held>,
    changed: Condvar,
}

/// A test's turn, until it is dropped.
pub(super) struct Turn;

impl Turns {
    /// Waits until no test of another side runs.
    pub(super) fn take(&self, side: Side) -> Turn {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let others = |held: &mut Held| held.tests > 0 && (held.by != side || side == Side::Alone);
        let mut held = self.changed.wait_while(held, others).unwrap_or_else(PoisonError::into_inner);
        held.by = side;
        held.tests += 1;
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURNS.held.lock().unwrap_or_else(PoisonError::into_inner).tests -= 1;
        TURNS.changed.notify_all();
    }
}
