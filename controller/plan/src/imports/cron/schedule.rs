//! The next time of a cron schedule, in UTC. The format is that of Kubernetes' CronJobs.

use k8s_openapi::jiff::civil::Date;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Longest schedule, in bytes.
const LONGEST: usize = 256;
/// Days within which a time has to come: every leap day does.
const MOST_DAYS: usize = 9 * 366;
/// Minutes of a day.
const DAY: u16 = 24 * 60;
/// The shortest pause of `@every`.
const SHORTEST: SignedDuration = SignedDuration::from_mins(1);

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// At these minutes.
    At(Fields),
    /// After this pause, again and again.
    Every(SignedDuration),
}

/// The fields of a schedule: a bit for each value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether one of the two fields for days takes any value: then both have to match, otherwise one of them.
    both_days: bool,
}

impl Schedule {
    /// Parses a schedule.
    ///
    /// # Errors
    /// Why the text is not a schedule.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() > LONGEST {
            return Err(format!("it is longer than {LONGEST} bytes"));
        }
        if let Some(pause) = text.strip_prefix("@every ") {
            let pause =
                duration(pause.trim()).ok_or_else(|| format!("{pause:?} is not a duration like 1h30m"))?;
            return Ok(Schedule::Every(pause.max(SHORTEST)));
        }
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return Err(format!("it has {} fields, not minute, hour, day, month and weekday", fields.len()));
        };
        Ok(Schedule::At(Fields {
            minutes: field(minutes, 0, 59, &[])?,
            hours: field(hours, 0, 23, &[])?,
            days: field(days, 1, 31, &[])?,
            months: field(months, 1, 12, &MONTHS)?,
            weekdays: field(weekdays, 0, 6, &WEEKDAYS)?,
            both_days: is_any(days) || is_any(weekdays),
        }))
    }

    /// The first time after the given one; `None` where there is none.
    pub(super) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let fields = match self {
            Schedule::Every(pause) => return after.checked_add(*pause).ok(),
            Schedule::At(fields) => fields,
        };
        let start = after.to_zoned(TimeZone::UTC).datetime();
        let minute = u16::from(start.hour().unsigned_abs()) * 60 + u16::from(start.minute().unsigned_abs());
        let (mut date, mut least) = (start.date(), minute + 1);
        for _ in 0..MOST_DAYS {
            if fields.has_day(date)
                && let Some(minute) = fields.minute(least)
            {
                let (hour, minute) = (i8::try_from(minute / 60).ok()?, i8::try_from(minute % 60).ok()?);
                let time = date.at(hour, minute, 0, 0).to_zoned(TimeZone::UTC).ok()?;
                return Some(time.timestamp());
            }
            (date, least) = (date.tomorrow().ok()?, 0);
        }
        None
    }
}

impl Fields {
    fn has_day(&self, date: Date) -> bool {
        let has = |bits: u64, value: i8| bits >> value.unsigned_abs() & 1 == 1;
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        has(self.months, date.month()) && if self.both_days { day && weekday } else { day || weekday }
    }

    fn minute(&self, least: u16) -> Option<u16> {
        let has = |bits: u64, value: u16| bits >> value & 1 == 1;
        (least..DAY).find(|at| has(self.hours, at / 60) && has(self.minutes, at % 60))
    }
}

fn is_any(field: &str) -> bool {
    field.split(',').any(|part| matches!(part, "*" | "?"))
}

/// A bit for each value of a field.
fn field(text: &str, least: u8, most: u8, names: &[&str]) -> Result<u64, String> {
    let mut bits = 0;
    for part in text.split(',') {
        let wrong = || format!("{part:?} is not a value from {least} to {most}");
        let value = |text: &str| {
            let named = names.iter().position(|name| text.eq_ignore_ascii_case(name));
            let named = named.and_then(|at| u8::try_from(at).ok()).map(|at| at + least);
            let digits = text.bytes().all(|digit| digit.is_ascii_digit());
            named.or_else(|| text.parse::<u8>().ok().filter(|_| digits))
        };
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let (first, last) = match range.split_once('-') {
            None if matches!(range, "*" | "?") => (least, most),
            None => {
                let first = value(range).ok_or_else(wrong)?;
                // `5/15` runs to the end.
                (first, if step.is_some() { most } else { first })
            }
            Some((first, last)) => (value(first).ok_or_else(wrong)?, value(last).ok_or_else(wrong)?),
        };
        let step = step.map_or(Some(1), |step| step.parse::<u8>().ok()).filter(|step| *step > 0);
        let step = step.ok_or_else(wrong)?;
        if first < least || last > most || first > last {
            return Err(wrong());
        }
        for value in (first..=last).step_by(usize::from(step)) {
            bits |= 1 << value;
        }
    }
    Ok(bits)
}

/// Parses `1h30m` and the like.
fn duration(text: &str) -> Option<SignedDuration> {
    let (mut rest, mut all) = (text, SignedDuration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit())?;
        let count: i64 = rest[..digits].parse().ok()?;
        let unit = match rest[digits..].chars().next()? {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        all = all.checked_add(SignedDuration::from_secs(count.checked_mul(unit)?))?;
        rest = &rest[digits + 1..];
    }
    (all > SignedDuration::ZERO).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str) -> String {
        let found = Schedule::parse(schedule).unwrap().next(after.parse().unwrap());
        found.map(|time| time.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_schedule_comes_next_when_all_its_fields_fit() {
        for (schedule, after, expected) in [
            ("0 */12 * * *", "2026-11-25T14:13:39Z", "2026-11-26T00:00:00Z"),
            ("30 3 * * *", "2026-11-25T03:30:00Z", "2026-11-26T03:30:00Z"),
            ("30 3 * * *", "2026-11-25T03:29:59Z", "2026-11-25T03:30:00Z"),
            ("* * * * *", "2026-12-31T23:59:30Z", "2027-01-01T00:00:00Z"),
            ("0 0 29 feb *", "2026-11-25T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("15,45 9-17/4 * * mon-fri", "2026-11-27T17:50:00Z", "2026-11-30T09:15:00Z"),
            ("0 0 1 * sun", "2026-11-25T00:00:00Z", "2026-11-29T00:00:00Z"),
            ("0 0 1 * ?", "2026-11-25T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("50/5 23 * * *", "2026-11-25T23:56:00Z", "2026-11-26T23:50:00Z"),
            ("@weekly", "2026-11-25T00:00:00Z", "2026-11-29T00:00:00Z"),
            ("@every 1h30m", "2026-11-25T00:00:00Z", "2026-11-25T01:30:00Z"),
            ("@every 1s", "2026-11-25T00:00:00Z", "2026-11-25T00:01:00Z"),
            ("0 0 30 2 *", "2026-11-25T00:00:00Z", ""),
            ("@every 99999999999999h", "2026-11-25T00:00:00Z", ""),
        ] {
            assert_eq!(next(schedule, after), expected, "{schedule} after {after}");
        }
    }

    #[test]
    fn invalid_schedules_are_refused() {
        for bad in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 7",
            "5-1 * * * *",
            "*/0 * * * *",
            "a * * * *",
            "-1 * * * *",
            "+1 * * * *",
            "@often",
            "@every 1d",
            "@every ",
            "1-2-3 * * * *",
            "TZ=UTC 0 0 * * *",
        ] {
            assert!(Schedule::parse(bad).is_err(), "{bad}");
        }
        assert!(Schedule::parse(&format!("{}0 * * * *", "0,".repeat(200))).is_err());
    }
}
