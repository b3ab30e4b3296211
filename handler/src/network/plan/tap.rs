//! The tap binding: a network plugin attaches the pod and creates a tap or a macvtap, which QEMU gets.
//!
//! ```text
//!   network == tap<digits>, or else pod<digits> --> guest
//! ```
//!
//! The handler creates nothing here. A macvtap only forwards packets for its own MAC address, so it gets the
//! guest's address. Of multicast it forwards what the pod listens to, and QEMU does not tell it what the guest listens to: without
//! all of it, nobody would find the guest's IPv6 addresses.
//!
//! The pod takes no router for one that its guest claims to be. Frames from a tap come into the pod by the tap, or by the bridge
//! whose port the plugin has made it. Those from a macvtap leave by the link below it, and those to it are QEMU's.

use std::collections::BTreeMap;

use barevirt_protocol::names::{NetworkDescriptor, tap_queues};

use super::common::{Setting, plan_sysctls};
use super::step::{PlanError, Step};
use crate::network::addresses::MacAddress;
use crate::network::links::Names;
use crate::network::state::{Kind, Link, Observed, Wanted};

/// The tap or macvtap of a card. A link with a tap's name is preferred to the pod's link.
pub fn find<'a>(names: &'a Names, links: &'a BTreeMap<String, Link>) -> Option<(&'a str, &'a Link)> {
    let is_tap = |link: &&Link| matches!(link.kind, Kind::Tap { .. } | Kind::Macvtap);
    [&names.tap, &names.pod].into_iter().find_map(|name| {
        let link = links.get(name).filter(is_tap)?;
        Some((name.as_str(), link))
    })
}

/// Settings of the links by which what the guest sends comes into the pod. What else the pod is there is up to the plugin.
pub(super) fn sysctls(names: &Names, links: &BTreeMap<String, Link>) -> Vec<Setting> {
    let tap = find(names, links).filter(|(_, link)| link.kind != Kind::Macvtap);
    let Some((name, tap)) = tap else { return Vec::new() };
    let bridge = links.iter().find(|(_, link)| tap.controller == Some(link.index));
    let bridge = bridge.map(|(name, _)| name.as_str());
    let untrusting = |link: &str| Setting::optional(format!("net/ipv6/conf/{link}/accept_ra"), "0");
    [Some(name), bridge].into_iter().flatten().map(untrusting).collect()
}

/// The missing steps, in the order in which to do them.
pub(super) fn plan(wanted: &Wanted, names: &Names, observed: &Observed) -> Result<Vec<Step>, PlanError> {
    let no_tap = || PlanError::NoTap(names.tap.clone(), names.pod.clone());
    let (name, link) = find(names, &observed.links).ok_or_else(no_tap)?;
    let mut steps = Vec::new();
    if link.kind == Kind::Macvtap
        && let Some(mac) = wanted.mac.filter(|mac| MacAddress::read(&link.mac) != Some(*mac))
    {
        steps.push(Step::Mac { link: name.to_owned(), mac });
    }
    if link.kind == Kind::Macvtap && !link.all_multicast {
        steps.push(Step::AllMulticast { link: name.to_owned() });
    }
    plan_sysctls(sysctls(names, &observed.links), observed, &mut steps);
    if !link.up {
        steps.push(Step::Up { link: name.to_owned() });
    }
    // The first queue comes last: if the launcher holds it, it holds all.
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
            Kind::Macvtap | Kind::Macvlan | Kind::Bridge | Kind::Other => {
                Step::OpenMacvtap { name, index: link.index, multi_queue: queues.len() > 1, descriptor }
            }
        });
    }
    Ok(steps)
}
