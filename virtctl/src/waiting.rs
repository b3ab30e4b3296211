//! Prints what a command waits for: on a terminal in one line that is overwritten. Elsewhere, a wait that takes minutes has a line for
//! each change, and others have none.

use std::io::{IsTerminal, Write, stderr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How long something may take before a terminal says what it is.
const LONG: Duration = Duration::from_secs(2);
/// How often the line is written again.
const EVERY: Duration = Duration::from_secs(1);
/// The line of a terminal.
const LINE: &str = "{elapsed:>5}  {msg}";

/// Whether [`during`] has the line.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Where a wait is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// In a line of a terminal.
    Line,
    /// In a line for each change.
    Lines,
    Nowhere,
}

/// One wait.
pub(crate) struct Waiting {
    shown: Shown,
    begun: Instant,
    /// What the last of several lines said.
    told: Option<String>,
    line: Option<ProgressBar>,
}

impl Waiting {
    /// A wait that takes minutes.
    pub(crate) fn begin() -> Self {
        Self::shown(if stderr().is_terminal() { Shown::Line } else { Shown::Lines })
    }

    /// A wait that only a terminal shows.
    pub(crate) fn on_terminal() -> Self {
        Self::shown(if stderr().is_terminal() { Shown::Line } else { Shown::Nowhere })
    }

    fn shown(shown: Shown) -> Self {
        Self { shown, begun: Instant::now(), told: None, line: None }
    }

    /// How long it has lasted.
    pub(crate) fn lasted(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Prints what is being done or waited for.
    pub(crate) fn tell(&mut self, what: &str) {
        let words = printable(what);
        match (self.shown, &self.line) {
            (Shown::Line, Some(line)) => line.set_message(words),
            (Shown::Line, None) => self.line = Some(line(words, self.lasted())),
            (Shown::Lines, _) => {
                // The wait continues without its output.
                let text = change(self.told.as_deref(), &words, self.lasted());
                let _ = stderr().write_all(text.as_bytes());
                self.told = Some(words);
            }
            (Shown::Nowhere, _) => {}
        }
    }

    /// Lets that time pass. Then the line is empty, and the caller may print.
    pub(crate) async fn pause(&mut self, time: Duration, what: &str) {
        self.tell(what);
        tokio::time::sleep(time).await;
        self.clear();
    }

    fn clear(&mut self) {
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Frees the line again.
struct Taken;

impl Drop for Taken {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Relaxed);
    }
}

/// Does something that prints nothing. When it takes longer than two seconds, a terminal says what it is. Within another such
/// wait, the outer one says it.
pub(crate) async fn during<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut waiting = Waiting::on_terminal();
    if waiting.shown != Shown::Line || TAKEN.swap(true, Ordering::Relaxed) {
        return work.await;
    }
    let _taken = Taken;
    let mut work = pin!(work);
    if let Ok(done) = tokio::time::timeout(LONG, work.as_mut()).await {
        return done;
    }
    waiting.tell(what);
    work.await
}

/// A line of a terminal, about something that has lasted for that time.
fn line(words: String, lasted: Duration) -> ProgressBar {
    let style = ProgressStyle::with_template(LINE).unwrap_or_else(|_| ProgressStyle::default_spinner());
    let line = ProgressBar::new_spinner().with_style(style).with_message(words).with_elapsed(lasted);
    line.enable_steady_tick(EVERY);
    line
}

/// The line about a change; nothing if there is none.
fn change(told: Option<&str>, words: &str, lasted: Duration) -> String {
    if told == Some(words) {
        return String::new();
    }
    format!("{:>4} s  {words}\n", lasted.as_secs())
}

/// The text without control characters, which a server's message may contain.
fn printable(what: &str) -> String {
    what.chars().filter(|letter| !letter.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_line_for_each_change() {
        let after = Duration::from_millis(2900);
        assert_eq!(change(None, "a", after), "   2 s  a\n");
        assert_eq!(change(Some("a"), "a", after), "");
        assert_eq!(change(Some("a"), "b", after), "   2 s  b\n");
    }

    #[test]
    fn a_message_has_no_control_characters_and_the_template_of_the_line_is_valid() {
        assert_eq!(printable("a\x1b[31m\n"), "a[31m");
        assert!(ProgressStyle::with_template(LINE).is_ok());
    }
}
