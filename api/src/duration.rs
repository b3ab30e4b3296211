//! Durations as Go writes them: `36h`, `1h30m`, `1.5s`.

use std::time::Duration;

/// Units with their length in nanoseconds; the longer names first.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("\u{b5}s", 1e3),
    ("\u{3bc}s", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
];

/// Parses a duration. Negative durations, which Go has, are refused.
pub fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut seconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let number: f64 = rest[..end].parse().ok()?;
        let (unit, length) = UNITS.iter().find(|(unit, _)| {
            rest[end..].strip_prefix(unit).is_some_and(|after| !after.starts_with(char::is_alphabetic))
        })?;
        seconds += number * length / 1e9;
        rest = &rest[end + unit.len()..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_writes() {
        for (text, millis) in [
            ("0", 0),
            ("168h", 604_800_000),
            ("1h30m0s", 5_400_000),
            ("1.5s", 1500),
            ("20ms", 20),
            ("+1m", 60_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "1", "h", "-1h", "1d", "1h 2m", "1.2.3s", "s1", "1hm", "99999999999999999999999h"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
