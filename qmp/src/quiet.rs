//! Limits log lines that a guest, a program in it, or an unknown client can cause. It may cause any number; few
//! are written.
//!
//! [`Quiet`] lets some lines through at once, then one in each [`EVERY`], together with the number of lines
//! left out before it. Without this limit a guest could fill its node's log, and the lines of others would be
//! rotated away.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One line in this time.
pub const EVERY: Duration = Duration::from_secs(10);

/// Longest part of a name from elsewhere that is kept, in characters.
const LONGEST_NAME: usize = 64;
/// Most names that are shown.
const MOST_NAMES: usize = 8;

/// A limit for lines of one kind.
#[derive(Debug)]
pub struct Quiet {
    /// Lines that may be written at once.
    most: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the full number of lines may be written at once again; if this is in the past, they may.
    full: Option<Instant>,
    left_out: u64,
}

impl Quiet {
    /// A limit of `most` lines at once, at least one.
    #[must_use]
    pub const fn new(most: u32) -> Self {
        Self { most, state: Mutex::new(State { full: None, left_out: 0 }) }
    }

    /// Whether a line may be written now: if so, the number of lines left out before it.
    pub fn line(&self) -> Option<u64> {
        self.line_at(Instant::now())
    }

    /// The same at a given moment.
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

/// Names as shown in a log line: some of them, shortened, without characters that act on a terminal.
pub fn names<'a>(all: impl IntoIterator<Item = &'a String>) -> String {
    let shown: Vec<String> = all.into_iter().take(MOST_NAMES).map(|name| start(name, LONGEST_NAME)).collect();
    shown.join(", ")
}

/// The first characters of a text as shown in a log line, at most `most`, without those that act on a terminal.
#[must_use]
pub fn start(text: &str, most: usize) -> String {
    text.chars().take(most).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_has_the_number_of_lines_left_out() {
        let (quiet, begun) = (Quiet::new(1), Instant::now());
        let mut lines = Vec::new();
        for tenth in 0..1000 {
            lines.extend(quiet.line_at(begun + Duration::from_millis(100) * tenth));
        }
        assert_eq!(lines, [0, 99, 99, 99, 99, 99, 99, 99, 99, 99]);
    }

    #[test]
    fn the_first_lines_are_written_at_once() {
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
