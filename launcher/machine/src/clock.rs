//! The guest's hardware clock and the machine's timers.

use crate::quote::Options;

/// The clock that the hardware clock follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// The host's clock, including its changes.
    Wall,
    /// The guest's time, which stops while the machine is paused.
    Guest,
}

/// The battery-backed clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rtc {
    /// Its time at the start, such as `2026-11-22T01:02:03`; `None` for UTC.
    pub base: Option<String>,
    /// The clock that it follows; by default QEMU's choice, the host's clock.
    pub track: Option<Track>,
    /// Whether missed ticks are not made up for.
    pub ticks_are_lost: bool,
}

impl Rtc {
    /// The argument of `-rtc`.
    pub(crate) fn option(&self) -> String {
        let track = self.track.map(|track| match track {
            Track::Wall => "host",
            Track::Guest => "vm",
        });
        Options::new()
            .with("base", self.base.as_deref().unwrap_or("utc"))
            .maybe("clock", track)
            .with("driftfix", if self.ticks_are_lost { "none" } else { "slew" })
            .into_string()
    }
}

/// What happens to ticks of the interval timer that the guest missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostTicks {
    /// They are delivered later.
    Delay,
    /// They are dropped.
    Discard,
}

/// The machine's timers; `None` keeps the machine type's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timers {
    /// Whether the high precision event timer exists.
    pub hpet: Option<bool>,
    /// Whether the interval timer exists.
    pub pit: Option<bool>,
    /// Policy of the interval timer, which only KVM's timer has.
    pub pit_ticks: Option<LostTicks>,
}

impl Timers {
    /// The argument of `-global` for the interval timer's policy.
    pub(crate) fn pit_policy(&self) -> Option<&'static str> {
        self.pit_ticks.map(|ticks| match ticks {
            LostTicks::Delay => "kvm-pit.lost_tick_policy=delay",
            LostTicks::Discard => "kvm-pit.lost_tick_policy=discard",
        })
    }
}

/// Whether the clock starts at another time than UTC, which the launcher has to compute.
pub(crate) fn is_shifted(clock: &barevirt_api::v1::Clock) -> bool {
    let offset = clock.utc.as_ref().and_then(|utc| utc.offset_seconds);
    offset.is_some_and(|seconds| seconds != 0)
        || clock.timezone.as_deref().is_some_and(|zone| !zone.is_empty())
}
