//! The progress of an upload, in one line of a terminal that is overwritten.

use std::io::{Write, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// `12.00 MiB / 48.00 MiB [=======>      ]  25% 6.00 MiB/s`
const LINE: &str = "{bytes} / {total_bytes} [{bar:30}] {percent:>3}% {bytes_per_sec}";

/// The progress line of one try. Nothing is shown where standard error is not a terminal.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Of a try that begins at that byte of a file of that size, in bytes.
    pub(super) fn of(from: u64, length: u64) -> Self {
        let style = ProgressStyle::with_template(LINE).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(length).with_style(style.progress_chars("=> ")).with_position(from);
        // What a former try has sent does not count for the speed of this one.
        bar.tick();
        bar.reset_eta();
        Self(bar)
    }

    /// Sent bytes.
    pub(super) fn show(&self, sent: u64) {
        self.0.set_position(sent);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // The line stays, and what follows begins another.
        self.0.abandon();
        if !self.0.is_hidden() {
            let _ = writeln!(stderr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_of_the_line_is_valid() {
        assert!(ProgressStyle::with_template(LINE).is_ok());
    }

    #[test]
    fn what_a_former_try_has_sent_does_not_count_for_the_speed() {
        let progress = Progress::of(10 << 40, 48 << 40);
        progress.show((10 << 40) + 1);
        let speed = progress.0.per_sec();
        assert!(speed < 1e12, "{speed} bytes a second");
    }
}
