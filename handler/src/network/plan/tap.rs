//! The tap binding: whatever attaches the pod to the network has made a tap or a macvtap, and QEMU is given it.
//!
//! ```text
//!   network == tap<digits>, or else pod<digits> --> guest
//! ```
//!
//! Nothing is made here. A macvtap hands on what is for its own MAC address alone, so it is given the guest's.

use barevirt_protocol::names::{NetworkDescriptor, tap_queues};

use super::step::{PlanError, Step};
use crate::network::addresses::MacAddress;
use crate::network::links::Names;
use crate::network::state::{Kind, Link, Observed, Wanted};

/// The tap or macvtap of a card: one under the name of taps goes before the pod's link.
pub fn find<'a>(names: &'a Names, observed: &'a Observed) -> Option<(&'a str, &'a Link)> {
    let is_tap = |link: &&Link| matches!(link.kind, Kind::Tap { .. } | Kind::Macvtap);
    [&names.tap, &names.pod].into_iter().find_map(|name| {
        let link = observed.links.get(name).filter(is_tap)?;
        Some((name.as_str(), link))
    })
}

/// What is missing, in the order to do it.
pub(super) fn plan(wanted: &Wanted, names: &Names, observed: &Observed) -> Result<Vec<Step>, PlanError> {
    let no_tap = || PlanError::NoTap(names.tap.clone(), names.pod.clone());
    let (name, link) = find(names, observed).ok_or_else(no_tap)?;
    let mut steps = Vec::new();
    if link.kind == Kind::Macvtap
        && let Some(mac) = wanted.mac.filter(|mac| MacAddress::read(&link.mac) != Some(*mac))
    {
        steps.push(Step::Mac { link: name.to_owned(), mac });
    }
    if !link.up {
        steps.push(Step::Up { link: name.to_owned() });
    }
    // The first queue comes last: where it is held all are.
    if observed.held.contains(&NetworkDescriptor::Tap.of(&wanted.network)) {
        return Ok(steps);
    }
    let queues: Vec<String> = tap_queues(&wanted.network, wanted.queues).collect();
    for descriptor in queues.iter().rev().filter(|name| !observed.held.contains(*name)) {
        let (name, descriptor) = (name.to_owned(), descriptor.clone());
        steps.push(match link.kind {
            Kind::Tap { multi_queue: false } if queues.len() > 1 => {
                return Err(PlanError::OneQueue { tap: name, wanted: wanted.queues });
            }
            Kind::Tap { multi_queue } => {
                Step::OpenTap { name, owner: wanted.tap_owner, multi_queue, descriptor }
            }
            Kind::Macvtap | Kind::Bridge | Kind::Other => {
                Step::OpenMacvtap { name, index: link.index, multi_queue: queues.len() > 1, descriptor }
            }
        });
    }
    Ok(steps)
}
