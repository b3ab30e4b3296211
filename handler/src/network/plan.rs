//! Plans the steps from the state of the pod's network namespace to the wanted state. Pure.
//!
//! [`plan`] compares [`Observed`] with a card that is [`Wanted`] and lists what is missing, in the order in
//! which to do it. A handler that returns to a complete pod gets an empty plan. Everything that is created
//! goes away with the namespace, or with its card if that is removed earlier.

pub mod bridge;
mod common;
mod gone;
pub mod masquerade;
mod passt;
mod step;
pub mod tap;

pub use self::common::Setting;
pub use self::step::{PlanError, Service, Step};

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use super::links::Names;
use super::state::{Binding, Link, Observed, Wanted};

/// All settings that a card depends on, in a pod with these links.
pub fn sysctls(wanted: &Wanted, names: &Names, links: &BTreeMap<String, Link>) -> Vec<Setting> {
    match &wanted.binding {
        Binding::Masquerade(_) => {
            masquerade::sysctls(&names.bridge, true).into_iter().chain(bridge::tap_sysctls(names)).collect()
        }
        Binding::Tap => tap::sysctls(names, links),
        Binding::Kept => Vec::new(),
        Binding::Passt => passt::sysctls(),
        Binding::Bridge | Binding::ManagedTap | Binding::Gone => {
            let ports = bridge::port_sysctls(names).into_iter().chain(bridge::tap_sysctls(names));
            let saved = [&names.kept, &names.note].into_iter().map(|link| bridge::saved_sysctl(link));
            bridge::sysctls(names, true).into_iter().chain(ports).chain(saved).collect()
        }
    }
}

/// The IPv6 gateways whose link-local addresses the plans for these cards need, each with the link's name and
/// index.
pub fn gateways(cards: &[Wanted], observed: &Observed) -> BTreeSet<(String, u32, Ipv6Addr)> {
    let bridged = cards.iter().filter(|card| matches!(card.binding, Binding::Bridge | Binding::ManagedTap));
    bridged.flat_map(|card| bridge::gateways(&card.names(&observed.links), observed)).collect()
}

/// The missing steps, in the order in which to do them.
pub fn plan(wanted: &Wanted, observed: &Observed) -> Result<Vec<Step>, PlanError> {
    let names = wanted.names(&observed.links);
    match &wanted.binding {
        Binding::Masquerade(binding) => masquerade::plan(wanted, binding, &names, observed),
        Binding::Bridge | Binding::ManagedTap => bridge::plan(wanted, &names, observed),
        Binding::Tap => tap::plan(wanted, &names, observed),
        Binding::Passt => passt::plan(&names, observed),
        Binding::Kept => Ok(Vec::new()),
        Binding::Gone => Ok(gone::plan(&names, observed)),
    }
}

#[cfg(test)]
mod tests;
