//! Prints what a command waits for: on a terminal in one line that is overwritten, elsewhere in a line for
//! each change.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// One wait.
pub(crate) struct Waiting {
    terminal: bool,
    begun: Instant,
    told: Option<String>,
}

impl Waiting {
    pub(crate) fn begin() -> Self {
        Self { terminal: stderr().is_terminal(), begun: Instant::now(), told: None }
    }

    /// How long it has lasted.
    pub(crate) fn lasted(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Prints what is being done or waited for.
    pub(crate) fn tell(&mut self, what: &str) {
        let text = line(self.terminal, self.told.as_deref(), what, self.lasted());
        self.told = Some(what.to_owned());
        write(&text);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.terminal && self.told.is_some() {
            write("\r\x1b[K");
        }
    }
}

/// The wait continues without its terminal.
fn write(text: &str) {
    let mut output = stderr();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// The text to print, without control characters from a server's message.
fn line(terminal: bool, told: Option<&str>, what: &str, lasted: Duration) -> String {
    let words: String = what.chars().filter(|letter| !letter.is_control()).collect();
    match terminal {
        true => format!("\r{:>4} s  {words}\x1b[K", lasted.as_secs()),
        false if told == Some(what) => String::new(),
        false => format!("{:>4} s  {words}\n", lasted.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_one_line_and_a_file_one_for_each_change() {
        let after = Duration::from_millis(2900);
        assert_eq!(line(true, Some("a"), "a", after), "\r   2 s  a\x1b[K");
        assert_eq!(line(false, None, "a\x1b[31m\n", after), "   2 s  a[31m\n");
        assert_eq!(line(false, Some("a"), "a", after), "");
        assert_eq!(line(false, Some("a"), "b", after), "   2 s  b\n");
    }
}
