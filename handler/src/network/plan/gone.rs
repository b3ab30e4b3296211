//! Removes the network of a card that the guest no longer has: the pod's link gets its original
//! configuration, and everything that the handler created is deleted.
//!
//! Addresses and MAC address are restored before the stand-in is deleted, and routes before the bridge is.

use super::bridge::{There, port_sysctls};
use super::common::plan_sysctls;
use super::step::Step;
use crate::network::addresses::MacAddress;
use crate::network::links::Names;
use crate::network::state::{Link, Observed, Route};

/// The remaining steps, in order. Empty if nothing was created.
pub(super) fn plan(names: &Names, observed: &Observed) -> Vec<Step> {
    let there = There::of(names, observed);
    let mut steps = Vec::new();
    let delete = |link: &str| Step::Delete { link: link.to_owned() };
    if observed.links.contains_key(&names.tap) {
        steps.push(delete(&names.tap));
    }
    match (there.port, there.stand_in) {
        // The pod's new link has a configuration of its own.
        (Some(_), stand_in) if there.is_attached_again() => {
            steps.push(delete(&names.port));
            steps.extend(stand_in.map(|(_, name)| delete(name)));
        }
        (Some(port), stand_in) => {
            give_back(port, stand_in.map(|(stand_in, _)| stand_in), names, observed, &mut steps);
            if let Some((_, name)) = stand_in {
                steps.push(delete(name));
            }
            steps.push(Step::Rename { link: names.port.clone(), to: names.pod.clone() });
        }
        (None, Some((stand_in, name))) => {
            // A link that was set down has lost its IPv6 addresses.
            let pod = there.pod.map(|pod| &pod.addresses);
            for (address, prefix) in stand_in.global() {
                if pod.is_some_and(|pod| !pod.contains(&(address, prefix))) {
                    steps.push(Step::Address { link: names.pod.clone(), address, prefix, routed: true });
                }
            }
            steps.push(delete(name));
        }
        (None, None) => {}
    }
    let given_back = there.port.or(there.pod).filter(|_| !there.is_attached_again());
    if let (Some(_), Some(link)) = (there.bridge, given_back) {
        let is_up = there.port.is_none() && link.up;
        if !is_up {
            steps.push(Step::Up { link: names.pod.clone() });
        }
        // Routes without a gateway come first: gateways of other routes may be reached by them.
        let (near, far): (Vec<&Route>, Vec<&Route>) =
            there.kept_routes().partition(|route| route.gateway.is_none());
        let addresses = there.stand_in.map_or(link, |(stand_in, _)| stand_in);
        let by_kernel = |route: &Route| {
            addresses.addresses.iter().any(|(address, prefix)| route.follows_from(*address, *prefix))
        };
        for route in near.into_iter().chain(far).filter(|route| !by_kernel(route)) {
            if there.port.is_some() || !link.routes.contains(route) {
                steps.push(Step::Route { link: names.pod.clone(), route: *route });
            }
        }
    }
    if there.note.is_some() {
        steps.push(delete(&names.note));
    }
    if there.bridge.is_some() {
        steps.push(delete(&names.bridge));
    }
    steps
}

fn give_back(
    port: &Link,
    stand_in: Option<&Link>,
    names: &Names,
    observed: &Observed,
    steps: &mut Vec<Step>,
) {
    let link = &names.port;
    if port.controller.is_some() {
        steps.push(Step::Detach { link: link.clone() });
    }
    if port.up {
        steps.push(Step::Down { link: link.clone() });
    }
    let Some(stand_in) = stand_in else { return };
    if let Some(mac) = MacAddress::read(&stand_in.mac).filter(|mac| port.mac != mac.0) {
        steps.push(Step::Mac { link: link.clone(), mac });
    }
    let settings = port_sysctls(names).into_iter().map(|setting| setting.back_to("0"));
    plan_sysctls(settings, observed, steps);
    for (address, prefix) in stand_in.global() {
        if !port.addresses.contains(&(address, prefix)) {
            steps.push(Step::Address { link: link.clone(), address, prefix, routed: true });
        }
    }
}
