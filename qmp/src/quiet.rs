//! Log lines that somebody else decides on: a guest, or what runs in it. He may cause as many as he likes; few are written.
//!
//! [`Quiet`] lets some lines through at once and then one in [`EVERY`], and says with it how many were left out before. Without
//! it a guest fills the log of its node, and the lines of others are rotated away.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One line in this time.
pub const EVERY: Duration = Duration::from_secs(10);

/// What is kept of a name that came from elsewhere, in characters.
const LONGEST_NAME: usize = 64;
/// Names that are shown at most.
const MOST_NAMES: usize = 8;

/// A bound for the lines of one kind.
#[derive(Debug)]
pub struct Quiet {
    /// Lines at once.
    most: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When as many lines as at first may be written again; they may where that is past.
    full: Option<Instant>,
    left_out: u64,
}

impl Quiet {
    /// `most` lines at once, at least one.
    #[must_use]
    pub const fn new(most: u32) -> Self {
        Self { most, state: Mutex::new(State { full: None, left_out: 0 }) }
    }

    /// Whether a line may be written now: then the number of those left out before it.
    pub fn line(&self) -> Option<u64> {
        self.line_at(Instant::now())
    }

    /// The same at some moment.
    pub fn line_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let full = state.full.unwrap_or(now).max(now);
        if full - now > EVERY * self.most.saturating_sub(1) {
            state.left_out += 1;
            return None;
        }
        state.full = Some(full + EVERY);
        Some(std::mem::take(&mut state.left_out))
    }
}

/// Names as they are shown in a line: some of them, cut, and with nothing that acts on a terminal.
pub fn names<'a>(all: impl IntoIterator<Item = &'a String>) -> String {
    let shown: Vec<String> = all
        .into_iter()
        .take(MOST_NAMES)
        .map(|name| name.chars().take(LONGEST_NAME).flat_map(char::escape_debug).collect())
        .collect();
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_tells_of_those_left_out() {
        let (quiet, begun) = (Quiet::new(1), Instant::now());
        let mut lines = Vec::new();
        for tenth in 0..1000 {
            lines.extend(quiet.line_at(begun + Duration::from_millis(100) * tenth));
        }
        assert_eq!(lines, [0, 99, 99, 99, 99, 99, 99, 99, 99, 99]);
    }

    #[test]
    fn some_lines_may_come_at_once() {
        let (quiet, now) = (Quiet::new(3), Instant::now());
        let count = |at| (0..10).filter(|_| quiet.line_at(at).is_some()).count();
        assert_eq!((count(now), count(now + EVERY), count(now + EVERY * 100)), (3, 1, 3));
    }

    #[test]
    fn names_are_short_and_harmless() {
        let all: Vec<String> =
            (0..1000).map(|number| format!("\u{1b}{number}{}", "x".repeat(1 << 16))).collect();
        let shown = names(&all);
        assert!(shown.len() < 1000 && shown.starts_with("\\u{1b}0xx"), "{shown}");
    }
}
