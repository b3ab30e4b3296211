//! Clock and timers.

use crate::clock::{LostTicks, Rtc, Timers, Track, is_shifted};
use crate::error::PlanError;
use crate::facts::{Accelerator, Facts};
use barevirt_api::v1::{Clock, PitTimer, RtcTimer};

const TIMERS: &str = "spec.domain.clock.timer";

/// The planned clock.
#[derive(Debug, Default)]
pub(super) struct Planned {
    pub(super) rtc: Rtc,
    pub(super) timers: Timers,
    /// Fields that request features which emulation does not have.
    pub(super) left_out: Vec<String>,
}

pub(super) fn plan(clock: Option<&Clock>, facts: &Facts) -> Result<Planned, PlanError> {
    let mut planned = Planned::default();
    planned.rtc.base.clone_from(&facts.rtc_base);
    let Some(clock) = clock else { return Ok(planned) };
    if facts.rtc_base.is_none() && is_shifted(clock) {
        let field = "spec.domain.clock".to_owned();
        return Err(PlanError::Unprepared { field, what: "time" });
    }
    let Some(timer) = &clock.timer else { return Ok(planned) };
    if let Some(rtc) = &timer.rtc {
        self::rtc(rtc, &mut planned.rtc)?;
    }
    planned.timers.hpet = timer.hpet.as_ref().map(|hpet| hpet.present.unwrap_or(true));
    if let Some(pit) = &timer.pit {
        planned.timers.pit = Some(pit.present.unwrap_or(true));
        let ticks = ticks_of(pit)?;
        match facts.accelerator {
            Accelerator::Kvm { .. } => planned.timers.pit_ticks = ticks,
            Accelerator::Tcg { .. } => {
                planned.left_out.extend(ticks.map(|_| format!("{TIMERS}.pit.tickPolicy")));
            }
        }
    }
    Ok(planned)
}

fn rtc(timer: &RtcTimer, rtc: &mut Rtc) -> Result<(), PlanError> {
    let refused = |name: &str, value: &str, why| {
        let (field, value) = (format!("{TIMERS}.rtc.{name}"), value.to_owned());
        Err(PlanError::Unsupported { field, value, why })
    };
    if timer.present == Some(false) {
        return refused("present", "false", "a q35 machine always has this clock");
    }
    rtc.track = match timer.track.as_deref().unwrap_or_default() {
        "" => None,
        "wall" => Some(Track::Wall),
        "guest" => Some(Track::Guest),
        other => return refused("track", other, "guest and wall are"),
    };
    rtc.ticks_are_lost = match timer.tick_policy.as_deref().unwrap_or_default() {
        "" | "catchup" => false,
        "delay" => true,
        other => return refused("tickPolicy", other, "delay and catchup are"),
    };
    Ok(())
}

fn ticks_of(pit: &PitTimer) -> Result<Option<LostTicks>, PlanError> {
    match pit.tick_policy.as_deref().unwrap_or_default() {
        "" => Ok(None),
        // KVM's timer delivers missed ticks as fast as the guest takes them.
        "delay" | "catchup" => Ok(Some(LostTicks::Delay)),
        "discard" => Ok(Some(LostTicks::Discard)),
        other => {
            let (field, value) = (format!("{TIMERS}.pit.tickPolicy"), other.to_owned());
            Err(PlanError::Unsupported { field, value, why: "delay, catchup and discard are" })
        }
    }
}
