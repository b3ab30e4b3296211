//! Instances whose volumes are to move to the same claim: all but the oldest give way, and say so in `VolumesChange`. So does
//! one whose new claim another instance has. Pure.
//!
//! An instance that says so does not move until it has taken that back, so the others need not wait for it.

use super::MOVES;
use barevirt_api::names::{CONDITION_VOLUMES_CHANGE, REASON_CLAIM_IN_USE};
use barevirt_api::v1::{Condition, VirtualMachineInstance, VirtualMachineInstanceStatus, merge_condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Why the instance's volumes stay where they are for now, as its status says; `None` if it does not give way.
pub fn gives_way(vmi: &VirtualMachineInstance) -> Option<&str> {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let told = Condition::find(conditions, CONDITION_VOLUMES_CHANGE)?;
    let gives_way = told.is_true() && told.reason.as_deref() == Some(REASON_CLAIM_IN_USE);
    gives_way.then(|| told.message.as_deref().unwrap_or_default())
}

/// Says for which reason the volumes stay where they are, or takes that back. Other conditions stay as they are.
pub fn tell(status: &mut VirtualMachineInstanceStatus, why: Option<&str>, now: &Time) {
    let Some(told) = Condition::find(&status.conditions, CONDITION_VOLUMES_CHANGE) else { return };
    let stayed = told.reason.as_deref() == Some(REASON_CLAIM_IN_USE);
    if !told.is_true() || (why.is_none() && !stayed) {
        return;
    }
    let condition = match why {
        Some(why) => Condition::new(CONDITION_VOLUMES_CHANGE, true, REASON_CLAIM_IN_USE, why),
        None => Condition::new(CONDITION_VOLUMES_CHANGE, true, "", MOVES),
    };
    merge_condition(&mut status.conditions, condition, now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;

    #[test]
    fn an_instance_gives_way_until_it_takes_that_back() {
        let now = Time(Timestamp::from_second(1_800_000_000).unwrap());
        let mut vmi = VirtualMachineInstance::default();
        let told = |vmi: &mut VirtualMachineInstance, why| {
            tell(vmi.status.get_or_insert_default(), why, &now);
            vmi.status.clone().unwrap_or_default().conditions
        };
        // One whose volumes do not move says nothing.
        assert!(told(&mut vmi, Some("why")).is_empty());
        let moves = Condition::new(CONDITION_VOLUMES_CHANGE, true, "", MOVES);
        merge_condition(&mut vmi.status.get_or_insert_default().conditions, moves, &now);
        let before = told(&mut vmi, None);
        assert_eq!(gives_way(&vmi), None);
        let after = told(&mut vmi, Some("why"));
        assert_eq!((gives_way(&vmi), after.len()), (Some("why"), 1));
        assert!(after[0].is_true(), "its volumes are still to move");
        assert_eq!(told(&mut vmi, None), before);
        assert_eq!(gives_way(&vmi), None);
        // A move that was taken back has another condition.
        let back = Condition::new(CONDITION_VOLUMES_CHANGE, false, "VolumesChangeCancellation", "");
        merge_condition(&mut vmi.status.get_or_insert_default().conditions, back, &now);
        assert_eq!(told(&mut vmi, Some("why"))[0].status, "False");
        assert_eq!(gives_way(&vmi), None);
    }
}
