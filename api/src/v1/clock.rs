//! The guest's clock and timers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Time base of the guest's clock and the timers the machine has. Give `utc` or `timezone`, not both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Clock {
    /// Turns single timers of the machine on or off and tunes them. A timer not listed keeps what the machine
    /// type gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer: Option<Timer>,
    /// Runs the guest's hardware clock in this zone's local time; a tz database name such as `Europe/Berlin`.
    /// Becomes the start time of `-rtc base=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Runs the guest's hardware clock in UTC, with an optional offset. Becomes `-rtc base=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utc: Option<ClockOffsetUtc>,
}

/// A guest clock counted from UTC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClockOffsetUtc {
    /// Seconds added to UTC, negative to subtract. Given, even as 0, time set by the guest survives a reboot;
    /// not given, each boot starts at UTC again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset_seconds: Option<i32>,
}

/// High precision event timer of x86 machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HpetTimer {
    /// Whether the machine has an HPET (`-machine hpet=on` or `off`); true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
    /// How late ticks are made up for: `delay`, `catchup`, `merge` or `discard`. QEMU's HPET has no option
    /// for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick_policy: Option<String>,
}

/// Hyper-V reference time, the paravirtual clock for Windows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HypervTimer {
    /// Whether the guest is offered the Hyper-V clock (`-cpu hv-time`); true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

/// KVM's paravirtual clock (kvmclock), used by Linux guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KvmTimer {
    /// Whether the guest is offered kvmclock (`-cpu kvmclock=on` or `off`); true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

/// Interval timer of the classic PC (i8254).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PitTimer {
    /// Whether the machine has a PIT (`-machine pit=on` or `off`); true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
    /// How late ticks are made up for: `delay`, `catchup` or `discard`. The first and the last become
    /// `-global kvm-pit.lost_tick_policy=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick_policy: Option<String>,
}

/// Battery-backed clock of the machine, which also delivers periodic interrupts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RtcTimer {
    /// Whether the clock is configured as a timer; true when not given. QEMU's PC machines always contain
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
    /// How late ticks are made up for: `delay` (`-rtc driftfix=none`) or `catchup` (`-rtc driftfix=slew`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick_policy: Option<String>,
    /// Time the clock follows: `wall`, the host's (`-rtc clock=host`), or `guest`, which stops while the
    /// machine is paused (`-rtc clock=vm`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub track: Option<String>,
}

/// Settings per timer; each is optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timer {
    /// High precision event timer of x86; Linux and Windows guests rarely need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hpet: Option<HpetTimer>,
    /// Hyper-V reference clock, which spares Windows guests slow timer reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<HypervTimer>,
    /// KVM's paravirtual clock, for Linux guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmTimer>,
    /// Interval timer of the classic PC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pit: Option<PitTimer>,
    /// Battery-backed clock, and what becomes of ticks the guest missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtc: Option<RtcTimer>,
}
