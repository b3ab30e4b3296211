//! Prints what a command waits for: on a terminal in one line that is overwritten. Elsewhere, a wait that takes minutes has a line for
//! each change, and others have none.

use std::io::{IsTerminal, Write, stderr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long something may take before a terminal says what it is.
const LONG: Duration = Duration::from_secs(2);
/// How often the line is written again.
const EVERY: Duration = Duration::from_secs(1);

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
    told: Option<String>,
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
        Self { shown, begun: Instant::now(), told: None }
    }

    /// How long it has lasted.
    pub(crate) fn lasted(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Prints what is being done or waited for.
    pub(crate) fn tell(&mut self, what: &str) {
        let text = line(self.shown, self.told.as_deref(), what, self.lasted());
        self.told = Some(what.to_owned());
        write(&text);
    }

    /// Lets that time pass. Then the line is empty, and the caller may print.
    pub(crate) async fn pause(&mut self, time: Duration, what: &str) {
        self.tell(what);
        tokio::time::sleep(time).await;
        self.clear();
    }

    fn clear(&mut self) {
        if self.told.take().is_some() && self.shown == Shown::Line {
            write("\r\x1b[K");
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
    let mut turn = tokio::time::interval_at(tokio::time::Instant::now() + LONG, EVERY);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = turn.tick() => waiting.tell(what),
        }
    }
}

/// The wait continues without its terminal.
fn write(text: &str) {
    let mut output = stderr();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// The text to print, without control characters from a server's message.
fn line(shown: Shown, told: Option<&str>, what: &str, lasted: Duration) -> String {
    let words: String = what.chars().filter(|letter| !letter.is_control()).collect();
    match shown {
        Shown::Line => format!("\r{:>4} s  {words}\x1b[K", lasted.as_secs()),
        Shown::Lines if told != Some(what) => format!("{:>4} s  {words}\n", lasted.as_secs()),
        Shown::Lines | Shown::Nowhere => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_one_line_and_a_file_one_for_each_change() {
        let after = Duration::from_millis(2900);
        assert_eq!(line(Shown::Line, Some("a"), "a", after), "\r   2 s  a\x1b[K");
        assert_eq!(line(Shown::Lines, None, "a\x1b[31m\n", after), "   2 s  a[31m\n");
        assert_eq!(line(Shown::Lines, Some("a"), "a", after), "");
        assert_eq!(line(Shown::Lines, Some("a"), "b", after), "   2 s  b\n");
        assert_eq!(line(Shown::Nowhere, None, "a", after), "");
    }
}
