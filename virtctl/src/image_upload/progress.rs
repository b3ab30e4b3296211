//! The progress of an upload, in one line of a terminal that is overwritten.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

const BAR: u64 = 30;

/// The progress line of one try. Nothing is shown where standard error is not a terminal.
pub(super) struct Progress {
    shown: bool,
    /// Where this try began, and the length.
    from: u64,
    length: u64,
    started: Instant,
}

impl Progress {
    /// Of a try that begins at that byte of a file of that size, in bytes.
    pub(super) fn of(from: u64, length: u64) -> Self {
        Self { shown: stderr().is_terminal(), from, length, started: Instant::now() }
    }

    /// Sent bytes.
    pub(super) fn show(&self, sent: u64) {
        if self.shown {
            self.write(&format!("\r{}\x1b[K", line(sent, self.from, self.length, self.started.elapsed())));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            self.write("\n");
        }
    }
}

impl Progress {
    fn write(&self, text: &str) {
        let mut output = stderr();
        // The upload continues without its terminal.
        let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    }
}

/// `12.00 MiB / 48.00 MiB [=======>      ]  25% 6.00 MiB/s`
fn line(sent: u64, from: u64, length: u64, since: Duration) -> String {
    let part = |of: u64| u128::from(sent) * u128::from(of) / u128::from(length.max(1));
    let filled = usize::try_from(part(BAR)).unwrap_or_default();
    let width = usize::try_from(BAR).unwrap_or_default();
    let bar = match filled < width {
        true => format!("{}>", "=".repeat(filled)),
        false => "=".repeat(width),
    };
    let speed = u128::from(sent.saturating_sub(from)) * 1000 / since.as_millis().max(1);
    format!(
        "{} / {} [{bar:<width$}] {:>3}% {}/s",
        amount(sent.into()),
        amount(length.into()),
        part(100),
        amount(speed)
    )
}

/// Bytes in the largest fitting unit, with two decimals.
fn amount(bytes: u128) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => {
            let hundredths = (bytes * 100) >> shift;
            format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is_and_how_fast() {
        let mib = 1 << 20;
        assert_eq!(
            line(12 * mib, 0, 48 * mib, Duration::from_secs(2)),
            "12.00 MiB / 48.00 MiB [=======>                      ]  25% 6.00 MiB/s"
        );
        assert_eq!(
            line(3 << 29, 0, 3 << 29, Duration::from_secs(1)),
            "1.50 GiB / 1.50 GiB [==============================] 100% 1.50 GiB/s"
        );
        assert!(line(12 * mib, 10 * mib, 48 * mib, Duration::from_secs(2)).ends_with(" 1.00 MiB/s"));
        assert_eq!(
            line(0, 0, 100, Duration::ZERO),
            "0 B / 100 B [>                             ]   0% 0 B/s"
        );
    }
}
