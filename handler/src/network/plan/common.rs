//! Functions that several bindings use.

use barevirt_protocol::names::{NetworkDescriptor, tap_queues};

use super::step::{Service, Step};
use crate::network::links::Names;
use crate::network::state::{Observed, Wanted};

/// A setting beneath `/proc/sys`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Path beneath `/proc/sys`.
    pub path: String,
    /// The value it should have.
    pub value: &'static str,
    /// Not every kernel has the setting; if it is missing, nothing is written.
    pub optional: bool,
}

impl Setting {
    pub(super) fn needed(path: String, value: &'static str) -> Self {
        Self { path, value, optional: false }
    }

    pub(super) fn optional(path: String, value: &'static str) -> Self {
        Self { path, value, optional: true }
    }

    pub(super) fn back_to(self, value: &'static str) -> Self {
        Self { value, ..self }
    }
}

/// Adds steps for the settings that have another value.
pub(super) fn plan_sysctls(
    settings: impl IntoIterator<Item = Setting>,
    observed: &Observed,
    steps: &mut Vec<Step>,
) {
    for Setting { path, value, optional } in settings {
        let present = observed.sysctls.get(&path).map(String::as_str);
        // Whether a future link will have the setting is only known once the link exists.
        let may_come = path.split('/').nth(3).is_some_and(|link| !observed.links.contains_key(link));
        if present != Some(value) && (present.is_some() || !optional || may_come) {
            steps.push(Step::Sysctl { path, value, optional });
        }
    }
}

/// Adds steps for the tap: its queues, and its attachment to the bridge.
///
/// The bridge does not learn behind it: a guest chooses from which MAC addresses it sends, and the kernel would keep each of
/// them for five minutes, in memory that counts for no pod. A bridge that knows nobody passes a frame to all other ports;
/// here there is one at most.
pub(super) fn plan_tap(wanted: &Wanted, names: &Names, observed: &Observed, mtu: u32, steps: &mut Vec<Step>) {
    let tap = observed.links.get(&names.tap);
    // The first queue comes last: if the launcher holds it, it holds all queues that were needed at that
    // time.
    if !observed.held.contains(&NetworkDescriptor::Tap.of(&wanted.network)) {
        let queues: Vec<String> = tap_queues(&wanted.network, wanted.queues).collect();
        let multi_queue = queues.len() > 1;
        for descriptor in queues.into_iter().rev().filter(|name| !observed.held.contains(name)) {
            let (name, owner) = (names.tap.clone(), wanted.tap_owner);
            steps.push(Step::OpenTap { name, owner, multi_queue, descriptor });
        }
    }
    if tap.is_none_or(|link| link.mtu != mtu) {
        steps.push(Step::Mtu { link: names.tap.clone(), mtu });
    }
    let bridge = observed.links.get(&names.bridge).map(|bridge| bridge.index);
    let attach = tap.is_none_or(|link| link.controller.is_none() || link.controller != bridge);
    if attach {
        steps.push(Step::Attach { link: names.tap.clone(), bridge: names.bridge.clone() });
    }
    if attach || tap.is_some_and(|link| link.learning) {
        steps.push(Step::NoLearning { link: names.tap.clone() });
    }
    if tap.is_none_or(|link| !link.up) {
        steps.push(Step::Up { link: names.tap.clone() });
    }
}

/// Adds steps for the sockets that the launcher does not hold yet.
pub(super) fn plan_sockets(
    wanted: &Wanted,
    names: &Names,
    observed: &Observed,
    services: &[Service],
    steps: &mut Vec<Step>,
) {
    for service in services {
        let descriptor = service.descriptor().of(&wanted.network);
        if !observed.held.contains(&descriptor) {
            let link = match service {
                Service::Dhcp4 { .. } | Service::Dhcp6 | Service::RouterAdvertisement => &names.bridge,
                Service::Frames | Service::Neighbours => &names.tap,
            };
            steps.push(Step::Open { service: *service, link: link.clone(), descriptor });
        }
    }
}
