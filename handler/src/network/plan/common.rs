//! What the bindings have in common.

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
    /// Not every kernel has it; where it is missing there is nothing to set.
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

/// Settings that are not as they should be.
pub(super) fn plan_sysctls(
    settings: impl IntoIterator<Item = Setting>,
    observed: &Observed,
    steps: &mut Vec<Step>,
) {
    for Setting { path, value, optional } in settings {
        let present = observed.sysctls.get(&path).map(String::as_str);
        // Whether a link that is still to be made has it is seen once it is there.
        let may_come = path.split('/').nth(3).is_some_and(|link| !observed.links.contains_key(link));
        if present != Some(value) && (present.is_some() || !optional || may_come) {
            steps.push(Step::Sysctl { path, value, optional });
        }
    }
}

/// The tap: its queues, and its place at the bridge.
pub(super) fn plan_tap(wanted: &Wanted, names: &Names, observed: &Observed, mtu: u32, steps: &mut Vec<Step>) {
    let tap = observed.links.get(&names.tap);
    // The first queue comes last: where it is held all are, and there are as many as there were virtual CPUs then.
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
    if tap.is_none_or(|link| link.controller.is_none() || link.controller != bridge) {
        steps.push(Step::Attach { link: names.tap.clone(), bridge: names.bridge.clone() });
    }
    if tap.is_none_or(|link| !link.up) {
        steps.push(Step::Up { link: names.tap.clone() });
    }
}

/// Sockets that the launcher does not hold yet.
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
            steps.push(Step::Open { service: *service, link: names.bridge.clone(), descriptor });
        }
    }
}
